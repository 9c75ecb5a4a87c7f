from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.host import WOPR, environment

STOP_SECONDS = 60


def tour_output(data_dir: Path) -> str:
    done = subprocess.run(
        [WOPR, "demo", "--auto", "--data-dir", str(data_dir)],
        env=environment(data_dir, {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def playing(data_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the demo like a person does."""
    process = subprocess.Popen(
        [WOPR, "demo", "--data-dir", str(data_dir)],
        env=environment(data_dir, {}),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=STOP_SECONDS)


def test_the_demo_runs_the_complete_tour_with_auto(tmp_path: Path) -> None:
    output = tour_output(tmp_path)

    for text in (
        f"WOPR_DATA_DIR={tmp_path} wopr run hello",
        "calls a tool   triage",
        "takes over     billing",
        'waits          triage   kind="low-confidence"',
        'waits          review   kind="approval"',
        "correction by",
        "a branch with another text",
        "a replay made 0 model calls and is the same",
        "2, 3 stars",
        "The tour is finished",
    ):
        assert text in output


def test_the_demo_runs_twice_on_the_same_data(tmp_path: Path) -> None:
    tour_output(tmp_path)

    assert "a replay made 0 model calls and is the same" in tour_output(tmp_path)


def test_the_demo_waits_for_a_person_and_prints_the_command_to_answer(tmp_path: Path) -> None:
    typed: list[str] = []

    with playing(tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            found = re.search(r"\$ WOPR_DATA_DIR=\S+ wopr (inbox answer .*)", line)
            if found is not None:
                typed.append(found[1])
                answer = [str(WOPR), *shlex.split(found[1])]
                subprocess.run(answer, env=environment(tmp_path, {}), check=True)
            if "runs until you stop it" in line:
                break

    assert [line.split()[3] for line in typed] == ["review", "triage", "review", "review"]
    assert process.returncode == 0
