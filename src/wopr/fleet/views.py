"""Reads the fleet: agents and checkpoints in a window, runs, and what happened in one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from wopr.fleet.aggregate import agent_rows, checkpoint_rows
from wopr.fleet.bridge_ids import to_agent_id
from wopr.fleet.checker import check
from wopr.fleet.findings import Finding
from wopr.fleet.instants import from_millis
from wopr.fleet.lines import split_lines
from wopr.fleet.observed_ids import observed_run_id
from wopr.fleet.run_fold import REPORTED, counted
from wopr.fleet.statistics import QUANTILES, SERIES_LENGTH, rounded
from wopr.fleet.summary import UNKNOWN
from wopr.fleet.windows import since, start_of
from wopr.protocol.documents import UNSET, JsonObject, Unset
from wopr.protocol.errors import NotFound
from wopr.protocol.fleet import (
    MOST_ROWS,
    AgentAggregate,
    AgentInRun,
    Aggregate,
    Audits,
    Flakiness,
    LineFinding,
    RunInFleet,
    RunSteps,
    Sort,
    Window,
)
from wopr.store.port.fleet import AgentRun, Fleet, FleetRun, TotalsPage

_FIELDS: Final = msgspec.json.Decoder(JsonObject)
_PAGE: Final = 200


class Views:
    """What the fleet shows of one tenant at a time."""

    def __init__(self, store: Fleet, now: Callable[[], int]) -> None:
        self._store = store
        self._now = now

    async def aggregate(self, tenant: str, window: Window, sort: Sort, start: int = 0) -> Aggregate:
        """One row per agent, for at most `MOST_ROWS` agents."""
        now = self._now()
        page = TotalsPage(limit=MOST_ROWS, start=start, sort=sort)
        return Aggregate(
            window=window,
            generated_at=from_millis(now),
            agents=await self._agents(tenant, window, now, page),
            next_start=await self._next_start(tenant, window, now, page),
        )

    async def agent_totals(
        self, tenant: str, window: Window, agent_id: str
    ) -> AgentAggregate | None:
        """The row of one agent; None when it has no run in the window."""
        page = TotalsPage(limit=1, agent_id=agent_id)
        rows = await self._agents(tenant, window, self._now(), page)
        return rows[0] if rows else None

    async def _agents(
        self, tenant: str, window: Window, now: int, page: TotalsPage
    ) -> list[AgentAggregate]:
        totals = await self._store.fleet_totals(
            tenant, window, since(now), page, quantiles=QUANTILES, scores=SERIES_LENGTH
        )
        return agent_rows(totals, start=start_of(window, now), sort=page.sort)

    async def _next_start(
        self, tenant: str, window: Window, now: int, page: TotalsPage
    ) -> int | Unset:
        following = replace(page, limit=_PAGE, start=page.start + page.limit)
        return following.start if await self._agents(tenant, window, now, following) else UNSET

    async def flakiness(self, tenant: str, window: Window, start: int = 0) -> Flakiness:
        """One row per checkpoint, for at most `MOST_ROWS` checkpoints."""
        now = self._now()
        read = partial(self._store.fleet_checkpoints, tenant, window, since(now))
        following = await read(limit=_PAGE, start=start + MOST_ROWS)
        return Flakiness(
            window=window,
            generated_at=from_millis(now),
            checkpoints=checkpoint_rows(await read(limit=MOST_ROWS, start=start)),
            next_start=start + MOST_ROWS if following else UNSET,
        )

    async def agent_runs(
        self,
        tenant: str,
        agent_id: str,
        window: Window,
        after: tuple[int, str] | None,
        limit: int,
    ) -> list[AgentRun]:
        """Runs of an agent in a window, newest first.

        Raises `NotFound` for an agent that has never had one.
        """
        start = start_of(window, self._now())
        found = await self._store.fleet_agent_runs(tenant, agent_id, start, after, limit)
        if not found and not await self._is_known(tenant, agent_id):
            named = to_agent_id(agent_id)
            is_known = named != agent_id and await self._is_known(tenant, named)
            hint = f": it is called {named} here" if is_known else ""
            raise NotFound(f"there is no such agent in the fleet{hint}")
        return found

    async def _is_known(self, tenant: str, agent_id: str) -> bool:
        return bool(await self._store.fleet_agent_runs(tenant, agent_id, None, None, 1))

    async def waiting(self, tenant: str, limit: int) -> list[AgentInRun]:
        """Agents that wait for an operator, who has waited longest first."""
        return [self.agent(each) for each in await self._store.fleet_waiting(tenant, limit)]

    def agent(self, agent: AgentRun) -> AgentInRun:
        """An agent's run as the wire has it."""
        return _agent_in_run(agent, self._now())

    def run(self, tenant: str, run: FleetRun) -> RunInFleet:
        """A run as the wire has it."""
        is_own = run.source == "host"
        return RunInFleet(
            run_id=run.run_id,
            kind=run.kind,
            source=run.source,
            started=from_millis(run.started_at),
            last_event=from_millis(run.last_event),
            ended=None if run.ended_at is None else from_millis(run.ended_at),
            outcome=run.outcome,
            lines=run.lines,
            openwop_run_id=run.run_id if is_own else observed_run_id(tenant, run.run_id),
        )

    async def find(self, tenant: str, run_id: str, *, hidden: bool = False) -> FleetRun:
        """A run; one that retention has hidden only if asked for. Raises `NotFound`."""
        run = await self._store.fleet_run(tenant, run_id)
        if run is None or (run.hidden_at is not None and not hidden):
            raise NotFound("there is no such run in the fleet")
        return run

    async def steps(self, tenant: str, run_id: str, start: int, limit: int) -> RunSteps:
        """What happened in a run from a line on, and its agents."""
        run = await self.find(tenant, run_id)
        agents = await self._store.fleet_run_agents(tenant, run_id)
        lines: list[bytes] = []
        async for piece in self._store.fleet_lines(tenant, run_id, start):
            lines += [line for _, line in split_lines(piece)][: limit - len(lines)]
            if len(lines) == limit:
                break
        reached = start + len(lines)
        is_whole = start == 0 and reached >= run.lines
        return RunSteps(
            run=self.run(tenant, run),
            agents=[self.agent(each) for each in agents],
            events=[_FIELDS.decode(line) for line in lines],
            next_line=reached if reached < run.lines else None,
            findings=[_line_finding(each) for each in check(lines)] if is_whole else None,
        )

    async def export(self, tenant: str) -> AsyncIterator[bytes]:
        """Every line of every run, byte for byte, those that retention has hidden too."""
        after = ""
        while page := await self._store.fleet_exported(tenant, after, _PAGE):
            for run in page:
                async for piece in self._store.fleet_lines(tenant, run.run_id):
                    yield piece
            after = page[-1].run_id


def _line_finding(found: Finding) -> LineFinding:
    return LineFinding(line=found.line, code=found.code, level=found.level, message=found.message)


def _totals(agent: AgentRun) -> dict[str, Any]:
    """What the producer reported, and what was counted up to the agent's end or so far."""
    unknown: dict[str, Any] = dict.fromkeys(REPORTED)
    kept = {} if agent.totals is None else _FIELDS.decode(agent.totals)
    return unknown | counted(agent) | kept


def _agent_in_run(agent: AgentRun, now: int) -> AgentInRun:
    blocked_at, duration_s = agent.blocked_at, agent.duration_s
    if duration_s is None:
        duration_s = max(0, agent.last_event - agent.started_at) / 1000
    return AgentInRun(
        run_id=agent.run_id,
        agent_id=agent.agent_id,
        task=agent.task,
        model=agent.model,
        outcome=agent.outcome or UNKNOWN,
        started=from_millis(agent.started_at),
        ended=None if agent.ended_at is None else from_millis(agent.ended_at),
        last_event=from_millis(agent.last_event),
        duration_s=rounded(duration_s),
        **_totals(agent),
        audits=Audits(
            passed=agent.audits_passed, failed=agent.audits_failed, warned=agent.audits_warned
        ),
        convergence_score=None if agent.score is None else rounded(agent.score),
        last_status=agent.status,
        waiting_s=None if blocked_at is None else max(0, now - blocked_at) / 1000,
        waiting_since=None if blocked_at is None else from_millis(blocked_at),
    )
