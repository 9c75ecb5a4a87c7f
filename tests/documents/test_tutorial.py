"""The tutorial, run as written: files are created, commands run, outputs compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest

from tests.documents.fences import ROOT, blocks, commands
from tests.documents.terminal import DEADLINE_SECONDS, Terminal

TUTORIAL = ROOT / "docs" / "tutorial.md"
WORDS_A_MINUTE = 200
# Commands that a test cannot run: they install packages, or call a paid model.
NOT_TYPED = {
    "mkdir shop && cd shop",
    "python -m venv .venv && . .venv/bin/activate",
    "pip install ../wopr",
    'pip install "../wopr[models]"',
    "pip install pytest",
    "export OPENAI_API_KEY=…",
}
SERVE = "wopr dev app.py"


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path)
    yield opened
    opened.leave()


@pytest.mark.timeout(2 * DEADLINE_SECONDS)
def test_a_newcomer_follows_the_tutorial_to_an_own_agent_in_the_inbox(terminal: Terminal) -> None:
    overdue = Timer(DEADLINE_SECONDS, terminal.leave)
    overdue.daemon = True
    overdue.start()
    typed: list[str] = []

    for block in blocks(TUTORIAL):
        if block.language == "python":
            terminal.write(block.word, block.text)
            continue
        for command in commands(block):
            if command.line == SERVE and terminal.serving is None:
                terminal.serve(command)
            elif command.line != SERVE and command.line not in NOT_TYPED:
                terminal.type(command)
                typed.append(command.line)
    overdue.cancel()

    assert "wopr inbox list" in typed
    assert "pytest -q test_app.py" in typed


def test_the_tutorial_takes_less_than_ten_minutes_to_read() -> None:
    words = len(TUTORIAL.read_text().split())

    assert words < 10 * WORDS_A_MINUTE
