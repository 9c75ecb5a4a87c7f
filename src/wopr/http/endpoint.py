"""The way of a request: authenticate, rate limit, scope, then the handler; errors become envelopes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from uuid import uuid4

import anyio
import structlog

from wopr.http.answers import Answer, Stream, error_answer
from wopr.http.asgi import Receive, Scope, Send
from wopr.http.exchange import Exchange
from wopr.http.idempotency import Idempotency
from wopr.http.operation import Operation
from wopr.http.throttle import Throttle
from wopr.protocol.errors import Forbidden, NotFound, Unauthenticated, Unavailable, WoprError
from wopr.runtime.audit import correlation
from wopr.runtime.denials import Denials
from wopr.runtime.host import Host
from wopr.security.keys import Principal

log = structlog.get_logger("wopr.http")
NO_BODY = frozenset({204, 304})
# Whom a refused request without a valid key is put down to.
UNKNOWN = ""


class MethodNotAllowed(WoprError):
    """A path that exists, with another method."""

    default_code = "method_not_allowed"


class Shared:
    """What all endpoints of one served host have in common."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.host: Host | None = None
        self.throttle = Throttle(rate=0, max_in_flight=1, clock=clock)
        self.idempotency = Idempotency()
        self.stopping = anyio.Event()
        self.denials: Denials | None = None

    def open(self, host: Host) -> None:
        """Begin to serve a host."""
        self.host = host
        self.denials = Denials(host.audit, host.sources.now)
        self.throttle = Throttle(
            rate=host.settings.rate_limit,
            max_in_flight=host.settings.max_in_flight,
            clock=self.clock,
        )
        host.metrics.in_flight.set_function(lambda: self.throttle.in_flight)


class Endpoint:
    """One path with all its methods, as an ASGI application."""

    def __init__(self, shared: Shared, operations: Mapping[str, Operation]) -> None:
        self._shared = shared
        self._operations = operations
        self._allowed = ", ".join(sorted(operations))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        shared = self._shared
        host = shared.host
        if host is None:
            await send_answer(send, error_answer(Unavailable("the host is starting")))
            return
        operation = self._operations.get(scope["method"])
        began = shared.clock()
        shared.throttle.in_flight += 1
        try:
            exchange = Exchange(host, scope, receive)
            correlation.set(_trace_id(exchange))
            answer = await self._answer(exchange, operation)
            if isinstance(answer, Stream):
                headers = _trace_headers(exchange)
                await send_stream(send, receive, answer, shared.stopping, headers)
                return
            await send_answer(send, answer, _trace_headers(exchange))
        finally:
            shared.throttle.in_flight -= 1
        name = "unknown" if operation is None else operation.name
        seconds = shared.clock() - began
        host.metrics.answered(name, answer.status, seconds)
        log_request(exchange, name, answer.status, seconds)

    async def _answer(self, exchange: Exchange, operation: Operation | None) -> Answer | Stream:
        try:
            if operation is None:
                raise MethodNotAllowed(f"this path answers {self._allowed}", allow=self._allowed)
            return await self._carry_out(exchange, operation)
        except WoprError as error:
            if operation is not None and isinstance(error, Unauthenticated | Forbidden):
                await self.note_denied(exchange, operation, error)
            if error.status >= 500:
                error.details.setdefault("correlationId", uuid4().hex)
            return await self.refuse(exchange, error)
        except Exception as error:  # the outer edge of a request
            return await self.refuse(exchange, _internal(exchange, error))

    async def authenticate(self, exchange: Exchange) -> Principal:
        """Find who calls."""
        return await authenticate(exchange)

    async def refuse(self, exchange: Exchange, error: WoprError) -> Answer:
        """Say why a request was not carried out."""
        return error_answer(error, exchange.redactor)

    async def note_denied(self, exchange: Exchange, operation: Operation, error: WoprError) -> None:
        """Put on record that somebody tried what they may not do. A path may hold a token."""
        caller = exchange.principal
        if self._shared.denials is not None:
            await self._shared.denials.record(
                UNKNOWN if caller is None else caller.tenant,
                UNKNOWN if caller is None else caller.key_id,
                operation.action or operation.name,
                exchange.path.get("run_id") or operation.path,
                code=error.code,
                scopeRequired=error.details.get("scopeRequired"),
            )

    async def _carry_out(self, exchange: Exchange, operation: Operation) -> Answer | Stream:
        shared = self._shared
        if operation.scope is not None:
            exchange.principal = await self.authenticate(exchange)
            if operation.offered is not None:
                operation.offered(exchange.host.settings)
            shared.throttle.spend(exchange.principal.key_id)
            shared.throttle.admit()
            if operation.scope and not exchange.principal.may(operation.scope):
                raise Forbidden(
                    f"this key lacks the scope {operation.scope}", scopeRequired=operation.scope
                )
            await exchange.catch_up(exchange.path.get("run_id", ""))
            key = exchange.header(b"idempotency-key") if operation.mutates else None
            if key is not None:
                return await shared.idempotency.answer(exchange, operation, key)
        return await operation.handler(exchange)


async def authenticate(exchange: Exchange) -> Principal:
    """Find whose key this is. The refusal repeats nothing of what was presented."""
    presented = exchange.header(b"authorization") or ""
    scheme, _, key = presented.partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthenticated("this needs an API key: Authorization: Bearer <key>")
    return await exchange.host.keyring.principal(key.strip())


def _internal(exchange: Exchange, error: Exception) -> WoprError:
    correlation_id = uuid4().hex
    log.error(
        "request failed",
        correlation_id=correlation_id,
        method=exchange.scope["method"],
        path=_shown_path(exchange),
        exc_info=error,
    )
    return WoprError("something went wrong inside the host", correlationId=correlation_id)


def _trace_id(exchange: Exchange) -> str:
    """The trace that the caller says this request belongs to."""
    parts = exchange.traceparent.split("-")
    return parts[1] if len(parts) == 4 else ""


def _shown_path(exchange: Exchange) -> str:
    """The path as the log may have it: a token in it is a credential."""
    path: str = exchange.scope["path"]
    token = exchange.path.get("token")
    return path.replace(token, "[TOKEN]") if token else path


def _trace_headers(exchange: Exchange) -> dict[str, str]:
    parent = exchange.traceparent
    return {"traceparent": parent} if parent else {}


def log_request(exchange: Exchange, name: str, status: int, seconds: float) -> None:
    """Note down a request that was answered."""
    if not log.is_enabled_for(20):
        return
    principal = exchange.principal
    log.info(
        "request",
        operation=name,
        method=exchange.scope["method"],
        path=_shown_path(exchange),
        status=status,
        ms=round(seconds * 1000, 2),
        key_id=principal.key_id if principal else None,
        run_id=exchange.redactor.text(exchange.path.get("run_id", "")) or None,
    )


async def send_answer(send: Send, answer: Answer, extra: Mapping[str, str] | None = None) -> None:
    """Write a whole answer."""
    body = b"" if answer.status in NO_BODY else answer.body
    headers = [(b"content-length", str(len(body)).encode())]
    if body:
        headers.append((b"content-type", answer.content_type.encode()))
    for name, value in answer.headers.items():
        headers.append((name.replace("_", "-").encode(), value.encode("latin-1")))
    for name, value in (extra or {}).items():
        headers.append((name.encode(), value.encode("latin-1")))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_stream(
    send: Send,
    receive: Receive,
    stream: Stream,
    stopping: anyio.Event,
    extra: Mapping[str, str] | None = None,
) -> None:
    """Write chunks as they come, until the source ends, the reader leaves or the host stops."""
    headers = [
        (b"content-type", stream.content_type.encode()),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
        *((name.encode(), value.encode("latin-1")) for name, value in (extra or {}).items()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    is_whole = False

    async with anyio.create_task_group() as tasks:

        async def until(leaves: Callable[[], Awaitable[object]]) -> None:
            await leaves()
            tasks.cancel_scope.cancel()

        async def reader_leaves() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        tasks.start_soon(until, reader_leaves)
        tasks.start_soon(until, stopping.wait)
        try:
            async for chunk in stream.chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            is_whole = True
        except* Unavailable as caught:
            # The reader comes back with its last event id; a document that is cut off is seen.
            log.warning("a stream ends early", message=str(caught.exceptions[0]))
        tasks.cancel_scope.cancel()
    if is_whole or not stream.is_document:
        await send({"type": "http.response.body", "body": b""})


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a path that does not exist."""
    error = NotFound("there is nothing at this path")
    await send_answer(send, error_answer(error))
