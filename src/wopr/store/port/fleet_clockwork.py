"""What the fleet's own clock asks of a store: whose time has come, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from wopr.store.port.fleet import AgentRun, Since, Source


class FleetClockwork(Protocol):
    """What the host itself does to the fleet of all tenants."""

    async def fleet_settle(self, since: Since) -> None:
        """Take what is too old out of the totals of the rolling spans."""
        ...

    async def fleet_aged(
        self, source: Source, pushed_before: int, hidden_before: int, limit: int
    ) -> list[tuple[str, str, int, int | None]]:
        """`(tenant, run_id, pushed_at, hidden_at)` of runs last pushed, or hidden, at or before then.

        Runs that are not hidden are of this source, hidden ones of any.
        """
        ...

    async def fleet_hide(self, runs: Sequence[tuple[str, str]], now: int) -> None:
        """Hide these `(tenant, run_id)` from everything but export, and count them no longer."""
        ...

    async def fleet_delete(self, runs: Sequence[tuple[str, str, str]]) -> None:
        """Delete these hidden `(tenant, run_id, observed_run_id)` for good, with the observed run.

        An observed run whose lines are gone already is deleted too.
        """
        ...

    async def fleet_rebuild(
        self, tenant: str, observed_run_id: str, agents: Sequence[AgentRun]
    ) -> None:
        """Delete an observed run with its annotations, and queue it to be built from its lines.

        The task and the model of these agents are stored as given.
        """
        ...
