"""Retention of KAHN runs, and the windows of their totals as time passes (section 9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from wopr.fleet.instants import from_millis, read_ts
from wopr.fleet.observed_ids import observed_run_id
from wopr.fleet.statistics import OWN_RUNS_KEPT_FOR, SOFT_DELETED_FOR, Retention, retention
from wopr.fleet.windows import since
from wopr.store.port.fleet import Source
from wopr.store.port.fleet_clockwork import FleetClockwork

_AT_ONCE: Final = 200
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRule:
    """How long runs are kept after their last push, by the host's clock.

    Pushed runs are kept for ever unless the operator sets a limit.
    """

    pushed: timedelta | None = None
    own: timedelta = OWN_RUNS_KEPT_FOR

    @classmethod
    def of_days(cls, days: int) -> KeepRule:
        """The rule for a number of days, which counts for all runs; 0 is the default rule."""
        if not days:
            return cls()
        limit = timedelta(days=days)
        return cls(pushed=limit, own=limit)

    def limits(self) -> dict[Source, timedelta]:
        """The sources whose runs expire, and after how long."""
        limits: dict[Source, timedelta] = {"host": self.own}
        if self.pushed is not None:
            limits["push"] = self.pushed
        return limits


class Keeping:
    """What a job does to the fleet of all tenants."""

    def __init__(
        self, store: FleetClockwork, now: Callable[[], int], rule: KeepRule | None = None
    ) -> None:
        self._store = store
        self._now = now
        self._rule = rule or KeepRule()

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
        found: dict[tuple[str, str], Retention] = {}
        for source, limit in self._rule.limits().items():
            aged = await self._store.fleet_aged(
                source,
                now - limit // _MILLISECOND,
                now - SOFT_DELETED_FOR // _MILLISECOND,
                _AT_ONCE,
            )
            for tenant, run_id, pushed, hidden in aged:
                what = retention(_moment(pushed), _known(hidden), _moment(now), limit)
                found[tenant, run_id] = what
        return list(found.items())


def _moment(millis: int) -> datetime:
    return read_ts(from_millis(millis))


def _known(millis: int | None) -> datetime | None:
    return None if millis is None else _moment(millis)
