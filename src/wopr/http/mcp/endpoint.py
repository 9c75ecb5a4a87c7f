"""The path `/mcp`: MCP over streamable HTTP, with the keys of the API.

It is not an operation of the API and is not part of the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio
import anyio.abc
import anyio.to_thread

from wopr.http.endpoint import AppState, Endpoint, log_request
from wopr.http.limits import OpenStream
from wopr.http.mcp import PATH
from wopr.http.operation import Operation
from wopr.http.request import Message, Receive, Request, Scope, Send
from wopr.http.response import (
    LAST_CHUNK_SECONDS,
    Response,
    StreamResponse,
    error_response,
    send_response,
)
from wopr.process.settings import Settings
from wopr.protocol.errors import Forbidden, NotProvided, Unavailable, WoprError

if TYPE_CHECKING:
    from wopr.http.mcp.server import SessionLimit


def _check_enabled(settings: Settings) -> None:
    if not settings.serves_mcp:
        raise NotProvided("MCP is disabled on this host", requiredCapability="supportedTransports")


async def _check_origin(request: Request) -> Response:
    """Refuse a request from a web page of another origin."""
    origin = request.header(b"origin")
    if origin is not None and not _is_allowed_origin(origin, request):
        raise Forbidden(
            f"the origin {origin[:100]!r} may not call this host; "
            "the operator can allow it with WOPR_MCP_ORIGINS",
            field="Origin",
        )
    # The MCP library reads the body again. It is read here to apply the limits of bodies.
    request.store_body(await request.body())
    return Response(200)


def _is_allowed_origin(origin: str, request: Request) -> bool:
    """Return whether an origin is the host itself or configured. `Host` headers are not trusted."""
    settings = request.host.settings
    if origin in (settings.public_url, *settings.mcp_origins.split(",")):
        return True
    address, port = request.scope["server"]
    own = {f"[{address}]" if ":" in address else address}
    if address in ("127.0.0.1", "::1"):
        own.add("localhost")
    return origin in {f"http://{name}:{port}" for name in own}


# Authenticates and limits every MCP request. The operations of the API that it then calls check
# their own scopes.
_MCP_OPERATION: Final = Operation(
    name="mcp",
    method="GET",
    path=PATH,
    handler=_check_origin,
    summary="Serve MCP",
    tag="mcp",
    scope="",
    check_enabled=_check_enabled,
    is_extension=True,
)


class McpEndpoint(Endpoint):
    """The ASGI application of the path `/mcp` with all its methods."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state, {})
        self._tasks: anyio.abc.TaskGroup | None = None
        self._loading = anyio.Lock()
        self._limit: SessionLimit | None = None

    @asynccontextmanager
    async def accept_requests(self) -> AsyncGenerator[None, None]:
        """Serve MCP during the block."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            yield
            tasks.cancel_scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        state = self._state
        if state.host is None or self._tasks is None:
            await send_response(send, error_response(Unavailable("the host is starting")))
            return
        request = Request(state.host, scope, receive, state.request_limits)
        began = state.clock()
        sent = _TrackedSend(send)
        try:
            refusal = await self._respond(request, _MCP_OPERATION)
            if isinstance(refusal, Response) and refusal.status >= 400:
                await send_response(sent, refusal)
            else:
                with self.streaming(request) as opened:
                    await self._serve_mcp(opened, scope, request.receive, sent)
        finally:
            request.close()
        seconds = state.clock() - began
        state.host.metrics.record_response(_MCP_OPERATION.name, sent.status, seconds)
        log_request(request, _MCP_OPERATION.name, _MCP_OPERATION.path, sent.status, seconds)

    async def _execute(self, request: Request, operation: Operation) -> Response | StreamResponse:
        """Check a request. It counts as a stream, because it may wait for a run or for messages."""
        response = await super()._execute(request, operation)
        self.streams.admit(request.caller)
        return response

    async def _serve_mcp(
        self, opened: OpenStream, scope: Scope, receive: Receive, sent: _TrackedSend
    ) -> None:
        """Serve an MCP request until its response is complete or the host stops it."""
        limit = await self._session_limit()
        from wopr.http.mcp.server import session_owner

        principal = opened.principal
        async with anyio.create_task_group() as tasks:
            opened.scope = tasks.cancel_scope

            async def until_stopping() -> None:
                await self._state.stopping.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(until_stopping)
            # Only the key that opened a session can use it.
            await limit.serve(principal, {**scope, "user": session_owner(principal)}, receive, sent)
            tasks.cancel_scope.cancel()
        with anyio.move_on_after(LAST_CHUNK_SECONDS if opened.reason else None):
            await sent.finish(opened.reason or Unavailable("the host is stopping"))

    async def _session_limit(self) -> SessionLimit:
        """Return the object that serves MCP requests and limits sessions.

        The MCP server is imported at first use, because the import is slow.
        """
        async with self._loading:
            if self._limit is None and self._tasks is not None:
                await anyio.to_thread.run_sync(_import_server)
                from wopr.http.mcp.server import run_sessions

                limit: SessionLimit = await self._tasks.start(run_sessions, self._state)
                self._limit = limit
        if self._limit is None:
            raise Unavailable("the host is stopping")
        return self._limit


def _import_server() -> None:
    import wopr.http.mcp.server as _  # noqa: F401 - in a thread, because the import is slow


class _TrackedSend:
    """Sends messages to the client and records the status and whether the response is complete."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self._is_complete = False

    async def __call__(self, message: Message) -> None:
        """Send a message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            self._is_complete = not message.get("more_body", False)
        await self._send(message)

    async def finish(self, reason: WoprError) -> None:
        """End an incomplete response."""
        if not self.status:
            await send_response(self, error_response(reason))
        elif not self._is_complete:
            await self._send({"type": "http.response.body", "body": b""})
