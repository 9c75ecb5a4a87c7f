"""Observed runs: pushed KAHN runs as runs of this host, built after the push.

A push is answered when its lines are durable. The log of the observed run is built from them
afterwards, by a task or for its first reader. The log itself says how far it is built, so nothing
is undone when building fails: it goes on where the log ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol, TypeAlias

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec

from wopr.fleet.observe import SOURCE
from wopr.fleet.observed_ids import is_observed_run, observed_run_id, producer_run_id
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import SequenceTaken
from wopr.protocol.events import RunEvent
from wopr.runtime.bus import Bus
from wopr.runtime.feedback import announce
from wopr.runtime.fleet_debts import AT_ONCE
from wopr.runtime.observed_run import LogRules, ObservedRun
from wopr.store.port import Batch, RunLog
from wopr.store.port.fleet import Fleet
from wopr.store.port.fleet_clockwork import FleetClockwork
from wopr.store.port.projections import Projections

# A run that is pushed in many pieces is followed and not read again with each of them.
KEPT_RUNS: Final = 1024
PAGE: Final = 250
# So many bytes of lines are built in one transaction, and one push more.
MOST_BYTES: Final = 1_048_576
# From so many bytes on, building goes on beside the event loop.
NEAR_BYTES: Final = 16 * 1024
# So long a list waits for runs that are still to be built; then it goes without them.
LISTING_SECONDS: Final = 0.5
# Pushes go first. So long the task waits for a moment without one; then it builds some runs.
PATIENCE_SECONDS: Final = 1.0

# By the producer's id of the run: its lines in each push.
Pushes: TypeAlias = dict[str, list[bytes]]

_EVENTS = msgspec.json.Decoder(RunEvent)


def origin(run_id: str) -> JsonObject:
    """Where a run comes from that is not the host's own; empty for those that are."""
    return {"source": SOURCE} if is_observed_run(run_id) else {}


class ObservingStore(RunLog, Fleet, FleetClockwork, Projections, Protocol):
    """What observing needs of the store."""


class Observers:
    """Builds the runs that show what was pushed.

    The host sets `project`, which gives the fleet the lines of runs of the host's own, and `wake`,
    which calls the task that has `show` build whatever waits.
    """

    def __init__(
        self,
        store: ObservingStore,
        bus: Bus,
        rules: LogRules,
        *,
        now: Callable[[], int],
        new_id: Callable[[], str],
        appended: Callable[[str, int], None],
    ) -> None:
        self.project: Callable[[Sequence[tuple[str, str]]], Awaitable[None]] | None = None
        self.wake: Callable[[], None] = _nobody
        self._store = store
        self._bus = bus
        self._rules = rules
        self._now = now
        self._new_id = new_id
        # Counts the events that were appended for a tenant.
        self._appended = appended
        self._one_at_a_time = anyio.Lock()
        self._kept: OrderedDict[str, ObservedRun] = OrderedDict()
        self._pushes = 0
        self._quiet = anyio.Event()

    # What a push does

    async def tell_own(self, tenant: str, run_ids: Sequence[str]) -> set[str]:
        """Name those that are runs of the host's own; the fleet has been told of them by then.

        What came out of this host must not come in as a second run.
        """
        own = await self._store.fleet_namesakes(tenant, run_ids)
        if own and self.project is not None:
            await self.project([(tenant, run_id) for run_id in sorted(own)])
        return own

    @contextmanager
    def pushing(self) -> Generator[None, None, None]:
        """Keep the task waiting while a push is worked on."""
        self._pushes += 1
        try:
            yield
        finally:
            self._pushes -= 1
            if not self._pushes:
                self._quiet.set()
                self._quiet = anyio.Event()

    def pushed(self, run_ids: Iterable[str]) -> None:
        """Hear that observed runs have lines to show: call the task, and those who read them now."""
        self.wake()
        for run_id in run_ids:
            self._bus.publish(run_id, ())

    # What readers do

    async def catch_up(self, tenant: str, run_id: str) -> None:
        """Build an observed run as far as lines were pushed, before it is read.

        Nothing is done for any other run.
        """
        if is_observed_run(run_id) and await self._store.is_unprojected(tenant, run_id):
            await self._build(tenant, [producer_run_id(run_id)])

    async def catch_up_all(self, tenant: str) -> None:
        """Build all that waits of a tenant, before its runs are listed; for a moment at most."""
        deadline = anyio.current_time() + LISTING_SECONDS
        after = 0
        while page := await self._store.unprojected_of(tenant, after, AT_ONCE):
            after = page[-1].place
            await self._build(tenant, [producer_run_id(each.run_id) for each in page])
            await self._store.projected(page)
            if anyio.current_time() > deadline:
                return

    # What the task does

    async def show(self, runs: Sequence[tuple[str, str]]) -> None:
        """Build these observed `(tenant, run_id)`, once no push is under way or after a while."""
        if self._pushes:
            with anyio.move_on_after(PATIENCE_SECONDS):
                await self._quiet.wait()
        by_tenant: dict[str, list[str]] = {}
        for tenant, run_id in runs:
            by_tenant.setdefault(tenant, []).append(producer_run_id(run_id))
        for tenant, run_ids in by_tenant.items():
            await self._build(tenant, run_ids)

    async def _build(self, tenant: str, run_ids: Sequence[str]) -> None:
        """Build these runs, each called as its producer does."""
        async with self._one_at_a_time:
            while not await self._is_built(tenant, run_ids):
                # Another process builds them too: look at how far it is.
                await anyio.lowlevel.checkpoint()

    async def _is_built(self, tenant: str, run_ids: Sequence[str]) -> bool:
        """Build as far as lines were pushed; False when another process was in the way."""
        # Taken out until their batches are kept: a failure leaves nothing half known.
        followed = {each: await self._follow(tenant, each) for each in run_ids}
        try:
            while news := await self._news(tenant, followed):
                # An append that nobody waits for may come after the next look at the log.
                with anyio.CancelScope(shield=True):
                    await self._append(tenant, followed, news)
        except SequenceTaken:
            return False
        self._kept.update((run.run_id, run) for run in followed.values())
        while len(self._kept) > KEPT_RUNS:
            self._kept.popitem(last=False)
        return True

    async def _follow(self, tenant: str, run_id: str) -> ObservedRun:
        """The run as far as its log goes."""
        run = await self._recalled(tenant, run_id)
        while page := await self._store.read(tenant, run.run_id, run.next_sequence, PAGE):
            run.recall(_EVENTS.decode(event.body) for event in page)
            # A log is read without waiting: let others have their turn in between.
            await anyio.lowlevel.checkpoint()
        if run.known_lines < run.lines:
            # The log is redacted; what the agents did is read from the producer's own lines.
            async for piece in self._store.fleet_lines(tenant, run_id, run.known_lines):
                run.recall_lines(piece)
                if run.known_lines == run.lines:
                    break
        return run

    async def _recalled(self, tenant: str, run_id: str) -> ObservedRun:
        """What is known of the run, unless it was deleted since, by whichever process."""
        kept = self._kept.pop(observed_run_id(tenant, run_id), None)
        if kept is not None:
            last = await self._store.read(tenant, kept.run_id, kept.next_sequence - 1, 1)
            if last and _EVENTS.decode(last[0].body).event_id == kept.last_event_id:
                return kept
        return ObservedRun(tenant, run_id, self._rules)

    async def _news(self, tenant: str, followed: dict[str, ObservedRun]) -> Pushes:
        starts = {run_id: run.lines for run_id, run in followed.items()}
        return await self._store.fleet_news(tenant, starts, MOST_BYTES)

    async def _append(self, tenant: str, followed: dict[str, ObservedRun], news: Pushes) -> None:
        take = partial(_take, followed, news, self._now(), self._new_id)
        size = sum(len(body) for bodies in news.values() for body in bodies)
        batches = take() if size < NEAR_BYTES else await anyio.to_thread.run_sync(take)
        await self._store.append(tenant, batches)
        self._appended(tenant, sum(len(batch.events) for batch in batches))
        begun = {batch.run.run_id for batch in batches if batch.first == 0}
        await self._drop_orphans(tenant, [each for each in news if followed[each].run_id in begun])
        for batch in batches:
            self._bus.publish(batch.run.run_id, batch.events)
            for row in batch.annotations:
                announce(self._bus, batch.run.run_id, row.annotation_id, row.body)

    async def _drop_orphans(self, tenant: str, run_ids: Sequence[str]) -> None:
        """Delete new runs whose lines were deleted while the runs were built."""
        for run_id in run_ids:
            if await self._store.fleet_run(tenant, run_id) is None:
                observed = observed_run_id(tenant, run_id)
                await self._store.fleet_delete([(tenant, run_id, observed)])


def _take(
    followed: dict[str, ObservedRun], news: Pushes, now: int, new_id: Callable[[], str]
) -> list[Batch]:
    return [
        followed[run_id].take(bodies, now=now, new_id=new_id) for run_id, bodies in news.items()
    ]


def _nobody() -> None:
    return None
