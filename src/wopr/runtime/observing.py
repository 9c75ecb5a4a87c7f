"""Observed runs as pushes come in: builds what each push adds, and tells readers once it is kept.

Whoever takes a push asks `observe` for each run that has new lines, writes the batches with the
lines in one transaction, and then says `committed`. Nothing is to be undone when that fails: what
was built is forgotten, and the next push begins with what the log holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol

import anyio.to_thread
import msgspec

from wopr.fleet.observe import SOURCE
from wopr.fleet.observed_ids import is_observed_run
from wopr.fleet.observed_run import Observed, ObservedRun
from wopr.fleet.reading import KahnLine
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import Conflict, SequenceTaken
from wopr.protocol.events import RunEvent
from wopr.runtime.bus import Bus, Notice
from wopr.runtime.feedback import ANNOTATED
from wopr.store.port import RunLog
from wopr.store.port.fleet import Fleet

# A run that is pushed in many chunks is followed and not read again with each of them.
KEPT_RUNS: Final = 1024
PAGE: Final = 1000
NEAR_LINES: Final = 100

_EVENTS = msgspec.json.Decoder(RunEvent)


def origin(run_id: str) -> JsonObject:
    """Where a run comes from that is not the host's own; empty for those that are."""
    return {"source": SOURCE} if is_observed_run(run_id) else {}


class ObservingStore(RunLog, Fleet, Protocol):
    """What observing needs of the store."""


class Observers:
    """Follows the KAHN runs that were pushed of late.

    `project`, once the host has set it, gives the fleet the lines of a run of the host's own.
    """

    def __init__(
        self,
        store: ObservingStore,
        bus: Bus,
        advertises: Callable[[str], bool],
        *,
        now: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self.project: Callable[[str, str], Awaitable[None]] | None = None
        self._store = store
        self._bus = bus
        self._advertises = advertises
        self._now = now
        self._new_id = new_id
        self._kept: OrderedDict[str, ObservedRun] = OrderedDict()

    async def observe(self, tenant: str, run_id: str, lines: Sequence[KahnLine]) -> Observed:
        """Build what new lines, of which there is at least one, add to the run that shows them.

        Raises `SequenceTaken` when they are of a run of the host's own that the fleet had not heard
        of, and now has: align again. They are held then, or they contradict it.
        """
        run = ObservedRun(tenant, run_id, self._advertises)
        # Taken out until it is committed: a push that fails leaves nothing half known.
        run = self._kept.pop(run.run_id, run)
        while page := await self._store.read(tenant, run.run_id, run.next_sequence, PAGE):
            run.recall(_EVENTS.decode(event.body) for event in page)
        if not run.next_sequence:
            await self._require_foreign(tenant, run_id)
        take = partial(run.take, lines, now=self._now(), new_id=self._new_id)
        # Many lines of one run are worth the hop to a thread; others wait for the event loop too.
        batch = take() if len(lines) < NEAR_LINES else await anyio.to_thread.run_sync(take)
        return Observed(run, batch)

    async def _require_foreign(self, tenant: str, run_id: str) -> None:
        """See to it that what came out of this host does not come in as a second run."""
        if self.project is None or await self._store.run(tenant, run_id) is None:
            return
        await self.project(tenant, run_id)
        if await self._store.fleet_run(tenant, run_id) is not None:
            raise SequenceTaken("the fleet has heard of the run by now", runId=run_id)
        raise Conflict(
            "this run is the host's own, and no agent acted in it",
            code="would_rewrite",
            runId=run_id,
        )

    def forget(self, run_id: str) -> None:
        """Hear that an observed run was deleted: what is pushed under its name is a new one."""
        self._kept.pop(run_id, None)

    def committed(self, observed: Sequence[Observed]) -> None:
        """Hear that batches are durable: remember their runs, and tell who reads them."""
        for each in observed:
            self._kept[each.run.run_id] = each.run
            self._bus.publish(each.run.run_id, each.batch.events)
            for row in each.batch.annotations:
                self._bus.notify(each.run.run_id, Notice(ANNOTATED, row.body))
        while len(self._kept) > KEPT_RUNS:
            self._kept.popitem(last=False)
