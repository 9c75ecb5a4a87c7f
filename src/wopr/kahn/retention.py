"""Retention of KAHN runs, and the rolling time windows of their totals (section 9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from wopr.kahn.statistics import (
    OWN_RUNS_KEPT_FOR,
    SOFT_DELETED_FOR,
    RetentionAction,
    retention_action,
    window_starts,
)
from wopr.kahn.timestamps import from_millis, read_ts
from wopr.process.background import BackgroundTask
from wopr.protocol.observed_ids import observed_run_id
from wopr.services.audit.trail import HOST, Audit
from wopr.store.port.fleet import FleetMaintenance, FleetRunSource

_BATCH_RUNS: Final = 200
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """How long runs are stored after their last push, by the host's clock.

    Pushed runs do not expire unless the operator sets a limit.
    """

    pushed: timedelta | None = None
    own: timedelta = OWN_RUNS_KEPT_FOR

    @classmethod
    def of_days(cls, days: int) -> RetentionPolicy:
        """Return a policy with this number of days for all runs; 0 means the default policy."""
        if not days:
            return cls()
        limit = timedelta(days=days)
        return cls(pushed=limit, own=limit)

    def limits(self) -> dict[FleetRunSource, timedelta]:
        """Return the limit of each source whose runs expire."""
        limits: dict[FleetRunSource, timedelta] = {"host": self.own}
        if self.pushed is not None:
            limits["push"] = self.pushed
        return limits


class FleetRetention:
    """Retention of runs and the totals of time windows, for all tenants."""

    def __init__(
        self, store: FleetMaintenance, now: Callable[[], int], policy: RetentionPolicy | None = None
    ) -> None:
        self._store = store
        self._now = now
        self._policy = policy or RetentionPolicy()

    async def advance_windows(self) -> None:
        """Move the rolling time windows of the totals to the current time."""
        await self._store.fleet_advance_spans(window_starts(self._now()))

    async def retain(self) -> tuple[int, int]:
        """Hide expired runs and delete runs hidden long enough. Return both numbers."""
        hidden = deleted = 0
        while due := await self._due():
            to_hide = [each for each, action in due if action == "soft_delete"]
            to_delete = [each for each, action in due if action == "hard_delete"]
            await self._store.fleet_hide(to_hide, self._now())
            await self._store.fleet_delete(
                [(tenant, run_id, observed_run_id(tenant, run_id)) for tenant, run_id in to_delete]
            )
            hidden += len(to_hide)
            deleted += len(to_delete)
        return hidden, deleted

    async def _due(self) -> Sequence[tuple[tuple[str, str], RetentionAction]]:
        now = self._now()
        found: dict[tuple[str, str], RetentionAction] = {}
        for source, limit in self._policy.limits().items():
            aged = await self._store.fleet_expired_runs(
                source,
                now - limit // _MILLISECOND,
                now - SOFT_DELETED_FOR // _MILLISECOND,
                _BATCH_RUNS,
            )
            for tenant, run_id, pushed_at, hidden_at in aged:
                action = retention_action(
                    _moment(pushed_at), _optional_moment(hidden_at), _moment(now), limit
                )
                found[tenant, run_id] = action
        return list(found.items())


def _moment(millis: int) -> datetime:
    return read_ts(from_millis(millis))


def _optional_moment(millis: int | None) -> datetime | None:
    return None if millis is None else _moment(millis)


# Interval of the task. A shorter interval leaves less to compute for readers.
RETENTION_SECONDS: Final = 60.0


class RetentionTask:
    """The background task of retention."""

    def __init__(self, fleet_retention: FleetRetention, audit: Audit) -> None:
        self._retention = fleet_retention
        self._audit = audit
        self.task = BackgroundTask("fleet retention", self.run, period=RETENTION_SECONDS)

    async def run(self) -> None:
        """Move the time windows, and hide and delete expired runs."""
        await self._retention.advance_windows()
        hidden, deleted = await self._retention.retain()
        for action, count in (("retention.hide", hidden), ("retention.delete", deleted)):
            if count:
                await self._audit.record(HOST, "host", action, "fleet runs", count=count)
