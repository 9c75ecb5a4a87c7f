"""Everything that the page of one run shows, put together from its row, its log and its workflow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import quote

import anyio.to_thread
import msgspec

from wopr.console.graph_view import MOST_NODES, Drawing, Facts, causal_pairs, draw
from wopr.console.notes import Notes, notes_of
from wopr.console.run_log import RunLog
from wopr.console.spans import GrowingSpans, NodeSpans, node_spans
from wopr.console.story import SUPERVISOR, ThresholdOf, Turn, newest, story
from wopr.console.timeline import Axis, ChildRuns, Lane, Tick, lanes
from wopr.console.visit import Visit
from wopr.console.waiting import Waiting, waits_of
from wopr.protocol.documents import JsonObject, Unset
from wopr.protocol.runs import TERMINAL, RunSnapshot
from wopr.runtime.fleet_rules import is_observed_run
from wopr.runtime.heavy_reads import off_loop
from wopr.runtime.library import Compiled
from wopr.runtime.observed_workflow import workflow_of
from wopr.store.port import RunFilter, RunRow

DEEPEST_OPEN: Final = 4
MOST_CHILDREN: Final = 100
_SNAPSHOT: Final = msgspec.json.Decoder(RunSnapshot)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run as its page shows it."""

    row: RunRow
    snapshot: RunSnapshot
    compiled: Compiled
    log: RunLog
    nodes: Mapping[str, NodeSpans]
    lanes: Sequence[Lane]
    ticks: Sequence[Tick]
    drawing: Drawing | None
    turns: Sequence[Turn]
    notes: Notes
    waits: Sequence[Waiting]
    opened: Collection[str]
    forks: Sequence[RunRow]
    now: int
    # The run's name in the fleet; empty when the fleet has not heard of it.
    fleet_run_id: str

    @property
    def is_observed(self) -> bool:
        """Whether it was observed and is not this host's to move."""
        return is_observed_run(self.row.run_id)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.row.run_id

    @property
    def status(self) -> str:
        """The status as the snapshot shows it: a run waits with its child."""
        return self.snapshot.status

    @property
    def is_over(self) -> bool:
        """Whether the log is closed."""
        return self.row.status in TERMINAL

    @property
    def is_told_to_the_end(self) -> bool:
        """Whether the run has ended and the view has all of its log that a page shows."""
        entries = self.log.entries
        return self.is_over and (self.log.is_cut or len(entries) > self.row.last_sequence)

    @property
    def node_path(self) -> str:
        """The path under which the pages of its nodes are."""
        return f"/runs/{quote(self.run_id, safe='')}/nodes/"

    @property
    def took(self) -> int:
        """How long it has taken, up to now while it goes on."""
        return (self.row.ended_at or self.now) - self.row.created_at

    @property
    def own_lanes(self) -> int:
        """How many of its nodes have a lane."""
        return sum(1 for lane in self.lanes if lane.depth == 0)

    @property
    def newest_turns(self) -> Sequence[Turn]:
        """What its agents did last."""
        return newest(self.turns)

    @property
    def beats(self) -> int:
        """How many things its agents did in all."""
        return sum(turn.size for turn in self.turns)

    @property
    def cost(self) -> JsonObject:
        """Tokens and money that its model calls came to; empty when there were none."""
        metrics = self.snapshot.metrics
        found: JsonObject = {} if isinstance(metrics, Unset) else metrics.get("openwopCost", {})
        return found


async def snapshot_of(visit: Visit, run_id: str) -> RunSnapshot:
    """The run as it stands."""
    return await _snapshot(visit, await visit.host.readers.row(visit.tenant, run_id))


async def _snapshot(visit: Visit, row: RunRow, *, may_lag: bool = False) -> RunSnapshot:
    if row.snapshot is not None:
        body = row.snapshot
        return await off_loop(len(body), lambda: _SNAPSHOT.decode(body))
    return await visit.host.readers.fold(visit.tenant, row, may_lag=may_lag)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a view of a run is made of, read from the store."""

    row: RunRow
    snapshot: RunSnapshot
    compiled: Compiled
    log: RunLog
    children: Mapping[str, ChildRuns]
    axis: Axis
    threshold_of: ThresholdOf
    notes: Notes
    waits: Sequence[Waiting]
    opened: Collection[str]
    forks: Sequence[RunRow]
    now: int
    fleet_run_id: str


async def look(
    visit: Visit, run_id: str, opened: Collection[str] = (), *, only_newest: bool = False
) -> RunView:
    """Look at a run; `opened` are the child runs whose own lanes are to be shown.

    With `only_newest` the timeline of a run that goes on may leave lanes out.
    """
    facts = await gather(visit, run_id, opened)
    only_newest = only_newest and facts.row.status not in TERMINAL
    return await anyio.to_thread.run_sync(partial(view_of, facts, only_newest=only_newest))


async def gather(
    visit: Visit, run_id: str, opened: Collection[str] = (), *, may_lag: bool = False
) -> RunFacts:
    """Read what a view of a run is made of.

    The log is read after the state and cut where the state ends, so that both tell the same. With
    `may_lag` that may be before an append which this process has under way.
    """
    host, tenant = visit.host, visit.tenant
    row = await host.readers.row(tenant, run_id)
    snapshot = await _snapshot(visit, row, may_lag=may_lag)
    log = await visit.desk.logs.read(host.readers, tenant, run_id)
    is_stored = row.snapshot is not None
    log = log.until(row.last_sequence if is_stored else int(snapshot.last_sequence or 0))
    now = host.sources.now()
    axis = _axis(row, log, now)
    return RunFacts(
        row=row,
        snapshot=snapshot,
        compiled=await workflow_of(host.library, tenant, row, snapshot),
        log=log,
        children=await _children(visit, log, opened, axis),
        axis=axis,
        threshold_of=await _thresholds(visit, snapshot, row),
        notes=await notes_of(host.store, tenant, run_id),
        waits=await _waits(visit, snapshot),
        opened=opened,
        forks=await _forks(visit, run_id),
        now=now,
        fleet_run_id=await _fleet_run_id(visit, row, snapshot),
    )


def view_of(
    facts: RunFacts, *, only_newest: bool = False, spans: GrowingSpans | None = None
) -> RunView:
    """Make the view. It only computes, so a worker thread may do it.

    `spans` are those of an earlier view of the same run: the new view takes them over.
    """
    nodes = (spans or GrowingSpans()).of(facts.log.entries)
    statuses = _statuses(facts.snapshot)
    definition, run_id = facts.compiled.definition, facts.row.run_id
    return RunView(
        row=facts.row,
        snapshot=facts.snapshot,
        compiled=facts.compiled,
        log=facts.log,
        nodes=nodes,
        lanes=lanes(
            run_id,
            definition,
            nodes,
            statuses,
            facts.children,
            facts.axis,
            only_newest=only_newest,
        ),
        ticks=facts.axis.ticks(),
        drawing=_drawing(facts.compiled, facts.log, nodes, statuses),
        turns=story(facts.log.entries, facts.threshold_of),
        notes=facts.notes,
        waits=facts.waits,
        opened=facts.opened,
        forks=facts.forks,
        now=facts.now,
        fleet_run_id=facts.fleet_run_id,
    )


async def _fleet_run_id(visit: Visit, row: RunRow, snapshot: RunSnapshot) -> str:
    metadata = {} if isinstance(snapshot.metadata, Unset) else snapshot.metadata
    name = str(metadata.get("runId", "")) if is_observed_run(row.run_id) else row.run_id
    found = await visit.host.store.fleet_run(visit.tenant, name)
    return "" if found is None or found.hidden_at is not None else name


def _axis(row: RunRow, log: RunLog, now: int) -> Axis:
    """From the first event to the end, or to now; a fork's history began before the fork did."""
    began = log.entries[0].at if log.entries else row.created_at
    start = min(began, row.created_at)
    return Axis.running(start, now) if row.ended_at is None else Axis(start, row.ended_at)


def _statuses(snapshot: RunSnapshot) -> dict[str, str]:
    states = snapshot.node_states
    return {} if isinstance(states, Unset) else {n: s.status for n, s in states.items()}


def _drawing(
    compiled: Compiled, log: RunLog, nodes: Mapping[str, NodeSpans], statuses: Mapping[str, str]
) -> Drawing | None:
    if len(compiled.definition.nodes) > MOST_NODES:
        return None
    carried, caused = causal_pairs(log, compiled.definition.edges)
    facts = Facts(
        statuses=statuses,
        attempts={node_id: len(node.spans) for node_id, node in nodes.items()},
        children={node_id: len(node.children) for node_id, node in nodes.items()},
        carried=carried,
        caused=caused,
    )
    return draw(compiled, facts)


async def turns_of(visit: Visit, snapshot: RunSnapshot, log: RunLog, row: RunRow) -> list[Turn]:
    """What the run's agents did, with how sure each had to be."""
    return story(log.entries, await _thresholds(visit, snapshot, row))


async def _thresholds(visit: Visit, snapshot: RunSnapshot, row: RunRow) -> ThresholdOf:
    """The confidence that each agent of the run needs."""
    services = visit.host.advancer.services
    await visit.host.agents.load(visit.tenant)
    configurable = {} if isinstance(snapshot.configurable, Unset) else snapshot.configurable

    def threshold_of(agent_id: str) -> float | None:
        if agent_id == SUPERVISOR:
            return services.floor.threshold
        return services.threshold(visit.tenant, agent_id, configurable, at=row.created_at)

    return threshold_of


async def _waits(visit: Visit, snapshot: RunSnapshot) -> list[Waiting]:
    """What the run waits for itself, and what those of its children wait for that wait."""
    if not snapshot.status.startswith("waiting-"):
        return []
    children = [] if isinstance(snapshot.child_runs, Unset) else snapshot.child_runs
    waiting = [snapshot.run_id, *(c.run_id for c in children if c.status.startswith("waiting-"))]
    store = visit.host.store
    return [wait for each in waiting for wait in await waits_of(store, visit.tenant, each)]


async def _forks(visit: Visit, run_id: str) -> Sequence[RunRow]:
    where = RunFilter(source_run_id=run_id)
    return (await visit.host.store.runs(visit.tenant, where, None, 20)).runs


async def _children(
    visit: Visit,
    log: RunLog,
    opened: Collection[str],
    axis: Axis,
    depth: int = 1,
) -> dict[str, ChildRuns]:
    dispatched = (e for e in log.entries if e.event.type == "node.dispatched")
    named = [str(entry.payload.get("childRunId", "")) for entry in dispatched]
    found: dict[str, ChildRuns] = {}
    for run_id in named[:MOST_CHILDREN]:
        row = await visit.host.store.run(visit.tenant, run_id)
        if row is None:
            continue
        is_open = run_id in opened and depth <= DEEPEST_OPEN
        found[run_id] = ChildRuns(
            run_id=run_id,
            workflow_id=row.workflow_id,
            status=row.status,
            start=row.created_at,
            end=row.ended_at,
            lanes=await _opened(visit, row, opened, axis, depth) if is_open else (),
            is_open=is_open,
        )
    return found


async def _opened(
    visit: Visit, row: RunRow, opened: Collection[str], axis: Axis, depth: int
) -> list[Lane]:
    """The lanes of a child run, on the axis of the run that is looked at."""
    host, tenant = visit.host, visit.tenant
    log = await visit.desk.logs.read(host.readers, tenant, row.run_id)
    compiled = await host.library.version(tenant, row.workflow_id, row.workflow_version)
    nodes = node_spans(log.entries)
    children = await _children(visit, log, opened, axis, depth + 1)
    statuses = _statuses(await snapshot_of(visit, row.run_id))
    return lanes(row.run_id, compiled.definition, nodes, statuses, children, axis, depth=depth + 1)
