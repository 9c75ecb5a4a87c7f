"""What an installed WOPR has: everything beside the code must be in the wheel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "wopr"
# Written by interpreters, and no part of the package.
CACHES = "__pycache__"


def test_a_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "hatchling", "build", "--target", "wheel")

    done = subprocess.run(
        [*command, "--directory", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    packed = set(ZipFile(wheel).namelist())
    present = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and CACHES not in path.parts
    }
    assert present <= packed
    assert {"wopr/console/templates/run.html", "wopr/console/static/console.css"} <= packed
