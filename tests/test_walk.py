"""The way of one request through the source: a reader follows `POST /v1/runs` in few files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The request enters 59 files; background tasks may enter some more meanwhile.
MAX_FILES = 66


def test_a_request_that_creates_a_run_enters_few_files() -> None:
    command = [sys.executable, "-m", "tools.walk"]

    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )

    *files, total = ended.stdout.splitlines()
    assert any("http/routes/runs.py" in file for file in files)
    assert any("store/sqlite/append.py" in file for file in files)
    counted = re.match(r"(\d+) files, \d+ calls", total)
    assert counted is not None
    assert int(counted[1]) == len(files) <= MAX_FILES
