"""The README's tour, typed as it is written, with the host killed in the middle."""

from __future__ import annotations

import shutil
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents.fences import ROOT, Block, Command, blocks, commands
from tests.documents.terminal import DEADLINE_SECONDS, Terminal

README = ROOT / "README.md"
SERVE = "make serve"
# What a test cannot type: it installs, tests, or needs a server elsewhere.
CLIENT = 'pip install "openwop-client'
NOT_TYPED = {"make test", ". .venv/bin/activate"}
LISTENING = ("WOPR … is listening on …",)
ELSEWHERE = "db.example.com"


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal in a clone; `wopr` is installed already."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    opened = Terminal(tmp_path)
    yield opened
    opened.leave()


def tour() -> list[Block]:
    """The blocks of the tour: from the first one that shows the host's greeting on."""
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
                # The host listens where it listened before, as a reader's does.
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


def test_the_readme_installs_the_version_of_the_client_that_is_tested() -> None:
    typed = [command.line for block in blocks(README) for command in commands(block)]
    tested = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    [client] = [each for each in tested if str(each).startswith("openwop-client")]

    assert f'pip install "{client}"' in typed


def test_a_document_installs_wopr_from_a_clone_while_it_is_not_published() -> None:
    documents = [README, *sorted((ROOT / "docs").rglob("*.md"))]

    published = [
        f"{document.name}: {line}"
        for document in documents
        for line in document.read_text().splitlines()
        if "pip install wopr" in line or 'pip install "wopr' in line or "pip install 'wopr" in line
    ]

    assert published == []
