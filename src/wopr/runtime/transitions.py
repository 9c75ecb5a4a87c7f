"""A run's log as KAHN lines, read and written page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

import msgspec

from wopr.agents.registry import Agents
from wopr.fleet.bridge import Projector
from wopr.fleet.bridge_acts import Thresholds
from wopr.fleet.observed_ids import is_observed_run, observed_run_id, producer_run_id
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import NotFound
from wopr.protocol.events import RunEvent
from wopr.store.port import RunLog, RunRow
from wopr.store.port.feedback import Annotations
from wopr.store.port.fleet import Fleet

PAGE: Final = 500

_EVENTS = msgspec.json.Decoder(RunEvent)
_ANNOTATIONS = msgspec.json.Decoder(JsonObject)


class TransitionStore(RunLog, Annotations, Protocol):
    """What a projection reads."""


class ArchiveStore(TransitionStore, Fleet, Protocol):
    """What an export reads: logs of the host's own runs, and lines that were pushed."""


class Projectors:
    """Makes projectors that know how sure this host asked the agents of a tenant to be."""

    def __init__(self, agents: Agents, floor: float) -> None:
        self._agents = agents
        self._floor = floor

    async def new(self, tenant: str) -> Projector:
        """A projector for a run of the tenant."""
        await self._agents.load(tenant)
        manifest = partial(self._agents.threshold, tenant)
        return Projector(asked=Thresholds(manifest=manifest, floor=self._floor))


class ProjectedPage(NamedTuple):
    """The lines of a stretch of the log, without newlines, and where the next one begins."""

    lines: list[bytes]
    next_sequence: int


class Transitions:
    """Gives runs as KAHN lines: a pushed run from the archive, a run of the host from its log."""

    def __init__(
        self,
        store: ArchiveStore,
        catch_up: Callable[[str, str], Awaitable[None]],
        projectors: Projectors,
    ) -> None:
        self._store = store
        self._catch_up = catch_up
        self._projectors = projectors

    async def find(self, tenant: str, run_id: str) -> RunRow:
        """The run of that id; an observed one is also known by the id that its producer gave it."""
        for name in (run_id, observed_run_id(tenant, run_id)):
            await self._catch_up(tenant, name)
            row = await self._store.run(tenant, name)
            if row is not None:
                return row
        raise NotFound(f"there is no run {run_id!r}")

    async def chunks(self, tenant: str, run_id: str) -> AsyncIterator[bytes]:
        """The lines of a run with their newlines, page by page.

        An observed run gives the producer's bytes: its log is redacted, the archive is not. Of any
        other run that is over, the annotations follow.
        """
        if is_observed_run(run_id):
            async for piece in self._store.fleet_lines(tenant, producer_run_id(run_id)):
                yield piece
            return
        projector = await self._projectors.new(tenant)
        async for page in project_log(self._store, tenant, run_id, projector):
            if page.lines:
                yield _text(page.lines)
        if projector.is_over:
            async for noted in annotation_pages(self._store, tenant, run_id):
                if lines := projector.finish(noted):
                    yield _text(lines)


async def project_log(
    store: RunLog, tenant: str, run_id: str, projector: Projector, start: int = 0
) -> AsyncIterator[ProjectedPage]:
    """Feed a log to a projector from an event on, and give the lines of each page."""
    while page := await store.read(tenant, run_id, start, PAGE):
        lines = [line for event in page for line in projector.feed(_EVENTS.decode(event.body))]
        start = page[-1].sequence + 1
        yield ProjectedPage(lines, start)


async def annotation_pages(
    store: Annotations, tenant: str, run_id: str
) -> AsyncIterator[list[JsonObject]]:
    """The annotations of a run in the order of their making, page by page."""
    after: tuple[int, str] | None = None
    while page := await store.annotations(tenant, run_id, after, PAGE):
        yield [_ANNOTATIONS.decode(row.body) for row in page]
        after = page[-1].created_at, page[-1].annotation_id


def _text(lines: list[bytes]) -> bytes:
    return b"\n".join([*lines, b""])
