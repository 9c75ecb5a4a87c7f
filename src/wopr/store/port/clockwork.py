"""What the host's own clock asks of a store: who is due, who is unfinished, what has expired."""

from __future__ import annotations

from typing import Protocol


class Clockwork(Protocol):
    """What the host itself asks across tenants: owners and ids, no content."""

    async def due(self, now: int, limit: int) -> list[tuple[str, str]]:
        """`(tenant, run_id)` of unfinished runs whose `wake_at` has come, earliest first."""
        ...

    async def due_of_each(self, now: int, limit: int) -> list[tuple[str, str]]:
        """`(tenant, run_id)` of up to `limit` due runs of each tenant, earliest first.

        Runs that a process holds are not among them. It costs the tenants that have a timer.
        """
        ...

    async def next_due(self, after: int) -> int | None:
        """The earliest `wake_at` of all unfinished runs that comes after this instant."""
        ...

    async def unfinished(self, after: tuple[str, str] | None, limit: int) -> list[tuple[str, str]]:
        """A page of `(tenant, run_id)` of all runs that have not ended, for recovery at start."""
        ...

    async def expire(self, ended_before: int, limit: int) -> int:
        """Delete up to `limit` runs that ended before then, with all that belongs to them.

        Observed runs are not among them: they go when the fleet lets go of their lines.
        """
        ...

    async def forget(self, answers_before: int, invocations_before: int) -> None:
        """Drop idempotency records past their retention; a run that goes on keeps its invocations."""
        ...

    async def forget_memories(self, before: int) -> None:
        """Delete the memory entries that expired before then."""
        ...

    async def open_counts(self) -> dict[str, int]:
        """How many runs have not ended, by status and over all tenants, for metrics.

        It costs what is open, however many runs have ended.
        """
        ...

    async def correct_counters(self) -> None:
        """Recount the active runs of every tenant, and merge counters kept in several rows."""
        ...

    async def waiting_for_code(self) -> int:
        """How many runs of all tenants wait for a process that has the code of a node."""
        ...
