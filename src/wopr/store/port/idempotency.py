"""Idempotency records: responses to requests, and outside effects of nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyRecord:
    """The first response to an idempotent request. `key_hash` includes the tenant and the route."""

    key_hash: bytes
    request_digest: bytes
    status: int
    body: bytes
    created_at: int


# Returns the record of a request for its encoded response.
RecordBuilder: TypeAlias = Callable[[bytes], IdempotencyRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The record of one logical outside effect, and its outcome."""

    invocation_id: str
    run_id: str
    state: str  # "claimed", "succeeded" or "failed"
    claimed_at: int
    outcome: bytes | None = None


class Idempotency(Protocol):
    """Layer 1 of idempotency, responses to requests, and layer 2, outside effects of nodes."""

    async def idempotency_record(self, tenant: str, key_hash: bytes) -> IdempotencyRecord | None:
        """Return the record that is stored under a key."""
        ...

    async def put_idempotency_record(self, tenant: str, record: IdempotencyRecord) -> None:
        """Store a response that no append stores; the first response is kept."""
        ...

    async def claim_invocation(self, tenant: str, invocation: Invocation) -> Invocation:
        """Claim an effect atomically; return the stored record, new or earlier."""
        ...

    async def settle_invocation(
        self, tenant: str, invocation_id: str, state: str, outcome: bytes
    ) -> None:
        """Record how the effect ended. The first outcome is kept."""
        ...
