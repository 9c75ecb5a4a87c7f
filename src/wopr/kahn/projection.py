"""The host's own runs as KAHN lines: exported page by page, and stored in the fleet.

A line that is projected again has the same bytes, so it is not stored twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

import anyio
import anyio.lowlevel
import msgspec

from wopr.agents.registry import AgentRegistry
from wopr.kahn.bridge.handlers import ConfidenceThresholds
from wopr.kahn.bridge.projection import Projector
from wopr.kahn.new_lines import line_hash
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import NotFound
from wopr.protocol.events import RunEvent
from wopr.protocol.observed_ids import is_observed_run, observed_run_id, producer_run_id
from wopr.store.port import RunLog, RunRow
from wopr.store.port.feedback import Annotations
from wopr.store.port.fleet import Fleet

PAGE: Final = 500

_EVENTS = msgspec.json.Decoder(RunEvent)
_ANNOTATIONS = msgspec.json.Decoder(JsonObject)


class TransitionStore(RunLog, Annotations, Protocol):
    """The parts of the store that a projection reads."""


class ArchiveStore(TransitionStore, Fleet, Protocol):
    """The parts of the store that an export reads: logs of own runs, and pushed lines."""


class ProjectorFactory:
    """Creates projectors with the confidence thresholds of a tenant's agents."""

    def __init__(self, agents: AgentRegistry, floor: float) -> None:
        self._agents = agents
        self._floor = floor

    async def new(self, tenant: str) -> Projector:
        """Return a projector for a run of the tenant."""
        await self._agents.load(tenant)
        manifest = partial(self._agents.threshold, tenant)
        return Projector(thresholds=ConfidenceThresholds(manifest=manifest, floor=self._floor))


class ProjectedPage(NamedTuple):
    """The lines of a page of the log, without newlines, and the sequence where the next page begins."""

    lines: list[bytes]
    next_sequence: int


class Transitions:
    """Exports runs as KAHN lines: a pushed run from its stored lines, an own run from its log."""

    def __init__(
        self,
        store: ArchiveStore,
        catch_up: Callable[[str, str], Awaitable[None]],
        projector_factory: ProjectorFactory,
    ) -> None:
        self._store = store
        self._catch_up = catch_up
        self._projector_factory = projector_factory

    async def find(self, tenant: str, run_id: str) -> RunRow:
        """Return the run of that id, which may also be a producer's id of an observed run."""
        for name in (run_id, observed_run_id(tenant, run_id)):
            await self._catch_up(tenant, name)
            row = await self._store.run(tenant, name)
            if row is not None:
                return row
        raise NotFound(f"there is no run {run_id!r}")

    async def chunks(self, tenant: str, run_id: str) -> AsyncIterator[bytes]:
        """Yield the lines of a run with their newlines, page by page.

        For an observed run these are the producer's lines, which are not redacted. For an own run
        that has ended the annotations follow.
        """
        if is_observed_run(run_id):
            async for piece in self._store.fleet_lines(tenant, producer_run_id(run_id)):
                yield piece
            return
        projector = await self._projector_factory.new(tenant)
        async for page in project_log(self._store, tenant, run_id, projector):
            if page.lines:
                yield _text(page.lines)
        if projector.is_over:
            async for page_of_annotations in annotation_pages(self._store, tenant, run_id):
                if lines := projector.finish(page_of_annotations):
                    yield _text(lines)


async def project_log(
    store: RunLog, tenant: str, run_id: str, projector: Projector, start: int = 0
) -> AsyncIterator[ProjectedPage]:
    """Project a log from an event on, and yield the lines of each page."""
    while page := await store.read(tenant, run_id, start, PAGE):
        lines = [line for event in page for line in projector.feed(_EVENTS.decode(event.body))]
        start = page[-1].sequence + 1
        yield ProjectedPage(lines, start)


async def annotation_pages(
    store: Annotations, tenant: str, run_id: str
) -> AsyncIterator[list[JsonObject]]:
    """Yield the annotations of a run, oldest first, page by page."""
    after: tuple[int, str] | None = None
    while page := await store.annotations(tenant, run_id, after, PAGE):
        yield [_ANNOTATIONS.decode(row.body) for row in page]
        after = page[-1].created_at, page[-1].annotation_id


def _text(lines: list[bytes]) -> bytes:
    return b"\n".join([*lines, b""])


# Stores lines of the host's own runs, without newlines.
StoreLines: TypeAlias = Callable[[str, Sequence[bytes]], Awaitable[object]]

# A run with more unsaved lines is stored at once, and not together with other runs.
MAX_PENDING_LINES: Final = 2000
# Number of runs in the cache, so that a long log is not read from its beginning each time.
CACHED_RUNS: Final = 512


@dataclass(slots=True)
class _ProjectedRun:
    """The progress of the projection of a run."""

    tenant: str
    run_id: str
    projector: Projector
    next_sequence: int = 0
    # Projected lines that are not stored yet.
    lines: list[bytes] = field(default_factory=list[bytes])
    # The hashes of the stored lines of annotations.
    annotation_hashes: set[bytes] = field(default_factory=set[bytes])


class Projection:
    """Projects the host's own runs onto KAHN lines, and stores these in the fleet."""

    def __init__(
        self,
        store: TransitionStore,
        store_lines: StoreLines,
        new_projector: Callable[[str], Awaitable[Projector]],
    ) -> None:
        self._store = store
        self._store_lines = store_lines
        self._new_projector = new_projector
        self._lock = anyio.Lock()
        self._cache: OrderedDict[str, _ProjectedRun] = OrderedDict()

    async def project(self, runs: Sequence[tuple[str, str]]) -> None:
        """Project and store the new events and annotations of these `(tenant, run_id)`."""
        async with self._lock:
            read = [await self._read(tenant, run_id) for tenant, run_id in runs]
            projected = [each for each in read if each is not None]
            await self._store_pending(projected)
            for each in projected:
                await self._store_annotations(each)
                self._cache[each.run_id] = each
            while len(self._cache) > CACHED_RUNS:
                self._cache.popitem(last=False)

    async def _read(self, tenant: str, run_id: str) -> _ProjectedRun | None:
        """Project the new events of a run; None for a deleted or an observed run."""
        if is_observed_run(run_id) or await self._store.run(tenant, run_id) is None:
            return None
        # Removed from the cache until all lines are stored, so that a failure leaves no wrong
        # state.
        projected = self._cache.pop(run_id, None) or _ProjectedRun(
            tenant, run_id, await self._new_projector(tenant)
        )
        start = projected.next_sequence
        # Reading a short log does not yield to the event loop, so let other tasks run.
        await anyio.lowlevel.checkpoint()
        async for page in project_log(self._store, tenant, run_id, projected.projector, start):
            if len(projected.lines) > MAX_PENDING_LINES:
                await self._store_pending([projected])
            projected.lines += page.lines
            projected.next_sequence = page.next_sequence
        return projected

    async def _store_pending(self, projected: Sequence[_ProjectedRun]) -> None:
        by_tenant: dict[str, list[bytes]] = {}
        for each in projected:
            if each.lines:
                by_tenant.setdefault(each.tenant, []).extend(each.lines)
        for tenant, lines in by_tenant.items():
            await self._store_lines(tenant, lines)
        for each in projected:
            each.lines = []

    async def _store_annotations(self, projected: _ProjectedRun) -> None:
        """Store the annotations of a run that has ended.

        Each is stored alone. Annotations may be stored in another order than they were created, and
        a new line before a stored line would be refused.
        """
        tenant, projector = projected.tenant, projected.projector
        if not projector.is_over:
            return
        async for page in annotation_pages(self._store, tenant, projected.run_id):
            for line in projector.finish(page):
                digest = line_hash(line)
                if digest not in projected.annotation_hashes:
                    await self._store_lines(tenant, [line])
                    projected.annotation_hashes.add(digest)
