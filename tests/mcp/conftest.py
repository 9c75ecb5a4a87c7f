from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from tests.support.client import Wire
from tests.support.eventually import eventually
from tests.support.host import ACME, ServedHost
from wopr import mcp_server
from wopr.agents.mcp.servers import McpServer
from wopr.protocol.documents import JsonObject

SCRIPT = Path(__file__).with_name("notes_server.py")
COMMAND = (sys.executable, str(SCRIPT))
TOOLS = ("search", "token", "read", "refuse", "rant", "die", "hang")


NewHost = Callable[..., ServedHost]


class Notes:
    """The server of a test: its declaration, and the calls that it has received."""

    def __init__(self, folder: Path) -> None:
        self.calls_file = folder / "calls.jsonl"
        self.calls_file.touch()

    def server(self, **options: object) -> McpServer:
        """Return the server as a process that the host starts."""
        given: JsonObject = {"command": COMMAND, "tools": TOOLS, **options}
        environment = {"NOTES_CALLS": str(self.calls_file), **given.pop("env", {})}
        return mcp_server("notes", env=environment, **given)

    def server_at(self, url: str) -> McpServer:
        """Return the server at its address."""
        return mcp_server("notes", url=url, tools=TOOLS)

    @property
    def calls(self) -> list[JsonObject]:
        return [msgspec.json.decode(line) for line in self.calls_file.read_bytes().splitlines()]

    @property
    def called(self) -> list[str]:
        return [call["tool"] for call in self.calls]


@pytest.fixture
def acme(host: ServedHost) -> Iterator[Wire]:
    with Wire(host.url, ACME) as wire:
        yield wire


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path)


@pytest.fixture
def notes_url(notes: Notes) -> Iterator[Callable[[], str]]:
    """Start the server on its own port; a second call restarts it on the same one."""
    # Bound but not listening, the port stays reserved while no server uses it.
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    port = kept.getsockname()[1]
    running: list[subprocess.Popen[bytes]] = []

    def start() -> str:
        for process in running:
            process.kill()
            process.wait()
        running[:] = [
            subprocess.Popen(
                [*COMMAND, str(port)],
                env={"NOTES_CALLS": str(notes.calls_file)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        ]
        _wait_for(port)
        return f"http://127.0.0.1:{port}/mcp"

    with kept:
        yield start
    for process in running:
        process.kill()
        process.wait()


def _wait_for(port: int) -> None:
    """Wait until the server listens on the port."""

    def listens() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    eventually(listens)
