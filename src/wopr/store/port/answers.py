"""What makes a repeated request or effect happen once: remembered answers and invocations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedAnswer:
    """The first answer to an idempotent request. `key_hash` already includes tenant and route."""

    key_hash: bytes
    request_digest: bytes
    status: int
    body: bytes
    created_at: int


class Answers(Protocol):
    """Layer 1 of idempotency: answers to requests."""

    async def answer(self, tenant: str, key_hash: bytes) -> RememberedAnswer | None:
        """The remembered answer."""
        ...

    async def remember(self, tenant: str, answer: RememberedAnswer) -> None:
        """Keep an answer that no run append carries; the first one kept wins."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A layer-2 record: the one outcome of one logical outside effect."""

    invocation_id: str
    run_id: str
    state: str  # "claimed", "succeeded" or "failed"
    claimed_at: int
    outcome: bytes | None = None


class Invocations(Protocol):
    """Layer 2 of idempotency: outside effects of nodes."""

    async def claim(self, tenant: str, invocation: Invocation) -> Invocation:
        """Claim atomically; the answer is the record that holds, ours or an earlier one."""
        ...

    async def settle(self, tenant: str, invocation_id: str, state: str, outcome: bytes) -> None:
        """Record how the effect ended."""
        ...
