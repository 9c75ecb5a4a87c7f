"""Runs that were being recovered when their process died, and runs that are in quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Recovery(Protocol):
    """Counts crashes of processes per run, and quarantines a run that has too many of them.

    A run in quarantine has `quarantined_at` and no `wake_at`: no process executes it until it is
    released.
    """

    # A run with so many crashes is quarantined.
    most_crashes: int

    async def begin_recovery(self, now: int) -> list[tuple[str, str]]:
        """Judge the runs of the last record, which a process left that died.

        A run that was alone on the record has a crash more, and is quarantined when these are too
        many. Several runs have one crash each, because one of them may have caused it. Runs that
        an earlier call returned and that are not on the record have none.

        Returns the tenant and id of each run with a crash that is not in quarantine.
        """
        ...

    async def record_recovery(self, runs: Sequence[tuple[str, str]]) -> None:
        """Keep the runs that are being recovered, in place of those kept before."""
        ...

    async def clear_crashes(self, tenant: str, run_id: str) -> None:
        """Forget the crashes of a run that was recovered and is not in quarantine."""
        ...

    async def release(self, tenant: str, run_id: str, now: int) -> bool:
        """Take a run out of quarantine and make it due; False when it is in none."""
        ...

    def count_freeze(self, tenant: str, run_id: str, change: int, now: int) -> None:
        """Count a crash for a run that blocks the event loop (1), or take it back (-1).

        Called from another thread: the event loop cannot do it. A run that the process is killed
        in keeps its crash.
        """
        ...
