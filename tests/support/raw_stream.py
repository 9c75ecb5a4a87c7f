"""A reader of an event stream with its own socket, which reads only on request."""

from __future__ import annotations

import socket
from typing import Self

from tests.support.client import DEADLINE_SECONDS, Frame, Wire, parse_frame
from tests.support.definitions import node, variable, workflow
from tests.support.eventually import eventually
from tests.support.host import ServedHost
from wopr.protocol.documents import JsonObject

# Small, so that the host's buffers fill up and not those of the operating system.
RECEIVE_BUFFER_BYTES = 8 * 1024


def long_log(nodes: int = 20, kilobytes: int = 100) -> tuple[JsonObject, JsonObject]:
    """Return a workflow with an event of so many kilobytes per node, and its inputs."""
    payload = {"type": "variable", "variableName": "payload"}
    names = [f"echo{number}" for number in range(nodes)]
    echoes = [node(name, "core.identity", inputs={"payload": payload}) for name in names]
    definition = workflow(echoes, variables=[variable("payload", "object", required=True)])
    return definition, {"payload": {"text": "x" * kilobytes * 1000}}


def long_run(wire: Wire, nodes: int = 20, kilobytes: int = 100) -> str:
    """Run the workflow of `long_log` to its end and return the run's id.

    No large response is read: a host with a short send timeout closes the connection of a client
    that a busy machine stops in the middle of one.
    """
    definition, inputs = long_log(nodes, kilobytes)
    wire.create(wire.register(definition), inputs)
    found = {"workflowId": definition["id"]}
    eventually(lambda: wire.document("/v1/runs", params=found)["items"][0]["status"] == "completed")
    return str(wire.document("/v1/runs", params=found)["items"][0]["runId"])


class RawStream:
    """One request over a separate socket; nothing is received until `receive` is called."""

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
        """Return everything that was received."""
        return self._received

    @property
    def chunks(self) -> list[bytes]:
        """Return the complete chunks of the body."""
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
        """Return the complete frames."""
        *blocks, _ = b"".join(self.chunks).decode().split("\n\n")
        return [frame for frame in map(parse_frame, blocks) if not frame.comment]
