"""Takes KAHN lines into the fleet: all of a push or nothing, and what is held only once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

import anyio.lowlevel
import anyio.to_thread

from wopr.fleet.growth import Aligned, Family, Push, align_push, read_body, read_lines
from wopr.fleet.lines import numbered
from wopr.fleet.observed_run import Observed
from wopr.fleet.reading import KahnLine
from wopr.fleet.windows import since
from wopr.protocol.errors import SequenceTaken, Unavailable
from wopr.protocol.fleet import Ingested
from wopr.store.port.fleet import Fleet, IngestBatch, Source

T = TypeVar("T")

# From so many bytes on, a push is worked on beside the event loop.
NEAR_BYTES: Final = 16 * 1024
# Each time a push loses the race another one has won, so it is rare to lose many.
TRIES: Final = 20


class Observing(Protocol):
    """Who shows pushed runs as runs of the host."""

    async def observe(self, tenant: str, run_id: str, lines: Sequence[KahnLine]) -> Observed:
        """Build what new lines add to the run that shows them."""
        ...

    def committed(self, observed: Sequence[Observed]) -> None:
        """Hear that it is durable."""
        ...


class Ingest:
    """Takes pushes of producers, and lines of the host's own runs."""

    def __init__(
        self, store: Fleet, now: Callable[[], int], observing: Observing | None = None
    ) -> None:
        self._store = store
        self._now = now
        self._observing = observing

    async def push(self, tenant: str, body: bytes, family: Family = "any") -> Ingested:
        """Take the lines of a body.

        Raises `Refused`, `Conflict` or `Gone` as `align_push` does, and nothing is stored.
        """
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
            aligned = await _beside(partial(align_push, push, held, source), size)
            try:
                await self._write(tenant, aligned, source)
            except SequenceTaken:
                continue  # another push of one of these runs came first
            return Ingested(
                accepted=sum(len(each.lines) for each in aligned.grown),
                duplicate=aligned.duplicates,
                runs=list(push.runs),
            )
        raise Unavailable("other pushes of the same runs keep coming first; try again")

    async def _write(self, tenant: str, aligned: Aligned, source: Source) -> None:
        if not aligned.grown:
            return
        observing = self._observing if source == "push" else None
        shown: list[Observed] = []
        if observing is not None:
            for growth, lines in aligned.grown:
                shown.append(await observing.observe(tenant, growth.run.run_id, lines))
                # A push may hold hundreds of runs, and others wait for the event loop too.
                await anyio.lowlevel.checkpoint()
        batch = IngestBatch(
            growths=tuple(each.growth for each in aligned.grown),
            since=since(self._now()),
            observed=tuple(each.batch for each in shown),
        )
        await self._store.fleet_ingest(tenant, batch)
        if observing is not None:
            observing.committed(shown)


async def _beside(work: Callable[[], T], size: int) -> T:
    """Do what may take long on a thread, so that other requests go on meanwhile."""
    return work() if size < NEAR_BYTES else await anyio.to_thread.run_sync(work)
