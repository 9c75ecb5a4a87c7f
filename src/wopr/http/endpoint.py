"""The way of a request: authenticate, rate limit, scope, then the handler; errors become envelopes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from uuid import uuid4

import anyio
import structlog

from wopr.http.answers import Answer, Later, Stream, error_answer
from wopr.http.asgi import ABORT, Receive, Scope, Send
from wopr.http.exchange import Exchange
from wopr.http.idempotency import Idempotency
from wopr.http.operation import Operation
from wopr.http.read_audit import ReadAudit, read_audit
from wopr.http.streams import CHUNK_BYTES, Limits, OpenStream, StreamLimits, watch_streams
from wopr.http.throttle import FailedAuthLimit, Throttle
from wopr.http.unsent import SLICE_BYTES, Unsent
from wopr.protocol.errors import Forbidden, NotFound, Unauthenticated, Unavailable, WoprError
from wopr.runtime.audit import correlation
from wopr.runtime.denials import Denials
from wopr.runtime.host import Host
from wopr.security.keys import Principal

log = structlog.get_logger("wopr.http")
NO_BODY = frozenset({204, 304})
READS = frozenset({"GET", "HEAD"})
# The route of a request that no operation serves, in logs.
UNKNOWN_ROUTE = "unknown"
# Whom a refused request without a valid key is put down to.
UNKNOWN = ""
# How long the end of a stream that the host ends may take to be written.
FAREWELL_SECONDS = 0.5


class MethodNotAllowed(WoprError):
    """A path that exists, with another method."""

    default_code = "method_not_allowed"


class Shared:
    """What all endpoints of one served host have in common."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.host: Host | None = None
        self.throttle = Throttle(max_in_flight=1, max_incoming_bytes=0)
        # Streams of the API, and live pages of the console.
        self.streams = StreamLimits(Limits(per_key=0, per_tenant=0, per_process=0))
        self.console_streams = self.streams
        self.unsent = Unsent(0, clock)
        self.failed_auth = FailedAuthLimit(0, 0, clock)
        self.idempotency = Idempotency()
        self.stopping = anyio.Event()
        self.denials: Denials | None = None
        # Only where the operator wants reads on the audit log.
        self.reads: ReadAudit | None = None

    def open(self, host: Host) -> None:
        """Begin to serve a host."""
        self.host = host
        self.denials = Denials(host.audit, host.sources.now)
        self.reads = read_audit(host)
        self.throttle = Throttle(
            max_in_flight=host.settings.max_in_flight,
            max_incoming_bytes=host.settings.max_incoming_bytes,
        )
        self.unsent.most_bytes = host.settings.max_stream_buffer_bytes
        self.failed_auth = FailedAuthLimit(
            host.settings.failed_auth_limit, host.settings.open_rate_limit, self.clock
        )
        host.metrics.in_flight.set_function(lambda: self.throttle.in_flight)
        settings = host.settings
        limits = Limits(
            per_key=settings.max_streams_per_key,
            per_tenant=settings.max_streams_per_tenant,
            per_process=settings.max_streams,
        )
        self.streams = StreamLimits(limits, host.quotas.limit)
        host.quotas.open_streams = self._open_streams
        self.console_streams = StreamLimits(
            replace(
                limits,
                per_key=settings.max_console_streams_per_key,
                key_setting="max_console_streams_per_key",
            )
        )
        host.metrics.streams.set_function(lambda: len(self.streams) + len(self.console_streams))

    def _open_streams(self, tenant: str, key_id: str) -> tuple[int, int]:
        """The open streams of a tenant, and of a key of it."""
        return self.streams.of_tenant(tenant), self.streams.of_key(tenant, key_id)

    async def watch_streams(self) -> None:
        """End the streams that must not go on, until cancelled."""
        if self.host is not None:
            buffered = self.host.settings.max_stream_buffer_bytes
            pools = (self.streams, self.console_streams)
            await watch_streams(pools, lambda: buffered - self.unsent.size)


class Endpoint:
    """One path with all its methods, as an ASGI application."""

    def __init__(self, shared: Shared, operations: Mapping[str, Operation]) -> None:
        self._shared = shared
        self._operations = operations
        self._allowed = ", ".join(sorted(operations))
        self._route = next((each.path for each in operations.values()), UNKNOWN_ROUTE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        shared = self._shared
        host = shared.host
        if host is None:
            await send_answer(send, error_answer(Unavailable("the host is starting")))
            return
        operation = self._operations.get(scope["method"])
        began = shared.clock()
        exchange = Exchange(host, scope, receive, shared.throttle)
        try:
            correlation.set(_trace_id(exchange))
            answer = await self._answer(exchange, operation)
            if isinstance(answer, Stream):
                headers = _trace_headers(exchange)
                with self.streaming(exchange) as opened:
                    await send_stream(send, receive, answer, opened, shared.stopping, headers)
                return
            if len(answer.body) <= SLICE_BYTES:
                await send_answer(send, answer, _trace_headers(exchange))
            else:
                answer = await self._send_large(send, exchange, answer)
        finally:
            exchange.close()
        name = "unknown" if operation is None else operation.name
        seconds = shared.clock() - began
        host.metrics.answered(name, answer.status, seconds)
        log_request(exchange, name, self._route, answer.status, seconds)

    async def _send_large(self, send: Send, exchange: Exchange, answer: Answer) -> Answer:
        """Send an answer in slices, or refuse it when too much waits to be sent. Returns what was sent."""
        tenant = UNKNOWN if exchange.principal is None else exchange.principal.tenant
        close = exchange.scope.get(ABORT, _keep_open)
        must = exchange.scope["method"] not in READS
        headers = _trace_headers(exchange)
        unsent = self._shared.unsent
        try:
            with unsent.hold(tenant, answer.body, close, must=must) as held:
                # An answer that waits for its client takes no place of a request in progress.
                exchange.close()
                await send_answer(send, answer, headers, partial(unsent.note_read, held))
                return answer
        except Unavailable as error:
            refusal = await self.refuse(exchange, error)
            await send_answer(send, refusal, headers)
            return refusal

    async def _answer(self, exchange: Exchange, operation: Operation | None) -> Answer | Stream:
        try:
            if operation is None:
                self._shared.failed_auth.spend_open(exchange.client_address)
                raise MethodNotAllowed(f"this path answers {self._allowed}", allow=self._allowed)
            answer = await self._carry_out(exchange, operation)
            if self._shared.reads is not None:
                await self._shared.reads.record(exchange, operation)
            return answer
        except WoprError as error:
            if operation is not None and isinstance(error, Unauthenticated | Forbidden):
                await self.note_denied(exchange, operation, error)
            elif operation is not None and self._shared.reads is not None:
                await self._shared.reads.record_failure(exchange, operation, error)
            if error.status >= 500:
                error.details.setdefault("correlationId", uuid4().hex)
            return await self.refuse(exchange, error)
        except Exception as error:  # the outer edge of a request
            route = self._route if operation is None else operation.path
            return await self.refuse(
                exchange, internal_error(exchange.scope["method"], route, error)
            )

    async def authenticate(self, exchange: Exchange) -> Principal:
        """Find who calls."""
        return await authenticate(exchange)

    @property
    def streams(self) -> StreamLimits:
        """What counts the streams of this path."""
        return self._shared.streams

    def credential(self, exchange: Exchange) -> str:
        """What identifies the key or session that a stream ends with."""
        return exchange.caller.key_id

    @contextmanager
    def streaming(self, exchange: Exchange) -> Generator[OpenStream, None, None]:
        """Count a request as a stream, and not among the requests in progress, during the block."""
        check = partial(self.authenticate, exchange)
        with self.streams.open(exchange.caller, self.credential(exchange), check) as opened:
            exchange.leave()
            yield opened

    async def refuse(self, exchange: Exchange, error: WoprError) -> Answer:
        """Say why a request was not carried out."""
        return error_answer(error, exchange.redactor)

    async def note_denied(self, exchange: Exchange, operation: Operation, error: WoprError) -> None:
        """Record an attempt that was refused, without the text of a path that may hold a token."""
        caller = exchange.principal
        if self._shared.denials is not None:
            await self._shared.denials.record(
                UNKNOWN if caller is None else caller.tenant,
                UNKNOWN if caller is None else caller.key_id,
                operation.action or operation.name,
                exchange.named_run or operation.path,
                code=error.code,
                scopeRequired=error.details.get("scopeRequired"),
            )

    async def find_caller(self, exchange: Exchange) -> Principal:
        """Authenticate a request; a failure counts against its address."""
        find = partial(self.authenticate, exchange)
        return await self._shared.failed_auth.authenticate(exchange.client_address, find)

    async def _carry_out(self, exchange: Exchange, operation: Operation) -> Answer | Stream:
        shared = self._shared
        if operation.needs_key(exchange.host.settings):
            exchange.principal = await self.find_caller(exchange)
            exchange.mark_authenticated()
            if operation.offered is not None:
                operation.offered(exchange.host.settings)
            exchange.host.quotas.spend_request(exchange.principal.tenant, exchange.principal.key_id)
            exchange.enter()
            if operation.scope and not exchange.principal.may(operation.scope):
                raise Forbidden(
                    f"this key lacks the scope {operation.scope}", scopeRequired=operation.scope
                )
            await exchange.catch_up(exchange.path.get("run_id", ""))
            key = exchange.header(b"idempotency-key") if operation.is_idempotent else None
            if key is not None:
                answer = await shared.idempotency.answer(exchange, operation, key)
            else:
                answer = await operation.handler(exchange)
        else:
            if not operation.is_unlimited:
                shared.failed_auth.spend_open(exchange.client_address)
            answer = await operation.handler(exchange)
        if isinstance(answer, Answer):
            return answer
        if isinstance(answer, Stream):
            self.streams.admit(exchange.caller)
            return answer
        return await self._wait(exchange, answer)

    async def _wait(self, exchange: Exchange, answer: Later) -> Answer:
        """Wait for a response as a stream waits. Raises `Unauthenticated` once the key is not valid."""
        with self.streaming(exchange) as opened, opened.scope:
            return await answer.wait()
        raise opened.reason or Unavailable("the host is stopping")


async def authenticate(exchange: Exchange) -> Principal:
    """Find whose key this is. The refusal repeats nothing of what was presented."""
    presented = exchange.header(b"authorization") or ""
    scheme, _, key = presented.partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthenticated("this needs an API key: Authorization: Bearer <key>")
    return await exchange.host.keyring.principal(key.strip())


def internal_error(method: str, route: str, error: Exception) -> WoprError:
    """Log an unexpected error, and return what its client is told: nothing of it but an id."""
    correlation_id = uuid4().hex
    log.error(
        "request failed",
        correlation_id=correlation_id,
        method=method,
        route=route,
        exc_info=error,
    )
    return WoprError("something went wrong inside the host", correlationId=correlation_id)


def _trace_id(exchange: Exchange) -> str:
    """The trace that the caller says this request belongs to."""
    parts = exchange.traceparent.split("-")
    return parts[1] if len(parts) == 4 else ""


def _trace_headers(exchange: Exchange) -> dict[str, str]:
    parent = exchange.traceparent
    return {"traceparent": parent} if parent else {}


def log_request(exchange: Exchange, name: str, route: str, status: int, seconds: float) -> None:
    """Log a request that was answered, by its route.

    The path itself is the client's text and may hold a credential. So may the id of a run that
    does not exist: only an id that was found for a valid key is logged.
    """
    if not log.is_enabled_for(20):
        return
    principal = exchange.principal
    log.info(
        "request",
        operation=name,
        method=exchange.scope["method"],
        route=route,
        status=status,
        ms=round(seconds * 1000, 2),
        key_id=principal.key_id if principal else None,
        run_id=(exchange.named_run or None) if status < 300 else None,
    )


def _keep_open() -> None:
    """Stand in for closing a connection where there is none: the application is called directly."""


async def send_answer(
    send: Send,
    answer: Answer,
    extra: Mapping[str, str] | None = None,
    note_read: Callable[[], None] | None = None,
) -> None:
    """Write a whole answer, in slices. Each waits until the client has read most of those before.

    `note_read` is called after each slice of a large answer.
    """
    body = b"" if answer.status in NO_BODY else answer.body
    headers = [(b"content-length", str(len(body)).encode())]
    if body:
        headers.append((b"content-type", answer.content_type.encode()))
    for name, value in answer.headers.items():
        headers.append((name.replace("_", "-").encode(), value.encode("latin-1")))
    for name, value in (extra or {}).items():
        headers.append((name.encode(), value.encode("latin-1")))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    view = memoryview(body)
    while len(view) > SLICE_BYTES:
        await send({"type": "http.response.body", "body": view[:SLICE_BYTES], "more_body": True})
        view = view[SLICE_BYTES:]
        if note_read is not None:
            note_read()
    last = body if len(view) == len(body) else view
    await send({"type": "http.response.body", "body": last})


async def send_stream(
    send: Send,
    receive: Receive,
    stream: Stream,
    opened: OpenStream,
    stopping: anyio.Event,
    extra: Mapping[str, str] | None = None,
) -> None:
    """Write chunks as they come, until the source ends, the reader leaves or the host ends it."""
    headers = [
        (b"content-type", stream.content_type.encode()),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
        *((name.encode(), value.encode("latin-1")) for name, value in (extra or {}).items()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    is_whole = False

    async with anyio.create_task_group() as tasks:
        opened.scope = tasks.cancel_scope

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
                opened.writing = chunk
                if len(chunk) <= CHUNK_BYTES:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                else:
                    await _send_large(send, chunk, opened)
                opened.writing = None
                opened.written += 1
            is_whole = True
        except* Unavailable as caught:
            # The reader comes back with its last event id; a document that is cut off is seen.
            log.warning("a stream ends early", message=str(caught.exceptions[0]))
        tasks.cancel_scope.cancel()
    if is_whole or not stream.is_document:
        # A reader that does not read keeps the host waiting no longer than this.
        with anyio.move_on_after(FAREWELL_SECONDS if opened.reason else None):
            last = stream.farewell if opened.reason else b""
            await send({"type": "http.response.body", "body": last})


async def _send_large(send: Send, chunk: bytes, opened: OpenStream) -> None:
    """Write a chunk in slices, none of which is a copy."""
    view = memoryview(chunk)
    for start in range(0, len(chunk), CHUNK_BYTES):
        body = view[start : start + CHUNK_BYTES]
        await send({"type": "http.response.body", "body": body, "more_body": True})
        opened.written += 1


async def not_found(shared: Shared, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a path that does not exist."""
    client = scope.get("client")
    try:
        shared.failed_auth.spend_open(str(client[0]) if client else "")
        raise NotFound("there is nothing at this path")
    except WoprError as error:
        await send_answer(send, error_answer(error))
