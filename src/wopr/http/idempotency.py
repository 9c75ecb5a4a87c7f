"""Layer 1 of idempotency: the first answer to a keyed request is the answer to all of them."""

from __future__ import annotations

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
# Answers that a second try may change.
NEVER_KEPT = frozenset({400, 401, 403, 413, 415, 429, 500, 501, 502, 503, 504})


class Idempotency:
    """Remembers answers, and holds a concurrent duplicate back until the first one has ended."""

    def __init__(self) -> None:
        self._under_way: dict[bytes, anyio.Event] = {}

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
        async with self._alone(key_hash):
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
    async def _alone(self, key_hash: bytes) -> AsyncGenerator[None, None]:
        while (other := self._under_way.get(key_hash)) is not None:
            await other.wait()
        done = self._under_way[key_hash] = anyio.Event()
        try:
            yield
        finally:
            del self._under_way[key_hash]
            done.set()

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
