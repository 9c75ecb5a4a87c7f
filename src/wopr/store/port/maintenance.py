"""Work of the host across tenants: due and unfinished runs, retention, recovery after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Maintenance(Protocol):
    """Reads and deletions of the host across tenants.

    They return tenants and ids, never content.
    """

    async def due_runs(self, now: int, limit: int) -> list[tuple[str, str]]:
        """List `(tenant, run_id)` of unfinished runs that are due by `wake_at`, earliest first."""
        ...

    async def due_runs_of_each_tenant(self, now: int, limit: int) -> list[tuple[str, str]]:
        """List `(tenant, run_id)` of up to `limit` due runs of each tenant, earliest first.

        Runs that a process holds are left out. The cost grows with the number of tenants with
        timers.
        """
        ...

    async def next_due(self, after: int) -> int | None:
        """Return the earliest `wake_at` of all unfinished runs after this time."""
        ...

    async def unfinished_runs(
        self, after: tuple[str, str] | None, limit: int
    ) -> list[tuple[str, str]]:
        """List a page of `(tenant, run_id)` of all unfinished runs, for recovery at start."""
        ...

    async def delete_expired_runs(self, ended_before: int, limit: int) -> int:
        """Delete up to `limit` runs that ended before that time, with all their data.

        Observed runs are left out: they are deleted with their lines in the fleet.
        """
        ...

    async def delete_idempotency_records(
        self, records_before: int, invocations_before: int
    ) -> None:
        """Delete records past their retention, except invocations of unfinished runs."""
        ...

    async def delete_expired_memories(self, before: int) -> None:
        """Delete the memory entries that expired before that time."""
        ...

    async def open_run_counts(self) -> dict[str, int]:
        """Return how many runs have not ended, by status and over all tenants, for metrics.

        The cost grows with the number of open runs only.
        """
        ...

    async def correct_counters(self) -> None:
        """Recount the active runs of every tenant, and merge counters that have several rows."""
        ...

    async def waiting_for_code(self) -> int:
        """Return how many runs of all tenants wait for a process that has the code of a node."""
        ...


class Recovery(Protocol):
    """Counts the crashes of each run, and puts a run with too many crashes in quarantine.

    A run in quarantine has `quarantined_at` and no `wake_at`: no process executes it until it is
    released.
    """

    # A run with this number of crashes is put in quarantine.
    max_crashes: int

    async def begin_recovery(self, now: int) -> list[tuple[str, str]]:
        """Count crashes for the runs that the last process recorded before it died.

        A run that was alone on the record has one more crash, and is put in quarantine when it has
        too many. Of several runs, each has at least one crash, because any of them may have caused
        it. Runs that an earlier call returned, and that are no longer on the record, have no crash.

        Returns the tenant and id of each run with a crash that is not in quarantine.
        """
        ...

    async def record_recovery(self, runs: Sequence[tuple[str, str]]) -> None:
        """Record the runs that are being recovered, and replace the earlier record."""
        ...

    async def clear_crashes(self, tenant: str, run_id: str) -> None:
        """Set the crashes of a recovered run that is not in quarantine to zero."""
        ...

    async def release_from_quarantine(self, tenant: str, run_id: str, now: int) -> bool:
        """Take a run out of quarantine and make it due; False when it is not in quarantine."""
        ...

    def count_freeze(self, tenant: str, run_id: str, change: int, now: int) -> None:
        """Count a crash for a run that blocks the event loop (1), or subtract it (-1).

        Called from another thread, because the event loop is blocked. The crash is stored when the
        call returns, and the run keeps it if the process is killed.
        """
        ...
