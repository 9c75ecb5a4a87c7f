"""Layer 1 of idempotency: the first answer to a keyed request is the answer to all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from wopr.http.answers import Answer, Later, Stream, error_answer
from wopr.http.exchange import Exchange
from wopr.http.operation import Operation
from wopr.protocol.errors import Conflict, Refused, WoprError
from wopr.security.invocation import answer_key_hash, request_digest
from wopr.store.port import RememberedAnswer

LONGEST_KEY = 255
IN_FLIGHT = "idempotency_in_flight"
REPLAY_HEADER = "openwop-idempotent-replay"
# Requests with one key that wait for each other. A first answer that is not kept is followed by the
# next request, so that many of them could wait for a long time.
MOST_WAITING = 100
# Answers that a second try may change.
NEVER_KEPT = frozenset({400, 401, 403, 413, 415, 429, 500, 501, 502, 503, 504})


class Idempotency:
    """Remembers answers, and holds a concurrent duplicate back until the first one has ended."""

    def __init__(self) -> None:
        self._under_way: dict[bytes, anyio.Event] = {}
        self._waiting: Counter[bytes] = Counter()

    async def answer(
        self, exchange: Exchange, operation: Operation, key: str
    ) -> Answer | Stream | Later:
        """Answer a keyed request: from memory, or by carrying it out once."""
        if not 0 < len(key) <= LONGEST_KEY:
            raise Refused(
                f"Idempotency-Key must have 1 to {LONGEST_KEY} characters",
                field="Idempotency-Key",
            )
        # The body is part of what is remembered, so it is read before the handler reads it.
        body = await exchange.body()
        exchange.give_back(body)
        endpoint = _endpoint(exchange, operation)
        key_hash = answer_key_hash(exchange.tenant, endpoint, key)
        digest = request_digest(body, exchange.query)
        async with self.alone(key_hash):
            kept = await exchange.host.store.answer(exchange.tenant, key_hash)
            if kept is not None:
                return _replay(kept, digest)
            try:
                return await self._first(exchange, operation, key_hash, digest)
            except Conflict as conflict:
                # Another process was faster by a moment, and its answer is the answer.
                kept = await exchange.host.store.answer(exchange.tenant, key_hash)
                if conflict.code != IN_FLIGHT or kept is None:
                    raise
                return _replay(kept, digest)

    @asynccontextmanager
    async def alone(self, key_hash: bytes) -> AsyncGenerator[None, None]:
        """Carry out one request with a key at a time. Raises `Conflict` when too many wait."""
        if key_hash in self._under_way:
            await self._wait(key_hash)
        done = self._under_way[key_hash] = anyio.Event()
        try:
            yield
        finally:
            del self._under_way[key_hash]
            done.set()

    async def _wait(self, key_hash: bytes) -> None:
        """Wait until no other request with this key is under way."""
        if self._waiting[key_hash] >= MOST_WAITING:
            raise Conflict(
                f"{MOST_WAITING} requests with this Idempotency-Key wait for their answer",
                code=IN_FLIGHT,
            )
        self._waiting[key_hash] += 1
        try:
            while (other := self._under_way.get(key_hash)) is not None:
                await other.wait()
        finally:
            self._waiting[key_hash] -= 1
            if not self._waiting[key_hash]:
                del self._waiting[key_hash]

    async def _first(
        self, exchange: Exchange, operation: Operation, key_hash: bytes, digest: bytes
    ) -> Answer | Stream | Later:
        def remember(body: bytes, status: int = operation.success) -> RememberedAnswer:
            return RememberedAnswer(
                key_hash=key_hash,
                request_digest=digest,
                status=status,
                body=body,
                created_at=exchange.host.sources.now(),
            )

        if operation.remembers:
            exchange.remember = remember
        answer: Answer | Stream | Later
        try:
            answer = await operation.handler(exchange)
        except WoprError as error:
            answer = error_answer(error, exchange.redactor)
            if answer.status in NEVER_KEPT or error.code == IN_FLIGHT:
                raise
        if not isinstance(answer, Answer):
            return answer
        is_kept_already = operation.remembers and answer.status == operation.success
        if not is_kept_already:
            kept = remember(answer.body, answer.status)
            await exchange.host.store.remember(exchange.tenant, kept)
        return answer


def _endpoint(exchange: Exchange, operation: Operation) -> str:
    """The routed endpoint with its parameters: the same key on two runs is two requests."""
    return f"{operation.method} {exchange.scope['path']}"


def _replay(kept: RememberedAnswer, digest: bytes) -> Answer:
    if kept.request_digest != digest:
        raise Conflict(
            "this Idempotency-Key was used with another body or other query parameters",
            code="idempotency_key_mismatch",
        )
    return Answer(kept.status, kept.body, headers={REPLAY_HEADER: "true"})
