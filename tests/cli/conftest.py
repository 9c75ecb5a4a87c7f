"""A host with predefined responses over real sockets, and the command line that calls it."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any, ClassVar

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from typer.testing import CliRunner, Result

from wopr.cli.main import app

STARTED = "2026-01-02T03:04:05.000Z"


class Cut(Exception):
    """Interrupts the connection."""


@dataclass
class FakeHost:
    """The predefined responses of a host, and the requests that it received."""

    url: str
    requests: list[Request] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    answers: dict[str, list[Response]] = field(default_factory=dict)
    streams: dict[str, list[Sequence[str | Cut]]] = field(default_factory=dict)

    CUT: ClassVar = Cut()

    def answer(
        self, call: str, body: object, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        """Set the response to `METHOD /path`; more follow in order, and the last one repeats."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Date": formatdate(usegmt=True), **(headers or {})}
        response = Response(raw, status, sent, media_type="application/json")
        self.answers.setdefault(call, []).append(response)

    def refuse(
        self, call: str, status: int, code: str, message: str = "no", **details: Any
    ) -> None:
        self.answer(call, {"error": code, "message": message, "details": details}, status)

    def stream(self, run_id: str, *connections: Sequence[str | Cut]) -> None:
        """Serve the run's events, one script per connection."""
        self.streams[f"GET /v1/runs/{run_id}/events"] = list(connections)

    def run(self, run_id: str = "r1", *, status: str = "completed", **more: Any) -> None:
        """Accept the creation of a run and show it with this status."""
        accepted = {
            "runId": run_id,
            "workflowId": "hello",
            "status": "running",
            "eventsUrl": f"/v1/runs/{run_id}/events",
            "statusUrl": f"/v1/runs/{run_id}",
            "startedAt": STARTED,
        }
        snapshot = {"runId": run_id, "workflowId": "hello", "status": status, "startedAt": STARTED}
        self.answer("POST /v1/runs", accepted, 201)
        self.answer(f"GET /v1/runs/{run_id}", {**snapshot, **more})

    def calls(self) -> list[str]:
        return [f"{request.method} {request.url.path}" for request in self.requests]

    def last_event_ids(self) -> list[str | None]:
        return [
            request.headers.get("last-event-id")
            for request in self.requests
            if request.url.path.endswith("/events")
        ]

    @staticmethod
    def event(sequence: int, event_type: str, node_id: str | None = None, **payload: Any) -> str:
        """Return one SSE frame as it is sent."""
        document = {
            "eventId": f"e{sequence}",
            "runId": "r1",
            "type": event_type,
            "payload": payload,
            "timestamp": f"2026-01-02T03:04:05.{sequence:03d}Z",
            "sequence": sequence,
            **({} if node_id is None else {"nodeId": node_id}),
        }
        data = json.dumps(document, ensure_ascii=False)
        return f"id: {sequence}\nevent: {event_type}\ndata: {data}\n\n"

    async def respond(self, request: Request) -> Response:
        self.requests.append(request)
        raw = await request.body()
        self.bodies.append(json.loads(raw) if raw else None)
        call = f"{request.method} {request.url.path}"
        if self.streams.get(call):
            scripts = self.streams[call]
            script = scripts.pop(0) if len(scripts) > 1 else scripts[0]
            return StreamingResponse(_play(script), media_type="text/event-stream")
        if call in self.answers:
            canned = self.answers[call]
            return canned.pop(0) if len(canned) > 1 else canned[0]
        return Response(b'{"error":"not_found","message":"there is no such thing"}', 404)


async def _play(script: Sequence[str | Cut]) -> AsyncIterator[bytes]:
    for chunk in script:
        if isinstance(chunk, Cut):
            raise chunk
        yield chunk.encode()


class _Switchboard:
    """The served app; every test sets its own host."""

    host: FakeHost

    async def respond(self, request: Request) -> Response:
        return await self.host.respond(request)


@pytest.fixture(scope="session")
def switchboard() -> Iterator[tuple[_Switchboard, str]]:
    board = _Switchboard()
    asgi = Starlette(routes=[Route("/{path:path}", board.respond, methods=["GET", "POST"])])
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        asgi, log_config=None, log_level=60, lifespan="off", ws="none", date_header=False
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield board, f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(timeout=10)


@pytest.fixture
def host(switchboard: tuple[_Switchboard, str]) -> FakeHost:
    board, url = switchboard
    board.host = FakeHost(url)
    return board.host


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WOPR_")]:
        monkeypatch.delenv(name)
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


Wopr = Callable[..., Result]


@pytest.fixture
def local() -> Wopr:
    """Run the command line without settings."""

    def invoke(*args: str, stdin: str | None = None, **variables: str) -> Result:
        return CliRunner().invoke(app, list(args), input=stdin, env=variables)

    return invoke


@pytest.fixture
def wopr(host: FakeHost, local: Wopr) -> Wopr:
    """Run the command line against the fake host."""

    def invoke(*args: str, stdin: str | None = None, **variables: str) -> Result:
        set_up = {"WOPR_URL": host.url, "WOPR_API_KEY": "secret-key", **variables}
        return local(*args, stdin=stdin, **set_up)

    return invoke
