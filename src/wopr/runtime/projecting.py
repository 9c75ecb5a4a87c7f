"""The host's own runs in the fleet: their logs are projected, and the lines given to it.

Lines that were given before are the same bytes when they are given again, and found to be held.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import anyio
import anyio.lowlevel

from wopr.fleet.align import line_hash
from wopr.fleet.bridge import Projector
from wopr.fleet.observed_ids import is_observed_run
from wopr.runtime.transitions import TransitionStore, annotation_pages, project_log

# Takes lines of the host's own runs, given without their newlines.
Intake: TypeAlias = Callable[[str, Sequence[bytes]], Awaitable[object]]

# Lines of one run that are not kept back to be given with those of others.
LINES_AT_ONCE: Final = 2000
# Runs that are followed, so that a long one is not read from its beginning at every step.
KEPT_RUNS: Final = 512


@dataclass(slots=True)
class _Followed:
    """A run as far as it has been projected."""

    tenant: str
    run_id: str
    projector: Projector
    next_sequence: int = 0
    # Lines that the fleet is still to be given.
    lines: list[bytes] = field(default_factory=list[bytes])
    # Annotations that the fleet has, by the hash of their line.
    noted: set[bytes] = field(default_factory=set[bytes])


class Projection:
    """Tells the fleet what the host's own runs did."""

    def __init__(
        self,
        store: TransitionStore,
        intake: Intake,
        new_projector: Callable[[str], Awaitable[Projector]],
    ) -> None:
        self._store = store
        self._intake = intake
        self._new_projector = new_projector
        self._one_at_a_time = anyio.Lock()
        self._followed: OrderedDict[str, _Followed] = OrderedDict()

    async def project(self, runs: Sequence[tuple[str, str]]) -> None:
        """Give the fleet all lines of these `(tenant, run_id)` that it has not been given yet."""
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
        followed = self._followed.pop(run_id, None) or _Followed(
            tenant, run_id, await self._new_projector(tenant)
        )
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
