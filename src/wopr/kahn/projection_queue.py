"""The background task that processes the store's queue of runs with new events or lines.

The transaction that writes events or lines also adds a queue entry. An entry is removed after it
was processed. If the process stops in between, the entry is processed again, and repeated lines are
detected. So no line is lost or stored twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import anyio
import structlog

from wopr.process.background import BackgroundTask
from wopr.protocol.errors import Unavailable
from wopr.store.port.fleet import Projections, QueuedProjection

# Projects all new events or lines of these `(tenant, run_id)`.
ProjectRuns: TypeAlias = Callable[[Sequence[tuple[str, str]]], Awaitable[None]]

# Pause between two rounds, so that one round handles several steps of a fast run.
PAUSE_SECONDS: Final = 0.2
# Interval of reads of the queue without a wake-up, for entries of other or stopped processes.
SWEEP_SECONDS: Final = 30.0
SHARED_SWEEP_SECONDS: Final = 1.0
# Number of runs that are processed together.
BATCH_ENTRIES: Final = 64

log = structlog.get_logger("wopr.fleet")


class ProjectionQueue:
    """Processes the queue of the host's own runs, or the queue of observed runs."""

    def __init__(
        self,
        store: Projections,
        project: ProjectRuns,
        *,
        observed: bool = False,
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        self._store = store
        self._project = project
        self._observed = observed
        self.task = BackgroundTask(
            "projection of observed runs" if observed else "projection of runs",
            self._catch_up_after_pause,
            period=sweep_seconds,
            max_retry_seconds=1.0,
        )
        # Places of entries that failed. A new entry of the run, or a restart, tries again.
        self._failed: set[int] = set()

    def wake(self) -> None:
        """Project the new events of a run soon."""
        self.task.trigger()

    async def _catch_up_after_pause(self) -> None:
        await anyio.sleep(PAUSE_SECONDS)
        await self.catch_up()

    async def catch_up(self) -> None:
        """Process all entries that the queue has now."""
        after = 0
        while page := await self._store.queued_projections(
            after, BATCH_ENTRIES, observed=self._observed
        ):
            after = page[-1].place
            waiting = [each for each in page if each.place not in self._failed]
            await self._store.remove_projections(await self._project_all(waiting))

    async def _project_all(self, entries: Sequence[QueuedProjection]) -> Sequence[QueuedProjection]:
        """Process runs together, or each alone after a failure. Return the successful entries."""
        try:
            await self._project([(each.tenant, each.run_id) for each in entries])
        except Unavailable:
            raise
        except Exception:
            # One entry causes the failure. The others must not wait for it.
            return [each for each in entries if await self._attempt(each)]
        return entries

    async def _attempt(self, entry: QueuedProjection) -> bool:
        try:
            await self._project([(entry.tenant, entry.run_id)])
        except Unavailable:
            raise
        except Exception as error:  # the outer edge of a task
            self._failed.add(entry.place)
            log.error("run not projected", run_id=entry.run_id, exc_info=error)
            return False
        return True
