"""Idempotent requests: a repeated request with the same key gets the stored response."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from wopr.http.operation import Operation
from wopr.http.request import Request
from wopr.http.response import DeferredResponse, Response, StreamResponse, error_response
from wopr.protocol.errors import Conflict, Refused, WoprError
from wopr.security.idempotency_keys import request_digest, response_key_hash
from wopr.store.port import IdempotencyRecord

MAX_KEY_LENGTH = 255
IN_FLIGHT = "idempotency_in_flight"
REPLAY_HEADER = "openwop-idempotent-replay"
# Requests with one key that wait for each other. If the first response is not stored, the next
# request is executed, so that many requests could wait for a long time.
MAX_WAITING = 100
# Responses that a repeated request may change.
NEVER_STORED = frozenset({400, 401, 403, 413, 415, 429, 500, 501, 502, 503, 504})


class IdempotentRequests:
    """Stores responses, and delays concurrent duplicates until the first request has ended."""

    def __init__(self) -> None:
        self._in_progress: dict[bytes, anyio.Event] = {}
        self._waiting: Counter[bytes] = Counter()

    async def respond(
        self, request: Request, operation: Operation, key: str
    ) -> Response | StreamResponse | DeferredResponse:
        """Return the stored response, or execute the request once and store its response."""
        if not 0 < len(key) <= MAX_KEY_LENGTH:
            raise Refused(
                f"Idempotency-Key must have 1 to {MAX_KEY_LENGTH} characters",
                field="Idempotency-Key",
            )
        # The digest needs the body, so it is read before the handler reads it.
        body = await request.body()
        request.store_body(body)
        endpoint = _endpoint(request, operation)
        key_hash = response_key_hash(request.tenant, endpoint, key)
        digest = request_digest(body, request.query)
        async with self.exclusive(key_hash):
            stored = await request.host.store.idempotency_record(request.tenant, key_hash)
            if stored is not None:
                return _replay(stored, digest)
            try:
                return await self._execute(request, operation, key_hash, digest)
            except Conflict as conflict:
                # Another process stored its response first.
                stored = await request.host.store.idempotency_record(request.tenant, key_hash)
                if conflict.code != IN_FLIGHT or stored is None:
                    raise
                return _replay(stored, digest)

    @asynccontextmanager
    async def exclusive(self, key_hash: bytes) -> AsyncGenerator[None, None]:
        """Execute one request per key at a time. Raises `Conflict` if too many are waiting."""
        if key_hash in self._in_progress:
            await self._wait(key_hash)
        done = self._in_progress[key_hash] = anyio.Event()
        try:
            yield
        finally:
            del self._in_progress[key_hash]
            done.set()

    async def _wait(self, key_hash: bytes) -> None:
        """Wait until no other request with this key is in progress."""
        if self._waiting[key_hash] >= MAX_WAITING:
            raise Conflict(
                f"{MAX_WAITING} requests with this Idempotency-Key are waiting for a response",
                code=IN_FLIGHT,
            )
        self._waiting[key_hash] += 1
        try:
            while (other := self._in_progress.get(key_hash)) is not None:
                await other.wait()
        finally:
            self._waiting[key_hash] -= 1
            if not self._waiting[key_hash]:
                del self._waiting[key_hash]

    async def _execute(
        self, request: Request, operation: Operation, key_hash: bytes, digest: bytes
    ) -> Response | StreamResponse | DeferredResponse:
        def build_record(body: bytes, status: int = operation.success) -> IdempotencyRecord:
            return IdempotencyRecord(
                key_hash=key_hash,
                request_digest=digest,
                status=status,
                body=body,
                created_at=request.host.sources.now(),
            )

        if operation.stores_response:
            request.build_record = build_record
        response: Response | StreamResponse | DeferredResponse
        try:
            response = await operation.handler(request)
        except WoprError as error:
            response = error_response(error, request.redactor)
            if response.status in NEVER_STORED or error.code == IN_FLIGHT:
                raise
        if not isinstance(response, Response):
            return response
        is_already_stored = operation.stores_response and response.status == operation.success
        if not is_already_stored:
            stored = build_record(response.body, response.status)
            await request.host.store.put_idempotency_record(request.tenant, stored)
        return response


def _endpoint(request: Request, operation: Operation) -> str:
    """Return the method and path, so that one key can be used on two runs."""
    return f"{operation.method} {request.scope['path']}"


def _replay(stored: IdempotencyRecord, digest: bytes) -> Response:
    if stored.request_digest != digest:
        raise Conflict(
            "this Idempotency-Key was used with another body or other query parameters",
            code="idempotency_key_mismatch",
        )
    return Response(stored.status, stored.body, headers={REPLAY_HEADER: "true"})
