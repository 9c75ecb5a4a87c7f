"""An HTTPX transport to an ASGI application of this process, including streams."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.abc
import httpx
from anyio.streams.memory import MemoryObjectReceiveStream

from wopr.http.app import App
from wopr.http.request import Message, Receive, Scope

_BODY = "http.response.body"


class InProcessTransport(httpx.AsyncBaseTransport):
    """Passes requests to an application. A response can be read before it is complete."""

    def __init__(self, app: App, tasks: anyio.abc.TaskGroup) -> None:
        self._app = app
        self._tasks = tasks

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Serve a request in a task, and return the response when its head is complete."""
        body = b"".join([part async for part in _request_parts(request)])
        messages, received = anyio.create_memory_object_stream[Message](0)
        disconnected = anyio.Event()

        async def serve() -> None:
            with messages:
                await self._app(_scope(request), _receive(body, disconnected), _send)

        async def _send(message: Message) -> None:
            try:
                await messages.send(message)
            except anyio.BrokenResourceError:
                disconnected.set()

        self._tasks.start_soon(serve)
        head = await received.receive()
        return httpx.Response(
            head["status"],
            headers=head["headers"],
            stream=_Body(received, disconnected),
            request=request,
        )


class _Body(httpx.AsyncByteStream):
    """The body of a response. Closing it disconnects the application."""

    def __init__(
        self, received: MemoryObjectReceiveStream[Message], disconnected: anyio.Event
    ) -> None:
        self._received = received
        self._disconnected = disconnected

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for message in self._received:
            if message["type"] == _BODY:
                # A large body is sent as slices, which are memory views.
                yield bytes(message.get("body", b""))
                if not message.get("more_body", False):
                    return

    async def aclose(self) -> None:
        self._disconnected.set()
        self._received.close()


async def _request_parts(request: httpx.Request) -> AsyncIterator[bytes]:
    if isinstance(request.stream, httpx.AsyncByteStream):
        async for part in request.stream:
            yield part


def _receive(body: bytes, disconnected: anyio.Event) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if pending:
            return pending.pop()
        await disconnected.wait()
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
