"""`/mcp`: the host for MCP clients, over streamable HTTP and behind the same keys as the API.

It is no operation of the API: what goes over it is MCP's own, and stands in no OpenAPI document.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio
import anyio.abc
import anyio.to_thread

from wopr.http.answers import Answer, Stream, error_answer
from wopr.http.asgi import Message, Receive, Scope, Send
from wopr.http.endpoint import FAREWELL_SECONDS, Endpoint, Shared, log_request, send_answer
from wopr.http.exchange import Exchange
from wopr.http.operation import Operation
from wopr.http.streams import OpenStream
from wopr.protocol.errors import Forbidden, NotProvided, Unavailable, WoprError
from wopr.runtime.mcp_servers import serves_mcp
from wopr.runtime.settings import Settings

if TYPE_CHECKING:
    from wopr.http.mcp_session_limit import SessionLimit

PATH: Final = "/mcp"


def _offered(settings: Settings) -> None:
    if not serves_mcp(settings):
        raise NotProvided("MCP is not served here", requiredCapability="supportedTransports")


async def _admitted(exchange: Exchange) -> Answer:
    """Let a request in unless a page of another site sent it."""
    origin = exchange.header(b"origin")
    if origin is not None and not _is_own(origin, exchange):
        raise Forbidden(
            f"the origin {origin[:100]!r} may not call this host; "
            "the operator can allow it with WOPR_MCP_ORIGINS",
            field="Origin",
        )
    # The library reads it again. Here it is counted, and refused like that of any other request.
    exchange.give_back(await exchange.body())
    return Answer(200)


def _is_own(origin: str, exchange: Exchange) -> bool:
    """Whether an origin is the host's own or configured; the `Host` header is the client's claim."""
    settings = exchange.host.settings
    if origin in (settings.public_url, *settings.mcp_origins.split(",")):
        return True
    address, port = exchange.scope["server"]
    own = {f"[{address}]" if ":" in address else address}
    if address in ("127.0.0.1", "::1"):
        own.add("localhost")
    return origin in {f"http://{name}:{port}" for name in own}


# What every request passes first: who calls, how often, from where. Each step of what it then asks
# for is an operation of the API, with the scope that this needs.
_GATE: Final = Operation(
    name="mcp",
    method="GET",
    path=PATH,
    handler=_admitted,
    summary="Speak MCP",
    tag="mcp",
    scope="",
    offered=_offered,
    is_extension=True,
)


class McpEndpoint(Endpoint):
    """The path with all its methods, as an ASGI application."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared, {})
        self._tasks: anyio.abc.TaskGroup | None = None
        self._loading = anyio.Lock()
        self._limit: SessionLimit | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None, None]:
        """Be ready to serve for as long as the block lasts."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            yield
            tasks.cancel_scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        shared = self._shared
        if shared.host is None or self._tasks is None:
            await send_answer(send, error_answer(Unavailable("the host is starting")))
            return
        exchange = Exchange(shared.host, scope, receive, shared.throttle)
        began = shared.clock()
        sent = _Sent(send)
        try:
            refusal = await self._answer(exchange, _GATE)
            if isinstance(refusal, Answer) and refusal.status >= 400:
                await send_answer(sent, refusal)
            else:
                with self.streaming(exchange) as opened:
                    await self._speak(opened, scope, exchange.replay, sent)
        finally:
            exchange.close()
        seconds = shared.clock() - began
        shared.host.metrics.answered(_GATE.name, sent.status, seconds)
        log_request(exchange, _GATE.name, _GATE.path, sent.status, seconds)

    async def _carry_out(self, exchange: Exchange, operation: Operation) -> Answer | Stream:
        """Let a request in. It counts as a stream, because it may wait for a run or for news."""
        answer = await super()._carry_out(exchange, operation)
        self.streams.admit(exchange.caller)
        return answer

    async def _speak(self, opened: OpenStream, scope: Scope, receive: Receive, sent: _Sent) -> None:
        """Speak MCP with a caller until the request is answered or the host ends it."""
        limit = await self._loaded()
        from wopr.http.mcp_sessions import owner

        principal = opened.principal
        async with anyio.create_task_group() as tasks:
            opened.scope = tasks.cancel_scope

            async def until_stopping() -> None:
                await self._shared.stopping.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(until_stopping)
            # Whoever opened a session is the only one who can go on with it.
            await limit.serve(principal, {**scope, "user": owner(principal)}, receive, sent)
            tasks.cancel_scope.cancel()
        with anyio.move_on_after(FAREWELL_SECONDS if opened.reason else None):
            await sent.finish(opened.reason or Unavailable("the host is stopping"))

    async def _loaded(self) -> SessionLimit:
        """What speaks MCP, loaded when it is first needed: that takes a while, and most need it never."""
        async with self._loading:
            if self._limit is None and self._tasks is not None:
                await anyio.to_thread.run_sync(_load)
                from wopr.http.mcp_sessions import run_sessions

                limit: SessionLimit = await self._tasks.start(run_sessions, self._shared)
                self._limit = limit
        if self._limit is None:
            raise Unavailable("the host is stopping")
        return self._limit


def _load() -> None:
    import wopr.http.mcp_sessions as _  # noqa: F401 - for the time that it takes


class _Sent:
    """What goes to the client, and how far it has come."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self._is_whole = False

    async def __call__(self, message: Message) -> None:
        """Send, and remember what was sent."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            self._is_whole = not message.get("more_body", False)
        await self._send(message)

    async def finish(self, reason: WoprError) -> None:
        """End an answer that the host has cut short."""
        if not self.status:
            await send_answer(self, error_answer(reason))
        elif not self._is_whole:
            await self._send({"type": "http.response.body", "body": b""})
