"""An external service that counts its requests, and responds as configured."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Receiver:
    """The received requests, and the configured responses."""

    def __init__(self) -> None:
        self.keys: list[str | None] = []
        self.statuses: list[int] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/effects"


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Receive for as long as the block lasts."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            receiver.keys.append(self.headers.get("idempotency-key"))
            status = receiver.statuses.pop(0) if receiver.statuses else 200
            receiver.may_answer.wait(60)
            try:
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()
            except OSError:
                return  # the client process has died

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
