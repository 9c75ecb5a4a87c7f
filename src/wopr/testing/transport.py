"""Requests to an ASGI application of this same process, streams included, without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.abc
import httpx
from anyio.streams.memory import MemoryObjectReceiveStream

from wopr.http.app import App
from wopr.http.asgi import Message, Receive, Scope

_BODY = "http.response.body"


class InProcess(httpx.AsyncBaseTransport):
    """Hands requests to an application; a response can be read while it is still being written."""

    def __init__(self, app: App, tasks: anyio.abc.TaskGroup) -> None:
        self._app = app
        self._tasks = tasks

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Serve one request in a task of its own, and answer as soon as its head is there."""
        body = b"".join([part async for part in _parts(request)])
        messages, received = anyio.create_memory_object_stream[Message](0)
        gone = anyio.Event()

        async def serve() -> None:
            with messages:
                await self._app(_scope(request), _receive(body, gone), _send)

        async def _send(message: Message) -> None:
            try:
                await messages.send(message)
            except anyio.BrokenResourceError:
                gone.set()

        self._tasks.start_soon(serve)
        head = await received.receive()
        return httpx.Response(
            head["status"], headers=head["headers"], stream=_Body(received, gone), request=request
        )


class _Body(httpx.AsyncByteStream):
    """The rest of a response. Whoever stops reading is gone for the application too."""

    def __init__(self, received: MemoryObjectReceiveStream[Message], gone: anyio.Event) -> None:
        self._received = received
        self._gone = gone

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for message in self._received:
            if message["type"] == _BODY:
                # A large body is sent in slices, which are views of it.
                yield bytes(message.get("body", b""))
                if not message.get("more_body", False):
                    return

    async def aclose(self) -> None:
        self._gone.set()
        self._received.close()


async def _parts(request: httpx.Request) -> AsyncIterator[bytes]:
    if isinstance(request.stream, httpx.AsyncByteStream):
        async for part in request.stream:
            yield part


def _receive(body: bytes, gone: anyio.Event) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if pending:
            return pending.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


def _scope(request: httpx.Request) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "root_path": "",
        "query_string": request.url.query,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": ("in-process", 0),
        "server": (request.url.host, request.url.port or 80),
    }
