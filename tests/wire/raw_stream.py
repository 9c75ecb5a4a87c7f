"""A reader of an event stream that has its socket to itself, and reads only when it is told to."""

from __future__ import annotations

import socket
from typing import Self

from tests.wire.client import DEADLINE_SECONDS, Frame, parse_frame
from tests.wire.definitions import node, variable, workflow
from tests.wire.host import ServedHost
from wopr.protocol.documents import JsonObject

# Small, so that the host's own buffers fill up and not those of the operating system.
RECEIVE_BUFFER_BYTES = 8 * 1024


def long_log(nodes: int = 20, kilobytes: int = 100) -> tuple[JsonObject, JsonObject]:
    """A workflow whose log has an event of that many kilobytes for every node, and its inputs."""
    payload = {"type": "variable", "variableName": "payload"}
    names = [f"echo{number}" for number in range(nodes)]
    echoes = [node(name, "core.identity", inputs={"payload": payload}) for name in names]
    definition = workflow(echoes, variables=[variable("payload", "object", required=True)])
    return definition, {"payload": {"text": "x" * kilobytes * 1000}}


class RawStream:
    """One request over a socket of its own; nothing is received until `receive` is called."""

    def __init__(
        self, host: ServedHost, key: str, path: str, headers: dict[str, str] | None = None
    ) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self._socket.settimeout(DEADLINE_SECONDS)
        self._socket.connect(("127.0.0.1", host.port))
        sent = {"Host": "localhost", "Authorization": f"Bearer {key}"} | (headers or {})
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def receive(self, size: int) -> bytes:
        """Receive at most so many bytes; empty when the host has closed the connection."""
        try:
            received = self._socket.recv(size)
        except ConnectionResetError:
            return b""
        self._received += received
        return received

    def until_closed(self) -> None:
        """Receive until the host closes the connection."""
        while self.receive(65536):
            pass

    @property
    def received(self) -> bytes:
        """Everything that was received."""
        return self._received

    @property
    def chunks(self) -> list[bytes]:
        """The chunks of the body that came whole."""
        found: list[bytes] = []
        rest = self._received.partition(b"\r\n\r\n")[2]
        while b"\r\n" in rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            if len(rest) < length + 2:
                break
            found.append(rest[:length])
            rest = rest[length + 2 :]
        return found

    @property
    def frames(self) -> list[Frame]:
        """The frames that came whole."""
        *blocks, _ = b"".join(self.chunks).decode().split("\n\n")
        return [frame for frame in map(parse_frame, blocks) if not frame.comment]
