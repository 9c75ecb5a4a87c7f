"""The tutorial, typed as it is written: files are made, commands run, outputs compared."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest

from tests.documents.fences import ROOT, Command, blocks, commands, matches

TUTORIAL = ROOT / "docs" / "tutorial.md"
DEADLINE_SECONDS = 300
WORDS_A_MINUTE = 200
# What a test cannot type: it would install from elsewhere, or ask a model that costs money.
NOT_TYPED = {
    "python -m venv .venv && . .venv/bin/activate",
    "pip install wopr",
    'pip install "wopr[models]"',
    "pip install pytest",
    "export OPENAI_API_KEY=…",
}
# A run goes on while somebody types.
LOOKS = ("wopr inbox list", "wopr inbox show")
SERVE = "wopr dev app.py"


class Newcomer:
    """Somebody at a terminal, in an empty directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("WOPR_", "OTEL_", "PYTEST_"))
        } | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "WOPR_PORT": "0",
        }
        self.serving: subprocess.Popen[str] | None = None

    def write(self, name: str, text: str) -> None:
        """Put code into a file, behind what is there."""
        with (self.directory / name).open("a") as file:
            file.write(text)

    def type(self, command: Command) -> None:
        """Type a command and compare what it prints; one that only looks may look again."""
        assigned = re.fullmatch(r"(\w+)=\$\((.*)\)", command.line)
        if assigned is not None:
            self.variables[assigned[1]] = self._output(assigned[2], stderr=None).strip()
            return
        output = self._output(command.line)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not matches(command.printed, output):
            is_over = not command.line.startswith(LOOKS) or time.monotonic() > deadline
            assert not is_over, f"{command.line}\n{output}"
            output = self._output(command.line)

    def _output(self, line: str, stderr: int | None = subprocess.STDOUT) -> str:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.directory,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}"
        return done.stdout

    def serve(self, command: Command) -> None:
        """Start what stays, and wait until it has printed what the document shows."""
        self.serving = subprocess.Popen(
            ["bash", "-c", f"exec {command.line}"],
            cwd=self.directory,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.serving.stdout is not None
        printed = ""
        for line in self.serving.stdout:
            printed += line
            if matches(command.printed, printed):
                return
        raise AssertionError(printed)

    def leave(self) -> None:
        """Stop what stays."""
        if self.serving is not None:
            self.serving.send_signal(signal.SIGTERM)
            self.serving.communicate(timeout=DEADLINE_SECONDS)


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    somebody = Newcomer(tmp_path)
    yield somebody
    somebody.leave()


@pytest.mark.timeout(2 * DEADLINE_SECONDS)
def test_a_newcomer_comes_from_nothing_to_an_own_agent_in_the_inbox(newcomer: Newcomer) -> None:
    overdue = Timer(DEADLINE_SECONDS, newcomer.leave)
    overdue.daemon = True
    overdue.start()
    typed: list[str] = []

    for block in blocks(TUTORIAL):
        if block.language == "python":
            newcomer.write(block.word, block.text)
            continue
        for command in commands(block):
            if command.line == SERVE and newcomer.serving is None:
                newcomer.serve(command)
            elif command.line != SERVE and command.line not in NOT_TYPED:
                newcomer.type(command)
                typed.append(command.line)
    overdue.cancel()

    assert "wopr inbox list" in typed
    assert "pytest -q test_app.py" in typed


def test_the_tutorial_takes_less_than_ten_minutes_to_read() -> None:
    words = len(TUTORIAL.read_text().split())

    assert words < 10 * WORDS_A_MINUTE
