"""A receiver on loopback: it takes requests, keeps them, and answers as the test says."""

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
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> JsonObject:
        found: JsonObject = json.loads(self.body)
        return found


Behave = Callable[[Received, "Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Hands every request to the receiver's behaviour."""

    protocol_version = "HTTP/1.1"
    receiver: Receiver

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Received(self.path, headers, self.rfile.read(length))
        if len(request.body) < length:
            # The sender died before it had said all.
            self.close_connection = True
            return
        self.receiver.begun(request)
        self.receiver.behave(request, self)

    do_GET = do_POST

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Answer, and count the request as taken when that says so."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def take(request: Received, handler: Handler) -> None:
    """The way of a receiver that is well."""
    handler.answer(204)


@dataclass
class Receiver:
    """What came in so far, and how the next request is treated."""

    url: str = ""
    behave: Behave = take
    requests: list[Received] = field(default_factory=list[Received])
    _news: threading.Condition = field(default_factory=threading.Condition)

    def begun(self, request: Received) -> None:
        with self._news:
            self.requests.append(request)
            self._news.notify_all()

    def until(self, is_enough: Callable[[list[Received]], bool]) -> list[Received]:
        """Wait until what came in is enough."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        with self._news:
            while not is_enough(self.requests):
                left = deadline - time.monotonic()
                assert left > 0, [request.body[:200] for request in self.requests]
                self._news.wait(left)
            return list(self.requests)

    def until_ended(self, *run_ids: str) -> list[Received]:
        """Wait until the end of these runs has come in."""

        def have_ended(requests: list[Received]) -> bool:
            ends = {r.json["runId"] for r in requests if r.json["type"] == "run.completed"}
            return ends >= set(run_ids)

        return self.until(have_ended)


@contextmanager
def receiving(behave: Behave = take) -> Iterator[Receiver]:
    """A receiver for as long as the block lasts."""
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
