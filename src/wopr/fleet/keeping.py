"""Keeps the fleet in order as time passes: windows move on, and old runs go (section 9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from wopr.fleet.instants import from_millis, read_ts
from wopr.fleet.observed_ids import observed_run_id
from wopr.fleet.statistics import KEPT_FOR, SOFT_DELETED_FOR, Retention, retention
from wopr.fleet.windows import since
from wopr.store.port.fleet_clockwork import FleetClockwork

_AT_ONCE: Final = 200
_MILLISECOND: Final = timedelta(milliseconds=1)


class Keeping:
    """What a job does to the fleet of all tenants."""

    def __init__(self, store: FleetClockwork, now: Callable[[], int]) -> None:
        self._store = store
        self._now = now

    async def settle(self) -> None:
        """Let the totals of the windows begin where the windows begin now."""
        await self._store.fleet_settle(since(self._now()))

    async def retain(self) -> tuple[int, int]:
        """Hide runs whose time is over and delete those hidden long enough; says how many."""
        hidden = deleted = 0
        while due := await self._due():
            to_hide = [each for each, what in due if what == "soft_delete"]
            to_delete = [each for each, what in due if what == "hard_delete"]
            await self._store.fleet_hide(to_hide, self._now())
            await self._store.fleet_delete(
                [(tenant, run_id, observed_run_id(tenant, run_id)) for tenant, run_id in to_delete]
            )
            hidden += len(to_hide)
            deleted += len(to_delete)
        return hidden, deleted

    async def _due(self) -> Sequence[tuple[tuple[str, str], Retention]]:
        now = self._now()
        aged = await self._store.fleet_aged(
            now - KEPT_FOR // _MILLISECOND, now - SOFT_DELETED_FOR // _MILLISECOND, _AT_ONCE
        )
        return [
            ((tenant, run_id), retention(_moment(started), _known(hidden), _moment(now)))
            for tenant, run_id, started, hidden in aged
        ]


def _moment(millis: int) -> datetime:
    return read_ts(from_millis(millis))


def _known(millis: int | None) -> datetime | None:
    return None if millis is None else _moment(millis)
