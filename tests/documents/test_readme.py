"""The README's tour, run as written, with the host killed in the middle."""

from __future__ import annotations

import shutil
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents.fences import ROOT, Block, Command, blocks, commands
from tests.documents.terminal import DEADLINE_SECONDS, Terminal
from tests.support.wheel import build, install

README = ROOT / "README.md"
SERVE = "make serve"
# Commands that a test cannot run: they install, run tests, or need another server.
CLIENT = 'pip install "openwop-client'
NOT_TYPED = {"make test", ". .venv/bin/activate"}
LISTENING = ("WOPR … is listening on …",)
ELSEWHERE = "db.example.com"


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """Return a terminal beside the examples, with WOPR installed from its wheel."""
    folder = tmp_path / "tour"
    shutil.copytree(ROOT / "examples", folder / "examples")
    [wheel] = build(tmp_path / "dist", "wheel")
    opened = Terminal(folder, install(wheel, tmp_path / "environment"))
    yield opened
    opened.leave()


def tour() -> list[Block]:
    """Return the blocks of the tour, starting with the one that shows the host's greeting."""
    found = list(blocks(README))
    start = next(place for place, block in enumerate(found) if "is listening on" in block.text)
    return found[start:]


@pytest.mark.timeout(2 * DEADLINE_SECONDS)
def test_the_commands_of_the_readme_print_what_it_shows(terminal: Terminal) -> None:
    typed: list[str] = []

    for block in tour():
        for command in commands(block) if block.language == "console" else ():
            line = command.line.partition(" #")[0].strip()
            if line == SERVE:
                terminal.serve(Command("wopr serve", command.printed or LISTENING))
                # The host listens on the same port as before, like a reader's.
                terminal.variables["WOPR_PORT"] = terminal.port()
            elif line.startswith("kill -9"):
                terminal.leave(signal.SIGKILL)
            elif line.startswith("curl") and shutil.which("curl") is None:
                continue
            elif line not in NOT_TYPED and ELSEWHERE not in line and not line.startswith(CLIENT):
                line = line.replace(":8642", f":{terminal.port()}")
                terminal.type(Command(line, command.printed))
                typed.append(line)

    assert "wopr workflows add examples/slow.yaml" in typed
    assert "wopr fleet agents" in typed


def test_the_readme_installs_the_tested_version_of_the_client() -> None:
    typed = [command.line for block in blocks(README) for command in commands(block)]
    tested = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    [client] = [each for each in tested if str(each).startswith("openwop-client")]

    assert f'pip install "{client}"' in typed


def test_each_document_installs_wopr_from_a_clone_while_it_is_not_published() -> None:
    documents = [README, *sorted((ROOT / "docs").rglob("*.md"))]

    published = [
        f"{document.name}: {line}"
        for document in documents
        for line in document.read_text().splitlines()
        if "pip install wopr" in line or 'pip install "wopr' in line or "pip install 'wopr" in line
    ]

    assert published == []
