"""A server on loopback with a provider's API and scripted answers.

Every model name has its own script, so that tests share one server. A script is a list of turns,
used in order; a request without a turn is answered 418 and shows in `requests`.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import ClassVar, TypeVar

from tests.models.turns import BreakOff, Fail, FailLate, Garble, GarbleLate, Hang, Say, Turn
from wopr.protocol.documents import Json, JsonObject

AnyServer = TypeVar("AnyServer", bound="ModelServer")
_ids = count(1)


@dataclass
class Service:
    """A plain HTTP service beside the models, for tools: path → response."""

    answers: dict[str, tuple[int, Json]] = field(default_factory=dict[str, tuple[int, Json]])
    requests: list[JsonObject] = field(default_factory=list[JsonObject])


class ModelServer(ABC):
    """The scripted models and the received requests; each subclass has the API of one provider."""

    # The name of the provider in a host.
    provider: ClassVar[str]
    # The path at the end of the server's address.
    base: ClassVar[str] = ""
    # The beginning of the names of its models.
    family: ClassVar[str]
    # The header with the key.
    key_header: ClassVar[str]
    # The member of a request that has the messages.
    messages_member: ClassVar[str] = "messages"
    # Whether a refusal has a text.
    explains_refusals: ClassVar[bool] = True

    def __init__(self) -> None:
        self.scripts: defaultdict[str, list[Turn]] = defaultdict(list)
        self.requests: defaultdict[str, list[JsonObject]] = defaultdict(list)
        self.authorizations: defaultdict[str, list[str]] = defaultdict(list)
        self.service = Service()
        self.ends = threading.Event()
        self.url = ""
        self._lock = threading.Lock()

    @abstractmethod
    def model_request(self, path: str, body: bytes) -> JsonObject | None:
        """Return the model request with `model` and `stream`; None when it is for the service."""

    @abstractmethod
    def whole(self, turn: Turn, request: JsonObject) -> Json:
        """Return an answer in one piece."""

    @abstractmethod
    def streamed(self, turn: Turn, request: JsonObject) -> list[str]:
        """Return an answer as server-sent events."""

    @abstractmethod
    def error(self, turn: Fail) -> Json:
        """Return the body of an error."""

    @abstractmethod
    def schema_of(self, request: JsonObject) -> JsonObject:
        """Return the schema in which an answer is requested."""

    def conclusion(self, answer: JsonObject) -> Turn:
        """Return the turn in which a model with tools gives an answer with a schema."""
        return Say(json.dumps(answer))

    @property
    def address(self) -> str:
        """Return the setting of an operator for this model server."""
        return f"{self.provider}={self.url}{self.base}"

    def script(self, turns: Sequence[Turn]) -> str:
        """Give a new model its turns and return its name."""
        name = f"{self.family}-{next(_ids)}"
        self.scripts[name] = list(turns)
        return name

    def take(self, request: JsonObject, authorization: str) -> Turn | None:
        """Record a request and return its turn."""
        name = str(request["model"])
        with self._lock:
            self.requests[name].append(request)
            self.authorizations[name].append(authorization)
            return self.scripts[name].pop(0) if self.scripts[name] else None

    def request_count(self, name: str) -> int:
        """Return how often a model was called."""
        return len(self.requests[name])

    def keys(self, name: str) -> list[str]:
        """Return the keys with which a model was called."""
        return [sent.removeprefix("Bearer ") for sent in self.authorizations[name]]

    def prompt(self, name: str, place: int = 0) -> str:
        """Return all messages of one request to a model as text."""
        return json.dumps(self.requests[name][place][self.messages_member], ensure_ascii=False)


class Handler(BaseHTTPRequestHandler):
    """Play the turns."""

    protocol_version = "HTTP/1.1"
    state: ModelServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = self.state.model_request(self.path, body)
        if request is None:
            self._serve(body)
            return
        turn = self.state.take(request, self.headers.get(self.state.key_header, ""))
        self._play(turn, request)

    def do_GET(self) -> None:
        self._serve(b"")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def _serve(self, body: bytes) -> None:
        service = self.state.service
        headers = {name.lower(): value for name, value in self.headers.items()}
        service.requests.append(
            {"method": self.command, "path": self.path, "headers": headers, "body": body.decode()}
        )
        status, answer = service.answers.get(self.path.partition("?")[0], (404, {"error": "none"}))
        self._json(status, answer)

    def _play(self, turn: Turn | None, request: JsonObject) -> None:
        match turn:
            case None:
                self._json(418, self.state.error(Fail(418, message="this model has no more turns")))
            case Fail():
                extra = {"Retry-After": turn.retry_after} if turn.retry_after else {}
                self._json(turn.status, self.state.error(turn), extra)
            case Hang():
                self.state.ends.wait()
                self.close_connection = True
            case Garble():
                self._bytes(200, b"<html>not JSON", "application/json")
            case BreakOff() | GarbleLate() | FailLate():
                events = self.state.streamed(Say(turn.text), request)
                begun, rest = events[: len(events) // 2], events[len(events) // 2 :]
                self._stream(
                    [*begun, *self._end_of(turn, rest)], complete=not isinstance(turn, BreakOff)
                )
            case _ if request.get("stream"):
                self._stream(self.state.streamed(turn, request), complete=True)
            case _:
                self._json(200, self.state.whole(turn, request))

    def _end_of(self, turn: Turn, rest: Sequence[str]) -> list[str]:
        """Return the events that replace the rest of an answer."""
        match turn:
            case GarbleLate():
                return [rest[0].rstrip()[:-3] + "\n\n"]
            case FailLate():
                error = self.state.error(Fail(529, message="too much to do"))
                return [f"event: error\ndata: {json.dumps(error)}\n\n"]
            case _:
                return []

    def _json(self, status: int, body: Json, headers: dict[str, str] | None = None) -> None:
        self._bytes(status, json.dumps(body).encode(), "application/json", headers)

    def _bytes(
        self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, events: Sequence[str], *, complete: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        # Chunked, so that a client notices a stream that is cut off.
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            self._piece(event.encode())
        if complete:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = not complete

    def _piece(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def no_message(turn: Turn) -> AssertionError:
    """Return the error for a turn that is not a message of a model."""
    return AssertionError(f"{turn} is not a message")


@contextmanager
def serving(state: AnyServer) -> Iterator[AnyServer]:
    """Serve for as long as the block lasts."""
    handler = type("BoundHandler", (Handler,), {"state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.ends.set()
        server.shutdown()
        server.server_close()
        thread.join()
