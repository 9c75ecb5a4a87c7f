"""Pending interrupts, as an inbox lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

# The limit of a page for the sum of its bodies.
PENDING_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """A pending interrupt of a run. `body` is the encoded document that an inbox shows.

    Only pending interrupts are stored; the log has the history.
    """

    interrupt_id: str
    run_id: str
    node_id: str
    workflow_id: str
    kind: str
    created_at: int
    expires_at: int | None = None
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspensionFilter:
    """Which pending interrupts to list; an absent field does not filter."""

    kinds: tuple[str, ...] = ()
    workflow_id: str | None = None
    run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspensionPage:
    """A page of pending interrupts, newest first.

    It ends early with the interrupt at which the bodies reach `PENDING_BYTES`. The next page starts
    after `next_after`; None at the end.
    """

    suspensions: tuple[Suspension, ...]
    next_after: tuple[int, str] | None


class Suspensions(Protocol):
    """Pending interrupts; `RunLog.append` opens and ends them."""

    async def pending_interrupts(
        self, tenant: str, where: SuspensionFilter, after: tuple[int, str] | None, limit: int
    ) -> SuspensionPage:
        """List a page of the tenant's pending interrupts, newest first, by keyset."""
        ...

    async def count_pending_interrupts(self, tenant: str) -> int:
        """Return how many interrupts of the tenant are pending."""
        ...
