"""Takes KAHN lines into the fleet: all of a push or nothing, and what is held only once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Final, Protocol, TypeVar

import anyio.to_thread

from wopr.fleet.growth import Aligned, Family, Push, align_push, read_body, read_lines
from wopr.fleet.instants import from_millis
from wopr.fleet.keeping import KeepRule
from wopr.fleet.lines import numbered
from wopr.fleet.observed_ids import observed_run_id
from wopr.fleet.run_fold import Arrival
from wopr.fleet.windows import since
from wopr.protocol.errors import SequenceTaken, Unavailable
from wopr.protocol.fleet import ExpiringRun, Ingested
from wopr.store.port.fleet import Fleet, HeldRun, IngestBatch, Source, Touch

T = TypeVar("T")

# From so many bytes on, a push is worked on beside the event loop.
NEAR_BYTES: Final = 16 * 1024
# Runs that retention drops within this time are named in the answer to a push, up to so many.
SOON_MS: Final = 7 * 86_400_000
MOST_EXPIRING: Final = 100
# Each time a push loses the race another one has won, so it is rare to lose many.
TRIES: Final = 20


class Observing(Protocol):
    """Who shows pushed runs as runs of the host."""

    async def tell_own(self, tenant: str, run_ids: Sequence[str]) -> Collection[str]:
        """Name those that are runs of the host's own; the fleet has been told of them by then."""
        ...

    def pushing(self) -> AbstractContextManager[None]:
        """Say how long a push is worked on."""
        ...

    def pushed(self, run_ids: Sequence[str]) -> None:
        """Hear that observed runs have lines to show, which are durable."""
        ...


class Ingest:
    """Takes pushes of producers, and lines of the host's own runs.

    `redact` takes a tenant and a text, and returns the text without secrets.
    """

    def __init__(
        self,
        store: Fleet,
        now: Callable[[], int],
        observing: Observing | None = None,
        *,
        redact: Callable[[str, str], str] | None = None,
        rule: KeepRule | None = None,
    ) -> None:
        self._store = store
        self._now = now
        self._observing = observing
        self._redact = redact
        self._kept_for = (rule or KeepRule()).pushed

    async def push(self, tenant: str, body: bytes, family: Family = "any") -> Ingested:
        """Take the lines of a body.

        Raises `Refused`, `Conflict` or `Gone` as `align_push` does, and nothing is stored.
        """
        with nullcontext() if self._observing is None else self._observing.pushing():
            push = await _beside(partial(read_body, body, family), len(body))
            return await self._put(tenant, push, "push", len(body))

    async def put_own(self, tenant: str, lines: Sequence[bytes]) -> Ingested:
        """Take lines of the host's own runs, given without their newlines."""
        size = sum(map(len, lines))
        push = await _beside(partial(read_lines, numbered(lines)), size)
        return await self._put(tenant, push, "host", size)

    async def _put(self, tenant: str, push: Push, source: Source, size: int) -> Ingested:
        for _ in range(TRIES):
            held = await self._store.fleet_held(tenant, list(push.runs))
            own: Collection[str] = ()
            if source == "push" and len(held) < len(push.runs):
                held, own = await self._without_own(tenant, push, held)
            redact = str if self._redact is None else partial(self._redact, tenant)
            arrival = Arrival(source=source, at=self._now(), redact=redact)
            aligned = await _beside(partial(align_push, push, held, arrival, own), size)
            try:
                await self._write(tenant, aligned, source)
            except SequenceTaken:
                continue  # another push of one of these runs came first
            return Ingested(
                accepted=aligned.accepted,
                duplicate=aligned.duplicates,
                runs=list(push.runs),
                expiring=[] if source == "host" else await self._expiring(tenant, push, aligned),
            )
        raise Unavailable("other pushes of the same runs keep coming first; try again")

    async def _expiring(self, tenant: str, push: Push, aligned: Aligned) -> list[ExpiringRun]:
        """The tenant's pushed runs that retention drops soon; a push of held lines keeps a run too."""
        if self._kept_for is None:
            return []
        kept_ms = self._kept_for // timedelta(milliseconds=1)
        now = self._now()
        written = {growth.run.run_id for growth in aligned.growths}
        repeated = tuple(run_id for run_id in push.runs if run_id not in written)
        if repeated:
            await self._store.fleet_touch(tenant, Touch(run_ids=repeated, at=now))
        found = await self._store.fleet_expiring(tenant, now - kept_ms + SOON_MS, MOST_EXPIRING)
        return [
            ExpiringRun(run_id=run_id, drops_at=from_millis(pushed_at + kept_ms))
            for run_id, pushed_at in found
            if run_id not in push.runs
        ]

    async def _without_own(
        self, tenant: str, push: Push, held: dict[str, HeldRun]
    ) -> tuple[dict[str, HeldRun], Collection[str]]:
        """What is held, and which runs are the host's own, once it has told of those."""
        if self._observing is None:
            return held, ()
        strangers = [run_id for run_id in push.runs if run_id not in held]
        own = await self._observing.tell_own(tenant, strangers)
        if own:
            held = await self._store.fleet_held(tenant, list(push.runs))
        return held, own

    async def _write(self, tenant: str, aligned: Aligned, source: Source) -> None:
        if not aligned.growths:
            return
        observing = self._observing if source == "push" else None
        names = (growth.run.run_id for growth in aligned.growths if observing is not None)
        shown_by = tuple(observed_run_id(tenant, name) for name in names)
        batch = IngestBatch(growths=aligned.growths, since=since(self._now()), shown_by=shown_by)
        await self._store.fleet_ingest(tenant, batch)
        if observing is not None:
            observing.pushed(shown_by)


async def _beside(work: Callable[[], T], size: int) -> T:
    """Do what may take long on a thread, so that other requests go on meanwhile."""
    return work() if size < NEAR_BYTES else await anyio.to_thread.run_sync(work)
