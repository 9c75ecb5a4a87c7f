"""The host's own runs in the fleet: a task that projects whatever has news, once it is on the log.

The store knows which runs have news, by an entry written in the transaction that made them. An
entry is taken out after its lines are kept; between the two the host may die, and then the lines
are given again and found to be held. So nothing is lost and nothing is there twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

import anyio
import anyio.lowlevel
import structlog

from wopr.fleet.align import line_hash
from wopr.fleet.bridge import Projector
from wopr.fleet.observed_ids import is_observed_run
from wopr.protocol.errors import Unavailable, WoprError
from wopr.runtime.transitions import TransitionStore, annotation_pages, project_log
from wopr.store.port.projections import Projections, Unprojected

# Takes lines of the host's own runs, given without their newlines.
Intake: TypeAlias = Callable[[str, Sequence[bytes]], Awaitable[object]]

# Runs that move on quickly are projected once for several of their steps.
PAUSE_SECONDS: Final = 0.2
# How often the store is asked for what nobody in this process has heard of.
SWEEP_SECONDS: Final = 30.0
STORE_AWAY_SECONDS: Final = 1.0
# Runs that are given to the fleet together, and lines of one run that are not kept back for that.
AT_ONCE: Final = 64
LINES_AT_ONCE: Final = 2000
# Runs that are followed, so that a long one is not read from its beginning at every step.
KEPT_RUNS: Final = 512

log = structlog.get_logger("wopr.fleet")


class ProjectionStore(Projections, TransitionStore, Protocol):
    """What the task needs of the store."""


@dataclass(slots=True)
class _Followed:
    """A run as far as it has been projected."""

    tenant: str
    run_id: str
    projector: Projector = field(default_factory=Projector)
    next_sequence: int = 0
    # Lines that the fleet is still to be given.
    lines: list[bytes] = field(default_factory=list[bytes])
    # Annotations that the fleet has, by the hash of their line.
    noted: set[bytes] = field(default_factory=set[bytes])


class Projection:
    """Tells the fleet what the host's own runs did."""

    def __init__(self, store: ProjectionStore, intake: Intake) -> None:
        self._store = store
        self._intake = intake
        self._news = anyio.Event()
        self._one_at_a_time = anyio.Lock()
        self._followed: OrderedDict[str, _Followed] = OrderedDict()
        # Entries that could not be projected; new news of their run, or a restart, tries again.
        self._given_up: set[int] = set()

    def wake(self) -> None:
        """Hear that a run has news."""
        self._news.set()

    async def run_forever(self) -> None:
        """Project until cancelled."""
        while True:
            self._news = anyio.Event()
            try:
                await self.catch_up()
            except WoprError as error:
                log.error("the fleet waits for the store", code=error.code, message=str(error))
                await anyio.sleep(STORE_AWAY_SECONDS)
                continue
            with anyio.move_on_after(SWEEP_SECONDS):
                await self._news.wait()
            await anyio.sleep(PAUSE_SECONDS)

    async def catch_up(self) -> None:
        """Project every run that has news now."""
        after = 0
        while page := await self._store.unprojected(after, AT_ONCE):
            after = page[-1].place
            waiting = [each for each in page if each.place not in self._given_up]
            await self._store.projected(await self._project_all(waiting))

    async def project(self, tenant: str, run_id: str) -> None:
        """Give the fleet all lines of a run that it has not been given yet."""
        await self._project([(tenant, run_id)])

    async def _project_all(self, entries: Sequence[Unprojected]) -> Sequence[Unprojected]:
        """Project runs together, which is cheaper, or else each by itself; those that went well."""
        try:
            await self._project([(each.tenant, each.run_id) for each in entries])
        except Unavailable:
            raise
        except Exception:
            # One of them is to blame, and must not keep the others back.
            return [each for each in entries if await self._attempt(each)]
        return entries

    async def _attempt(self, entry: Unprojected) -> bool:
        try:
            await self.project(entry.tenant, entry.run_id)
        except Unavailable:
            raise
        except Exception as error:  # the outer edge of a task
            self._given_up.add(entry.place)
            log.error("run not projected", run_id=entry.run_id, exc_info=error)
            return False
        return True

    async def _project(self, runs: Sequence[tuple[str, str]]) -> None:
        async with self._one_at_a_time:
            read = [await self._read(tenant, run_id) for tenant, run_id in runs]
            followed = [each for each in read if each is not None]
            await self._give(followed)
            for each in followed:
                await self._give_annotations(each)
                self._followed[each.run_id] = each
            while len(self._followed) > KEPT_RUNS:
                self._followed.popitem(last=False)

    async def _read(self, tenant: str, run_id: str) -> _Followed | None:
        """Project what a log has had since; None for a run that is gone or that was observed."""
        if is_observed_run(run_id) or await self._store.run(tenant, run_id) is None:
            return None
        # Taken out until all is given: a failure leaves nothing half known.
        followed = self._followed.pop(run_id, None) or _Followed(tenant, run_id)
        start = followed.next_sequence
        # Short logs are read without waiting: let others have their turn in between.
        await anyio.lowlevel.checkpoint()
        async for page in project_log(self._store, tenant, run_id, followed.projector, start):
            if len(followed.lines) > LINES_AT_ONCE:
                await self._give([followed])
            followed.lines += page.lines
            followed.next_sequence = page.next_sequence
        return followed

    async def _give(self, followed: Sequence[_Followed]) -> None:
        by_tenant: dict[str, list[bytes]] = {}
        for each in followed:
            if each.lines:
                by_tenant.setdefault(each.tenant, []).extend(each.lines)
        for tenant, lines in by_tenant.items():
            await self._intake(tenant, lines)
        for each in followed:
            each.lines = []

    async def _give_annotations(self, followed: _Followed) -> None:
        """Give the fleet the annotations of a run that is over.

        Each by itself: one may be stored after a younger one, and lines behind lines that the
        fleet has not would look like another history.
        """
        tenant, projector = followed.tenant, followed.projector
        if not projector.is_over:
            return
        async for page in annotation_pages(self._store, tenant, followed.run_id):
            for line in projector.finish(page):
                digest = line_hash(line)
                if digest not in followed.noted:
                    await self._intake(tenant, [line])
                    followed.noted.add(digest)
