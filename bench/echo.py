"""The bare server: the host's HTTP stack with an application that does no work.

It decodes the body of a create request and encodes a response of the same size. `/fan` is the floor
of a stream with many readers: each waits for one event, and a POST sends the event to all of them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import msgspec
import uvicorn

from wopr.protocol.runs import CreateRun, RunAccepted

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

FRAME = b"id: 3\nevent: run.resumed\ndata: %b\n\n" % (b"{%b}" % (b" " * 250))
_DECODER = msgspec.json.Decoder(CreateRun)
_ENCODER = msgspec.json.Encoder()
_RUN_ID = "00000000-0000-7000-8000-000000000000"


class Echo:
    """A plain ASGI application."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["path"] != "/fan":
            await self._echo(receive, send)
        elif scope["method"] == "GET":
            await self._follow(send)
        else:
            event, self._event = self._event, asyncio.Event()
            event.set()
            await self._echo(receive, send)

    async def _echo(self, receive: Receive, send: Send) -> None:
        message = await receive()
        request = _DECODER.decode(message["body"])
        body = _ENCODER.encode(
            RunAccepted(
                run_id=_RUN_ID,
                workflow_id=request.workflow_id,
                status="running",
                events_url=f"/v1/runs/{_RUN_ID}/events",
                status_url=f"/v1/runs/{_RUN_ID}",
                started_at="2026-01-01T00:00:00.000Z",
            )
        )
        headers = [
            (b"content-length", str(len(body)).encode()),
            (b"content-type", b"application/json"),
        ]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _follow(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b": open\n\n", "more_body": True})
        while True:
            await self._event.wait()
            await send({"type": "http.response.body", "body": FRAME, "more_body": True})


def main() -> None:
    """Serve on a free port and print its address."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = uvicorn.Config(
        Echo(),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        server_header=False,
        log_config=None,
        log_level="critical",
        timeout_graceful_shutdown=1,
    )
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
