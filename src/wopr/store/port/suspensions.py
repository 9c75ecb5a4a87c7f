"""The pending interrupts, as an inbox lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

# Bytes of the bodies of one page.
PENDING_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """A pending interrupt of a run. `body` is the encoded document that an inbox shows.

    Only what is pending is kept: the log is the history.
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
    """Newest first. `next_after` is the place to go on from, or None at the end.

    The page ends with the interrupt that brings the bodies to `PENDING_BYTES`.
    """

    suspensions: tuple[Suspension, ...]
    next_after: tuple[int, str] | None


class Suspensions(Protocol):
    """Pending interrupts; `RunLog.append` opens and ends them."""

    async def pending(
        self, tenant: str, where: SuspensionFilter, after: tuple[int, str] | None, limit: int
    ) -> SuspensionPage:
        """A page of the tenant's pending interrupts, newest first, by keyset."""
        ...

    async def pending_count(self, tenant: str) -> int:
        """How many interrupts of the tenant are pending."""
        ...
