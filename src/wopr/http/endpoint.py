"""Request handling: authenticate, apply limits, check the scope, call the handler, map errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from uuid import uuid4

import anyio
import structlog

from wopr.host.host import Host
from wopr.http.idempotency import IdempotentRequests
from wopr.http.limits import (
    SLICE_BYTES,
    FailedAuthLimit,
    OpenStream,
    OpenStreams,
    PendingResponses,
    RequestLimits,
    StreamLimits,
    watch_streams,
)
from wopr.http.operation import Operation
from wopr.http.read_audit import ReadAudit, create_read_audit
from wopr.http.request import ABORT, Receive, Request, Scope, Send
from wopr.http.response import (
    DeferredResponse,
    Response,
    StreamResponse,
    error_response,
    send_response,
    send_stream,
)
from wopr.protocol.errors import Forbidden, NotFound, Unauthenticated, Unavailable, WoprError
from wopr.security.api_keys import Principal
from wopr.services.audit.trail import Denials, correlation

log = structlog.get_logger("wopr.http")
READS = frozenset({"GET", "HEAD"})
# The route of a request that no operation serves, in logs.
UNKNOWN_ROUTE = "unknown"
# The tenant and key id of refused requests without a valid key.
UNKNOWN_CALLER = ""


class MethodNotAllowed(WoprError):
    """The path exists, but not with this method."""

    default_code = "method_not_allowed"


class AppState:
    """State that all endpoints of one host share: limits, open streams, audit."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.host: Host | None = None
        self.request_limits = RequestLimits(max_in_flight=1, max_incoming_bytes=0)
        # Streams of the API, and live pages of the console.
        self.streams = OpenStreams(StreamLimits(per_key=0, per_tenant=0, per_process=0))
        self.console_streams = self.streams
        self.pending_responses = PendingResponses(0, clock)
        self.failed_auth = FailedAuthLimit(0, 0, clock)
        self.idempotency = IdempotentRequests()
        self.stopping = anyio.Event()
        self.denials: Denials | None = None
        # None unless `WOPR_AUDIT_READS` is set.
        self.reads: ReadAudit | None = None

    def open(self, host: Host) -> None:
        """Configure the limits from the settings of a host."""
        settings = host.settings
        self.host = host
        self.denials = Denials(host.audit, host.sources.now)
        self.reads = create_read_audit(host)
        self.request_limits = RequestLimits(
            max_in_flight=settings.max_in_flight,
            max_incoming_bytes=settings.max_incoming_bytes,
        )
        self.pending_responses.most_bytes = settings.max_stream_buffer_bytes
        self.failed_auth = FailedAuthLimit(
            settings.failed_auth_limit, settings.open_rate_limit, self.clock
        )
        host.metrics.in_flight.set_function(lambda: self.request_limits.in_flight)
        limits = StreamLimits(
            per_key=settings.max_streams_per_key,
            per_tenant=settings.max_streams_per_tenant,
            per_process=settings.max_streams,
        )
        self.streams = OpenStreams(limits, host.quotas.limit)
        host.quotas.open_streams = self._open_streams
        self.console_streams = OpenStreams(
            replace(
                limits,
                per_key=settings.max_console_streams_per_key,
                key_setting="max_console_streams_per_key",
            )
        )
        host.metrics.streams.set_function(lambda: len(self.streams) + len(self.console_streams))

    def _open_streams(self, tenant: str, key_id: str) -> tuple[int, int]:
        """Return the number of open streams of a tenant and of one of its keys."""
        return self.streams.of_tenant(tenant), self.streams.of_key(tenant, key_id)

    async def watch_streams(self) -> None:
        """Close streams that are blocked or whose key is no longer valid, until cancelled."""
        if self.host is not None:
            buffered = self.host.settings.max_stream_buffer_bytes
            pools = (self.streams, self.console_streams)
            await watch_streams(pools, lambda: buffered - self.pending_responses.size)


class Endpoint:
    """The ASGI application of one path with all its methods."""

    def __init__(self, state: AppState, operations: Mapping[str, Operation]) -> None:
        self._state = state
        self._operations = operations
        self._allowed = ", ".join(sorted(operations))
        self._route = next((each.path for each in operations.values()), UNKNOWN_ROUTE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        state = self._state
        host = state.host
        if host is None:
            await send_response(send, error_response(Unavailable("the host is starting")))
            return
        operation = self._operations.get(scope["method"])
        began = state.clock()
        request = Request(host, scope, receive, state.request_limits)
        try:
            correlation.set(_trace_id(request))
            response = await self._respond(request, operation)
            if isinstance(response, StreamResponse):
                headers = _trace_headers(request)
                with self.streaming(request) as opened:
                    await send_stream(send, receive, response, opened, state.stopping, headers)
                return
            if len(response.body) <= SLICE_BYTES:
                await send_response(send, response, _trace_headers(request))
            else:
                response = await self._send_large(send, request, response)
        finally:
            request.close()
        name = UNKNOWN_ROUTE if operation is None else operation.name
        seconds = state.clock() - began
        host.metrics.record_response(name, response.status, seconds)
        log_request(request, name, self._route, response.status, seconds)

    async def _send_large(self, send: Send, request: Request, response: Response) -> Response:
        """Send a response in slices, or an error if too many bytes wait to be sent.

        Returns the response that was sent.
        """
        tenant = UNKNOWN_CALLER if request.principal is None else request.principal.tenant
        close = request.scope.get(ABORT, _keep_open)
        must_send = request.scope["method"] not in READS
        headers = _trace_headers(request)
        pending_responses = self._state.pending_responses
        try:
            with pending_responses.hold(tenant, response.body, close, must_send=must_send) as held:
                # While a response waits for its client, it is not a request in progress.
                request.close()
                await send_response(
                    send, response, headers, partial(pending_responses.record_read, held)
                )
                return response
        except Unavailable as error:
            refusal = await self.refuse(request, error)
            await send_response(send, refusal, headers)
            return refusal

    async def _respond(
        self, request: Request, operation: Operation | None
    ) -> Response | StreamResponse:
        try:
            if operation is None:
                self._state.failed_auth.count_request_without_key(request.client_address)
                raise MethodNotAllowed(f"this path allows {self._allowed}", allow=self._allowed)
            response = await self._execute(request, operation)
            if self._state.reads is not None:
                await self._state.reads.record(request, operation)
            return response
        except WoprError as error:
            if operation is not None and isinstance(error, Unauthenticated | Forbidden):
                await self.record_denial(request, operation, error)
            elif operation is not None and self._state.reads is not None:
                await self._state.reads.record_failure(request, operation, error)
            if error.status >= 500:
                error.details.setdefault("correlationId", uuid4().hex)
            return await self.refuse(request, error)
        except Exception as error:  # the outer edge of a request
            route = self._route if operation is None else operation.path
            return await self.refuse(request, internal_error(request.scope["method"], route, error))

    async def authenticate(self, request: Request) -> Principal:
        """Return the principal of the request."""
        return await authenticate(request)

    @property
    def streams(self) -> OpenStreams:
        """The open streams, in which the streams of this path are counted."""
        return self._state.streams

    def credential(self, request: Request) -> str:
        """Return the id of the key or session. The stream ends when this is no longer valid."""
        return request.caller.key_id

    @contextmanager
    def streaming(self, request: Request) -> Generator[OpenStream, None, None]:
        """Count a request as a stream and not as a request in progress, during the block."""
        check = partial(self.authenticate, request)
        with self.streams.open(request.caller, self.credential(request), check) as opened:
            request.leave()
            yield opened

    async def refuse(self, request: Request, error: WoprError) -> Response:
        """Return the error response."""
        return error_response(error, request.redactor)

    async def record_denial(self, request: Request, operation: Operation, error: WoprError) -> None:
        """Write an audit entry for a refused request, without the path, which may have a token."""
        caller = request.principal
        if self._state.denials is not None:
            await self._state.denials.record(
                UNKNOWN_CALLER if caller is None else caller.tenant,
                UNKNOWN_CALLER if caller is None else caller.key_id,
                operation.action or operation.name,
                request.named_run or operation.path,
                code=error.code,
                scopeRequired=error.details.get("scopeRequired"),
            )

    async def find_caller(self, request: Request) -> Principal:
        """Authenticate a request; a failure counts against its address."""
        find = partial(self.authenticate, request)
        return await self._state.failed_auth.authenticate(request.client_address, find)

    async def _execute(self, request: Request, operation: Operation) -> Response | StreamResponse:
        state = self._state
        if operation.needs_key(request.host.settings):
            request.principal = await self.find_caller(request)
            request.mark_authenticated()
            if operation.check_enabled is not None:
                operation.check_enabled(request.host.settings)
            request.host.quotas.count_request(request.principal.tenant, request.principal.key_id)
            request.enter()
            if operation.scope and not request.principal.may(operation.scope):
                raise Forbidden(
                    f"this key lacks the scope {operation.scope}", scopeRequired=operation.scope
                )
            if "run_id" in request.path:
                await request.catch_up(request.path["run_id"])
            key = request.header(b"idempotency-key") if operation.is_idempotent else None
            if key is not None:
                response = await state.idempotency.respond(request, operation, key)
            else:
                response = await operation.handler(request)
        else:
            if not operation.is_unlimited:
                state.failed_auth.count_request_without_key(request.client_address)
            response = await operation.handler(request)
        if isinstance(response, Response):
            return response
        if isinstance(response, StreamResponse):
            self.streams.admit(request.caller)
            return response
        return await self._wait(request, response)

    async def _wait(self, request: Request, response: DeferredResponse) -> Response:
        """Wait for a response, counted as a stream.

        Raises `Unauthenticated` when the key becomes invalid.
        """
        with self.streaming(request) as opened, opened.scope:
            return await response.wait()
        raise opened.reason or Unavailable("the host is stopping")


async def authenticate(request: Request) -> Principal:
    """Return the principal of the key. Error messages contain no part of the key."""
    presented = request.header(b"authorization") or ""
    scheme, _, key = presented.partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthenticated("this route needs an API key: Authorization: Bearer <key>")
    return await request.host.keyring.principal(key.strip())


def internal_error(method: str, route: str, error: Exception) -> WoprError:
    """Log an unexpected error and return an error with only its correlation id."""
    correlation_id = uuid4().hex
    log.error(
        "request failed",
        correlation_id=correlation_id,
        method=method,
        route=route,
        exc_info=error,
    )
    return WoprError("an internal error occurred in the host", correlationId=correlation_id)


def _trace_id(request: Request) -> str:
    """Return the caller's trace id; empty without a `traceparent`."""
    parts = request.traceparent.split("-")
    return parts[1] if len(parts) == 4 else ""


def _trace_headers(request: Request) -> dict[str, str]:
    parent = request.traceparent
    return {"traceparent": parent} if parent else {}


def log_request(request: Request, name: str, route: str, status: int, seconds: float) -> None:
    """Log a finished request by its route.

    The path is not logged, because it may contain a credential. A run id is logged only if the run
    was found with a valid key.
    """
    if not log.is_enabled_for(logging.INFO):
        return
    principal = request.principal
    log.info(
        "request",
        operation=name,
        method=request.scope["method"],
        route=route,
        status=status,
        ms=round(seconds * 1000, 2),
        key_id=principal.key_id if principal else None,
        run_id=(request.named_run or None) if status < 300 else None,
    )


def _keep_open() -> None:
    """Do nothing, because a direct call of the application has no connection to close."""


async def not_found(state: AppState, scope: Scope, receive: Receive, send: Send) -> None:
    """Respond 404."""
    client = scope.get("client")
    try:
        state.failed_auth.count_request_without_key(str(client[0]) if client else "")
        raise NotFound("this path does not exist")
    except WoprError as error:
        await send_response(send, error_response(error))
