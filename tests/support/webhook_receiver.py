"""A receiver on loopback that records requests and responds as configured."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from wopr.protocol.documents import JsonObject

DEADLINE_SECONDS = 60.0


@dataclass(frozen=True)
class Received:
    """One received request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> JsonObject:
        found: JsonObject = json.loads(self.body)
        return found


Behave = Callable[[Received, "Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Pass every request to the receiver's behaviour."""

    protocol_version = "HTTP/1.1"
    receiver: Receiver

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Received(self.path, headers, self.rfile.read(length))
        if len(request.body) < length:
            # The sender died before it had sent everything.
            self.close_connection = True
            return
        self.receiver.begun(request)
        self.receiver.behave(request, self)

    do_GET = do_POST

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Respond, and record the request as accepted if that is so."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def take(request: Received, handler: Handler) -> None:
    """Behave like a healthy receiver."""
    handler.answer(204)


@dataclass
class Receiver:
    """The received requests, and the behaviour for the next one."""

    url: str = ""
    behave: Behave = take
    requests: list[Received] = field(default_factory=list[Received])
    _news: threading.Condition = field(default_factory=threading.Condition)

    def begun(self, request: Received) -> None:
        with self._news:
            self.requests.append(request)
            self._news.notify_all()

    def until(self, is_enough: Callable[[list[Received]], bool]) -> list[Received]:
        """Wait until enough requests were received."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        with self._news:
            while not is_enough(self.requests):
                left = deadline - time.monotonic()
                assert left > 0, [request.body[:200] for request in self.requests]
                self._news.wait(left)
            return list(self.requests)

    def until_ended(self, *run_ids: str) -> list[Received]:
        """Wait until the ends of these runs were received."""

        def have_ended(requests: list[Received]) -> bool:
            ends = {r.json["runId"] for r in requests if r.json["type"] == "run.completed"}
            return ends >= set(run_ids)

        return self.until(have_ended)


@contextmanager
def receiving(behave: Behave = take) -> Iterator[Receiver]:
    """Run a receiver for the length of the block."""
    receiver = Receiver(behave=behave)
    bound = type("Bound", (Handler,), {"receiver": receiver})
    server = ThreadingHTTPServer(("127.0.0.1", 0), bound)
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
