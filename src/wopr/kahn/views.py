"""Views of the fleet: agents and checkpoints in a time window, runs, steps, waits and feedback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace as with_fields

from wopr.feedback.summary import Summaries
from wopr.kahn.bridge.facts import to_agent_id
from wopr.kahn.checker import Finding, check
from wopr.kahn.lines import split_lines
from wopr.kahn.observed.events import AGENT_PREFIX
from wopr.kahn.run_fold import REPORTED_TOTALS, counted_totals
from wopr.kahn.statistics import (
    QUANTILES,
    SERIES_LENGTH,
    agent_rows,
    checkpoint_rows,
    round_statistic,
    window_start,
    window_starts,
)
from wopr.kahn.summary import UNKNOWN
from wopr.kahn.timestamps import from_millis
from wopr.protocol.documents import UNSET, JsonObject, Unset
from wopr.protocol.errors import NotFound
from wopr.protocol.interrupts import InboxItem
from wopr.protocol.observed_ids import observed_run_id
from wopr.protocol.resources.fleet import (
    MAX_ROWS,
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
from wopr.protocol.resources.reviews import FeedbackGroup
from wopr.store.port import Suspension, SuspensionFilter, Suspensions
from wopr.store.port.fleet import AgentRun, Fleet, FleetRun, TotalsPage

# The largest number of pending interrupts that are read for one run.
_MAX_INTERRUPTS: Final = 100
_ITEMS: Final = msgspec.json.Decoder(InboxItem)


async def add_interrupts(
    inbox: Suspensions, tenant: str, agents: Sequence[AgentInRun]
) -> list[AgentInRun]:
    """Add the pending interrupt to each agent that waits in a run of this host."""
    return [
        each
        if each.waiting_s is None
        else with_fields(each, openwop_interrupt_id=await _interrupt_of(inbox, tenant, each))
        for each in agents
    ]


async def _interrupt_of(inbox: Suspensions, tenant: str, agent: AgentInRun) -> str | None:
    where = SuspensionFilter(run_id=agent.run_id)
    page = await inbox.pending_interrupts(tenant, where, None, _MAX_INTERRUPTS)
    found = page.suspensions
    own = [each for each in found if _asking_agent(each) == agent.agent_id]
    # An interrupt without an agent is used only if it is the only one of the run.
    is_only = len(found) == 1 and page.next_after is None
    return (own or found)[0].interrupt_id if own or is_only else None


def _asking_agent(suspension: Suspension) -> str | None:
    name = _ITEMS.decode(suspension.body).asked_by.agent_id
    return None if isinstance(name, Unset) else to_agent_id(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFeedback:
    """Counts of the annotations for one agent; without a rating the mean is None."""

    ratings: int
    mean_rating: float | None
    corrections: int
    labels: int
    flags: int

    @property
    def count(self) -> int:
        """The number of annotations."""
        return self.ratings + self.corrections + self.labels + self.flags


async def agent_feedback(
    summaries: Summaries, tenant: str, agent_id: str, since: int | None
) -> AgentFeedback:
    """Return the feedback on an agent since a time, by its KAHN id."""
    summary = await summaries.read(tenant, "agent", since=since or 0)
    return _sum_groups(
        [group for group in summary.groups if _names_agent(group.agent_id, agent_id)]
    )


def _names_agent(named: str | Unset, agent_id: str) -> bool:
    if isinstance(named, Unset):
        return False
    return named == f"{AGENT_PREFIX}{agent_id}" or to_agent_id(named) == agent_id


def _sum_groups(groups: Sequence[FeedbackGroup]) -> AgentFeedback:
    ratings = sum(group.ratings for group in groups)
    rating_sum = sum(group.ratings * (group.mean_rating or 0) for group in groups)
    return AgentFeedback(
        ratings=ratings,
        mean_rating=rating_sum / ratings if ratings else None,
        corrections=sum(group.corrections for group in groups),
        labels=sum(group.labels for group in groups),
        flags=sum(group.flags for group in groups),
    )


_FIELDS: Final = msgspec.json.Decoder(JsonObject)
_PAGE: Final = 200


class Views:
    """Reads for the fleet views of a tenant."""

    def __init__(self, store: Fleet, now: Callable[[], int]) -> None:
        self._store = store
        self._now = now

    async def aggregate(self, tenant: str, window: Window, sort: Sort, start: int = 0) -> Aggregate:
        """Return one row per agent, for at most `MAX_ROWS` agents."""
        now = self._now()
        page = TotalsPage(limit=MAX_ROWS, start=start, sort=sort)
        return Aggregate(
            window=window,
            generated_at=from_millis(now),
            agents=await self._agents(tenant, window, now, page),
            next_start=await self._next_start(tenant, window, now, page),
        )

    async def agent_totals(
        self, tenant: str, window: Window, agent_id: str
    ) -> AgentAggregate | None:
        """Return the row of one agent; None if it has no run in the window."""
        page = TotalsPage(limit=1, agent_id=agent_id)
        rows = await self._agents(tenant, window, self._now(), page)
        return rows[0] if rows else None

    async def _agents(
        self, tenant: str, window: Window, now: int, page: TotalsPage
    ) -> list[AgentAggregate]:
        totals = await self._store.fleet_totals(
            tenant, window, window_starts(now), page, quantiles=QUANTILES, scores=SERIES_LENGTH
        )
        return agent_rows(totals, start=window_start(window, now), sort=page.sort)

    async def _next_start(
        self, tenant: str, window: Window, now: int, page: TotalsPage
    ) -> int | Unset:
        following = replace(page, limit=_PAGE, start=page.start + page.limit)
        return following.start if await self._agents(tenant, window, now, following) else UNSET

    async def flakiness(self, tenant: str, window: Window, start: int = 0) -> Flakiness:
        """Return one row per checkpoint, for at most `MAX_ROWS` checkpoints."""
        now = self._now()
        read = partial(self._store.fleet_checkpoints, tenant, window, window_starts(now))
        following = await read(limit=_PAGE, start=start + MAX_ROWS)
        return Flakiness(
            window=window,
            generated_at=from_millis(now),
            checkpoints=checkpoint_rows(await read(limit=MAX_ROWS, start=start)),
            next_start=start + MAX_ROWS if following else UNSET,
        )

    async def agent_runs(
        self,
        tenant: str,
        agent_id: str,
        window: Window,
        after: tuple[int, str] | None,
        limit: int,
    ) -> list[AgentRun]:
        """Return runs of an agent in a window, newest first.

        Raises `NotFound` for an agent that has no run at all.
        """
        start = window_start(window, self._now())
        found = await self._store.fleet_agent_runs(tenant, agent_id, start, after, limit)
        if not found and not await self._is_known(tenant, agent_id):
            named = to_agent_id(agent_id)
            is_known = named != agent_id and await self._is_known(tenant, named)
            hint = f": use its id {named}" if is_known else ""
            raise NotFound(f"there is no such agent in the fleet{hint}")
        return found

    async def _is_known(self, tenant: str, agent_id: str) -> bool:
        return bool(await self._store.fleet_agent_runs(tenant, agent_id, None, None, 1))

    async def waiting_agents(self, tenant: str, limit: int) -> list[AgentInRun]:
        """Return agents that wait for an operator, the longest wait first."""
        return [
            self.agent_document(each)
            for each in await self._store.fleet_waiting_agents(tenant, limit)
        ]

    def agent_document(self, agent: AgentRun) -> AgentInRun:
        """Convert an agent's run to its document."""
        return _agent_in_run(agent, self._now())

    def run_document(self, tenant: str, run: FleetRun) -> RunInFleet:
        """Convert a run to its document."""
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
        """Return a run; a hidden run only if `hidden` is set. Raises `NotFound`."""
        run = await self._store.fleet_run(tenant, run_id)
        if run is None or (run.hidden_at is not None and not hidden):
            raise NotFound("there is no such run in the fleet")
        return run

    async def steps(self, tenant: str, run_id: str, start: int, limit: int) -> RunSteps:
        """Return the events of a run from a line on, and its agents."""
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
            run=self.run_document(tenant, run),
            agents=[self.agent_document(each) for each in agents],
            events=[_FIELDS.decode(line) for line in lines],
            next_line=reached if reached < run.lines else None,
            findings=[_line_finding(each) for each in check(lines)] if is_whole else None,
        )

    async def export(self, tenant: str) -> AsyncIterator[bytes]:
        """Yield every line of every run byte for byte, including hidden runs."""
        after = ""
        while page := await self._store.fleet_runs_to_export(tenant, after, _PAGE):
            for run in page:
                async for piece in self._store.fleet_lines(tenant, run.run_id):
                    yield piece
            after = page[-1].run_id


def _line_finding(found: Finding) -> LineFinding:
    return LineFinding(line=found.line, code=found.code, level=found.level, message=found.message)


def _totals(agent: AgentRun) -> dict[str, Any]:
    """Return the totals that the producer reported, and those counted from the lines."""
    unknown: dict[str, Any] = dict.fromkeys(REPORTED_TOTALS)
    stored = {} if agent.totals is None else _FIELDS.decode(agent.totals)
    return unknown | counted_totals(agent) | stored


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
        duration_s=round_statistic(duration_s),
        **_totals(agent),
        audits=Audits(
            passed=agent.audits_passed, failed=agent.audits_failed, warned=agent.audits_warned
        ),
        convergence_score=None if agent.score is None else round_statistic(agent.score),
        last_status=agent.status,
        waiting_s=None if blocked_at is None else max(0, now - blocked_at) / 1000,
        waiting_since=None if blocked_at is None else from_millis(blocked_at),
    )
