"""A server on loopback that speaks the OpenAI chat API and says what the test has scripted.

Every model name has a script of its own, so that tests share one server. A script is a list of
turns, taken in order; a request without a turn is answered 418 and shows in `requests`.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

from wopr.protocol.documents import Json, JsonObject

DEADLINE_SECONDS = 20.0
_ids = count(1)


class Turn:
    """What a model does when it is asked."""


@dataclass(frozen=True)
class Say(Turn):
    """Say a text, in these pieces when it is streamed."""

    text: str
    pieces: tuple[str, ...] = ()
    reasoning: str = ""
    finish: str = "stop"
    tokens: tuple[int, int] = (10, 5)


@dataclass(frozen=True)
class CallTools(Turn):
    """Ask for tools: their names and arguments; arguments that are text go out as they are."""

    calls: tuple[tuple[str, Json], ...]
    text: str = ""
    tokens: tuple[int, int] = (10, 5)


@dataclass(frozen=True)
class Refuse(Turn):
    """Decline to answer."""

    text: str = "I cannot help with that."


@dataclass(frozen=True)
class Fail(Turn):
    """Answer with an error."""

    status: int
    retry_after: str = ""
    message: str = "the provider is out of order"


@dataclass(frozen=True)
class Hang(Turn):
    """Take the request and say nothing until the server ends."""


@dataclass(frozen=True)
class Garble(Turn):
    """Answer 200 with a body that is no JSON."""


@dataclass(frozen=True)
class BreakOff(Turn):
    """Begin to say a text, and hang up."""

    text: str


@dataclass
class Service:
    """A plain HTTP service beside the models, for tools: path → what it answers."""

    answers: dict[str, tuple[int, Json]] = field(default_factory=dict[str, tuple[int, Json]])
    requests: list[JsonObject] = field(default_factory=list[JsonObject])


class OpenAiServer:
    """The scripted models and what they were asked."""

    def __init__(self) -> None:
        self.scripts: defaultdict[str, list[Turn]] = defaultdict(list)
        self.requests: defaultdict[str, list[JsonObject]] = defaultdict(list)
        self.authorizations: defaultdict[str, list[str]] = defaultdict(list)
        self.service = Service()
        self.ends = threading.Event()
        self.url = ""
        self._lock = threading.Lock()

    def script(self, turns: Sequence[Turn]) -> str:
        """Give a new model its turns and return its name."""
        name = f"model-{next(_ids)}"
        self.scripts[name] = list(turns)
        return name

    def take(self, request: JsonObject, authorization: str) -> Turn | None:
        """Keep a request and say whose turn it is."""
        name = str(request["model"])
        with self._lock:
            self.requests[name].append(request)
            self.authorizations[name].append(authorization)
            return self.scripts[name].pop(0) if self.scripts[name] else None

    def asked(self, name: str) -> int:
        """How often a model was asked."""
        return len(self.requests[name])

    def prompt(self, name: str, place: int = 0) -> str:
        """All that a model was told in one request, as text."""
        return json.dumps(self.requests[name][place]["messages"], ensure_ascii=False)

    def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something has come to pass."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not is_so():
            assert time.monotonic() < deadline, "it did not come to pass in time"
            time.sleep(0.01)


class Handler(BaseHTTPRequestHandler):
    """Plays the turns."""

    protocol_version = "HTTP/1.1"
    server_state: OpenAiServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.path.endswith("/chat/completions"):
            self._serve(body)
            return
        request: JsonObject = json.loads(body)
        turn = self.server_state.take(request, self.headers.get("Authorization", ""))
        self._play(turn, request)

    def do_GET(self) -> None:
        self._serve(b"")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _serve(self, body: bytes) -> None:
        service = self.server_state.service
        headers = {name.lower(): value for name, value in self.headers.items()}
        service.requests.append(
            {"method": self.command, "path": self.path, "headers": headers, "body": body.decode()}
        )
        status, answer = service.answers.get(self.path.partition("?")[0], (404, {"error": "none"}))
        self._json(status, answer)

    def _play(self, turn: Turn | None, request: JsonObject) -> None:
        match turn:
            case None:
                self._json(418, {"error": {"message": "nobody scripted this"}})
            case Fail():
                extra = {"Retry-After": turn.retry_after} if turn.retry_after else {}
                self._json(turn.status, {"error": {"message": turn.message}}, extra)
            case Hang():
                self.server_state.ends.wait()
                self.close_connection = True
            case Garble():
                self._bytes(200, b"<html>not what you think", "application/json")
            case BreakOff():
                self._stream([_chunk(request, {"content": turn.text})], complete=False)
            case _ if request.get("stream"):
                self._stream(_chunks(turn, request), complete=True)
            case _:
                self._json(200, _whole(turn, request))

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

    def _stream(self, chunks: Sequence[JsonObject], *, complete: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        # A length that is never reached: whoever hangs up early is found out.
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in chunks:
            self._piece(f"data: {json.dumps(chunk)}\n\n".encode())
        if complete:
            self._piece(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = not complete

    def _piece(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def _usage(tokens: tuple[int, int]) -> JsonObject:
    asked, said = tokens
    return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}


def _tool_calls(turn: CallTools) -> list[JsonObject]:
    return [
        {
            "index": place,
            "id": f"call_{place}_{name}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": given if isinstance(given, str) else json.dumps(given),
            },
        }
        for place, (name, given) in enumerate(turn.calls)
    ]


def _chunk(request: JsonObject, delta: JsonObject, finish: str | None = None) -> JsonObject:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": request["model"],
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def _chunks(turn: Turn, request: JsonObject) -> list[JsonObject]:
    message, finish, tokens = _message(turn)
    deltas: list[JsonObject] = [{"role": "assistant"}]
    deltas += [{n: message[n]} for n in ("reasoning_content", "refusal") if n in message]
    pieces = turn.pieces if isinstance(turn, Say) else ()
    deltas += [{"content": piece} for piece in pieces or [message["content"] or ""]]
    deltas += [{"tool_calls": message["tool_calls"]}] if "tool_calls" in message else []
    counted = _chunk(request, {}) | {"choices": [], "usage": _usage(tokens)}
    return [*(_chunk(request, delta) for delta in deltas), _chunk(request, {}, finish), counted]


def _whole(turn: Turn, request: JsonObject) -> JsonObject:
    message, finish, tokens = _message(turn)
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": request["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": _usage(tokens),
    }


def _message(turn: Turn) -> tuple[JsonObject, str, tuple[int, int]]:
    """A turn as a message, with why it ended and how many tokens it took."""
    message: JsonObject = {"role": "assistant", "content": None}
    match turn:
        case Say():
            thought = {"reasoning_content": turn.reasoning} if turn.reasoning else {}
            return message | thought | {"content": turn.text}, turn.finish, turn.tokens
        case CallTools():
            wishes = {"content": turn.text or None, "tool_calls": _tool_calls(turn)}
            return message | wishes, "tool_calls", turn.tokens
        case Refuse():
            return message | {"refusal": turn.text}, "stop", (10, 5)
        case _:
            raise AssertionError(f"{turn} is no message")


@contextmanager
def openai_server() -> Iterator[OpenAiServer]:
    """Serve for as long as the block lasts."""
    state = OpenAiServer()
    handler = type("BoundHandler", (Handler,), {"server_state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.ends.set()
        server.shutdown()
        server.server_close()
        thread.join()
