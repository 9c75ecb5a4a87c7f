"""A small server that accepts KAHN lines, and fails as configured."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar


class Script:
    """The behaviour of the server for the next pushes, and the lines it has accepted."""

    def __init__(self) -> None:
        self.max_body_bytes = 1_048_576
        # Each is a status with its headers and document, or None for an interrupted connection.
        self.failures: list[tuple[int, dict[str, str], Any] | None] = []
        self.lines: list[bytes] = []
        self.sizes: list[int] = []
        self.url = ""

    def fail(
        self, status: int, code: str, *, retry_after: int | None = None, **details: Any
    ) -> None:
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        document = {"error": code, "message": "not now", "details": details}
        self.failures.append((status, headers, document))

    def break_off(self) -> None:
        self.failures.append(None)

    def take(self, body: bytes) -> dict[str, Any]:
        self.sizes.append(len(body))
        lines = [line for line in body.split(b"\n") if line]
        new = [line for line in lines if line not in self.lines]
        self.lines += new
        runs = list(dict.fromkeys(json.loads(line)["run_id"] for line in lines))
        return {"accepted": len(new), "duplicate": len(lines) - len(new), "runs": runs}


class _Handler(BaseHTTPRequestHandler):
    script: ClassVar[Script]

    def do_GET(self) -> None:
        self._answer(200, {}, {"kahn": {"maxBodyBytes": self.script.max_body_bytes}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        failure = self.script.failures.pop(0) if self.script.failures else (0, {}, None)
        if failure is None:
            # Closed without lingering, so that the connection is reset and does not just end.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
        elif failure[0]:
            self._answer(*failure)
        else:
            self._answer(200, {}, self.script.take(body))

    def _answer(self, status: int, headers: dict[str, str], document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def finish(self) -> None:
        if self.connection.fileno() != -1:
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def ingest_server() -> Iterator[Script]:
    """Serve a script on loopback."""
    script = Script()
    handler = type("Handler", (_Handler,), {"script": script})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        script.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield script
        server.shutdown()
        thread.join(timeout=10)
