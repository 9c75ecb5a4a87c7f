"""The content of the page of one run, made from its row, log and workflow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import quote

import anyio.to_thread
import msgspec

from wopr.console.inbox.pending import OpenInterrupt, open_interrupts_of
from wopr.console.page import PageRequest
from wopr.console.runs.agent_steps import (
    SUPERVISOR,
    AgentTurn,
    ThresholdOf,
    agent_turns,
    newest_turns_of,
)
from wopr.console.runs.annotations import RunAnnotations, annotations_of
from wopr.console.runs.graph import MAX_NODES, Drawing, GraphFacts, causal_pairs, draw
from wopr.console.runs.log import DecodedLog
from wopr.console.runs.timeline import (
    Axis,
    ChildRunLanes,
    GrowingSpans,
    Lane,
    NodeSpans,
    Tick,
    lanes_of,
    node_spans,
)
from wopr.kahn.observed.workflow import workflow_of
from wopr.process.tenant_slots import run_by_size
from wopr.protocol.documents import JsonObject, Unset
from wopr.protocol.observed_ids import is_observed_run
from wopr.protocol.runs import TERMINAL, RunSnapshot
from wopr.runs.definitions.library import CompiledWorkflow
from wopr.store.port import RunFilter, RunRow

DEEPEST_OPEN: Final = 4
MAX_CHILDREN: Final = 100
_SNAPSHOT: Final = msgspec.json.Decoder(RunSnapshot)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPageView:
    """The content of the page of a run."""

    row: RunRow
    snapshot: RunSnapshot
    compiled: CompiledWorkflow
    log: DecodedLog
    nodes: Mapping[str, NodeSpans]
    lanes: Sequence[Lane]
    ticks: Sequence[Tick]
    drawing: Drawing | None
    turns: Sequence[AgentTurn]
    notes: RunAnnotations
    interrupts: Sequence[OpenInterrupt]
    opened: Collection[str]
    forks: Sequence[RunRow]
    now: int
    # The run id in the fleet; empty if the fleet does not have the run.
    fleet_run_id: str

    @property
    def is_observed(self) -> bool:
        """Return whether another system executes the run, so that this host cannot control it."""
        return is_observed_run(self.row.run_id)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.row.run_id

    @property
    def status(self) -> str:
        """The status of the snapshot. A run also waits if its child run waits."""
        return self.snapshot.status

    @property
    def is_over(self) -> bool:
        """Return whether the run has ended."""
        return self.row.status in TERMINAL

    @property
    def is_complete(self) -> bool:
        """Return whether the run has ended and the view has all events that a page shows."""
        entries = self.log.entries
        return self.is_over and (self.log.is_cut or len(entries) > self.row.last_sequence)

    @property
    def node_path(self) -> str:
        """The prefix of the paths of its nodes' pages."""
        return f"/runs/{quote(self.run_id, safe='')}/nodes/"

    @property
    def took(self) -> int:
        """The duration of the run in milliseconds; until now if it is active."""
        return (self.row.ended_at or self.now) - self.row.created_at

    @property
    def own_lanes(self) -> int:
        """The number of its nodes that have a lane."""
        return sum(1 for lane in self.lanes if lane.depth == 0)

    @property
    def newest_turns(self) -> Sequence[AgentTurn]:
        """The turns with the newest steps of its agents."""
        return newest_turns_of(self.turns)

    @property
    def agent_step_count(self) -> int:
        """The number of all steps of its agents."""
        return sum(turn.size for turn in self.turns)

    @property
    def cost(self) -> JsonObject:
        """Tokens and costs of its model calls; empty if there were none."""
        metrics = self.snapshot.metrics
        found: JsonObject = {} if isinstance(metrics, Unset) else metrics.get("openwopCost", {})
        return found


async def snapshot_of(request: PageRequest, run_id: str) -> RunSnapshot:
    """Return the current snapshot of the run."""
    return await _snapshot(request, await request.host.run_reader.row(request.tenant, run_id))


async def _snapshot(request: PageRequest, row: RunRow, *, may_lag: bool = False) -> RunSnapshot:
    if row.snapshot is not None:
        body = row.snapshot
        return await run_by_size(len(body), lambda: _SNAPSHOT.decode(body))
    return await request.host.run_reader.fold(request.tenant, row, may_lag=may_lag)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The data for a view of a run, read from the store."""

    row: RunRow
    snapshot: RunSnapshot
    compiled: CompiledWorkflow
    log: DecodedLog
    children: Mapping[str, ChildRunLanes]
    axis: Axis
    threshold_of: ThresholdOf
    notes: RunAnnotations
    interrupts: Sequence[OpenInterrupt]
    opened: Collection[str]
    forks: Sequence[RunRow]
    now: int
    fleet_run_id: str


async def load_run_view(
    request: PageRequest, run_id: str, opened: Collection[str] = (), *, only_newest: bool = False
) -> RunPageView:
    """Return the view of a run. `opened` are the child runs whose lanes are shown.

    With `only_newest` the timeline of an active run may omit lanes.
    """
    facts = await load_run_facts(request, run_id, opened)
    only_newest = only_newest and facts.row.status not in TERMINAL
    return await anyio.to_thread.run_sync(partial(view_of, facts, only_newest=only_newest))


async def load_run_facts(
    request: PageRequest, run_id: str, opened: Collection[str] = (), *, may_lag: bool = False
) -> RunFacts:
    """Read the data for a view of a run.

    The log is read after the snapshot and cut at its last event, so that both agree. With `may_lag`
    they may miss an append that is in progress in this process.
    """
    host, tenant = request.host, request.tenant
    row = await host.run_reader.row(tenant, run_id)
    snapshot = await _snapshot(request, row, may_lag=may_lag)
    log = await request.state.logs.read(host.run_reader, tenant, run_id)
    is_stored = row.snapshot is not None
    log = log.until(row.last_sequence if is_stored else int(snapshot.last_sequence or 0))
    now = host.sources.now()
    axis = _axis(row, log, now)
    return RunFacts(
        row=row,
        snapshot=snapshot,
        compiled=await workflow_of(host.library, tenant, row, snapshot),
        log=log,
        children=await _children(request, log, opened, axis),
        axis=axis,
        threshold_of=await _thresholds(request, snapshot, row),
        notes=await annotations_of(host.store, tenant, run_id),
        interrupts=await _interrupts(request, snapshot),
        opened=opened,
        forks=await _forks(request, run_id),
        now=now,
        fleet_run_id=await _fleet_run_id(request, row, snapshot),
    )


def view_of(
    facts: RunFacts, *, only_newest: bool = False, spans: GrowingSpans | None = None
) -> RunPageView:
    """Make the view. The function does no I/O, so a worker thread may call it.

    `spans` are those of an earlier view of the same run. They are extended.
    """
    nodes = (spans or GrowingSpans()).update(facts.log.entries)
    statuses = _statuses(facts.snapshot)
    definition, run_id = facts.compiled.definition, facts.row.run_id
    return RunPageView(
        row=facts.row,
        snapshot=facts.snapshot,
        compiled=facts.compiled,
        log=facts.log,
        nodes=nodes,
        lanes=lanes_of(
            run_id,
            definition,
            nodes,
            statuses,
            facts.children,
            facts.axis,
            only_newest=only_newest,
        ),
        ticks=facts.axis.ticks(),
        drawing=_graph(facts.compiled, facts.log, nodes, statuses),
        turns=agent_turns(facts.log.entries, facts.threshold_of),
        notes=facts.notes,
        interrupts=facts.interrupts,
        opened=facts.opened,
        forks=facts.forks,
        now=facts.now,
        fleet_run_id=facts.fleet_run_id,
    )


async def _fleet_run_id(request: PageRequest, row: RunRow, snapshot: RunSnapshot) -> str:
    metadata = {} if isinstance(snapshot.metadata, Unset) else snapshot.metadata
    fleet_run_id = str(metadata.get("runId", "")) if is_observed_run(row.run_id) else row.run_id
    found = await request.host.store.fleet_run(request.tenant, fleet_run_id)
    return "" if found is None or found.hidden_at is not None else fleet_run_id


def _axis(row: RunRow, log: DecodedLog, now: int) -> Axis:
    """Return the axis of the run. The events of a fork may be older than the fork."""
    began = log.entries[0].at if log.entries else row.created_at
    start = min(began, row.created_at)
    return Axis.running(start, now) if row.ended_at is None else Axis(start, row.ended_at)


def _statuses(snapshot: RunSnapshot) -> dict[str, str]:
    states = snapshot.node_states
    return {} if isinstance(states, Unset) else {n: s.status for n, s in states.items()}


def _graph(
    compiled: CompiledWorkflow,
    log: DecodedLog,
    nodes: Mapping[str, NodeSpans],
    statuses: Mapping[str, str],
) -> Drawing | None:
    if len(compiled.definition.nodes) > MAX_NODES:
        return None
    taken, caused = causal_pairs(log, compiled.definition.edges)
    facts = GraphFacts(
        statuses=statuses,
        attempts={node_id: len(node.spans) for node_id, node in nodes.items()},
        children={node_id: len(node.children) for node_id, node in nodes.items()},
        taken=taken,
        caused=caused,
    )
    return draw(compiled, facts)


async def turns_of(
    request: PageRequest, snapshot: RunSnapshot, log: DecodedLog, row: RunRow
) -> list[AgentTurn]:
    """Return the turns of the run's agents, with the confidence that each needed."""
    return agent_turns(log.entries, await _thresholds(request, snapshot, row))


async def _thresholds(request: PageRequest, snapshot: RunSnapshot, row: RunRow) -> ThresholdOf:
    """Return a function for the confidence that each agent of the run needs."""
    services = request.host.advancer.services
    await request.host.agents.load(request.tenant)
    configurable = {} if isinstance(snapshot.configurable, Unset) else snapshot.configurable

    def threshold_of(agent_id: str) -> float | None:
        if agent_id == SUPERVISOR:
            return services.floor.threshold
        return services.threshold(request.tenant, agent_id, configurable, at=row.created_at)

    return threshold_of


async def _interrupts(request: PageRequest, snapshot: RunSnapshot) -> list[OpenInterrupt]:
    """Return the open interrupts of the run and of its waiting child runs."""
    if not snapshot.status.startswith("waiting-"):
        return []
    children = [] if isinstance(snapshot.child_runs, Unset) else snapshot.child_runs
    waiting = [snapshot.run_id, *(c.run_id for c in children if c.status.startswith("waiting-"))]
    store = request.host.store
    return [
        found for each in waiting for found in await open_interrupts_of(store, request.tenant, each)
    ]


async def _forks(request: PageRequest, run_id: str) -> Sequence[RunRow]:
    where = RunFilter(source_run_id=run_id)
    return (await request.host.store.runs(request.tenant, where, None, 20)).runs


async def _children(
    request: PageRequest,
    log: DecodedLog,
    opened: Collection[str],
    axis: Axis,
    depth: int = 1,
) -> dict[str, ChildRunLanes]:
    dispatched = (e for e in log.entries if e.event.type == "node.dispatched")
    named = [str(entry.payload.get("childRunId", "")) for entry in dispatched]
    found: dict[str, ChildRunLanes] = {}
    for run_id in named[:MAX_CHILDREN]:
        row = await request.host.store.run(request.tenant, run_id)
        if row is None:
            continue
        is_open = run_id in opened and depth <= DEEPEST_OPEN
        found[run_id] = ChildRunLanes(
            run_id=run_id,
            workflow_id=row.workflow_id,
            status=row.status,
            start=row.created_at,
            end=row.ended_at,
            lanes=await _lanes_of_child(request, row, opened, axis, depth) if is_open else (),
            is_open=is_open,
        )
    return found


async def _lanes_of_child(
    request: PageRequest, row: RunRow, opened: Collection[str], axis: Axis, depth: int
) -> list[Lane]:
    """Return the lanes of a child run, on the axis of the shown run."""
    host, tenant = request.host, request.tenant
    log = await request.state.logs.read(host.run_reader, tenant, row.run_id)
    compiled = await host.library.version(tenant, row.workflow_id, row.workflow_version)
    nodes = node_spans(log.entries)
    children = await _children(request, log, opened, axis, depth + 1)
    statuses = _statuses(await snapshot_of(request, row.run_id))
    return lanes_of(
        row.run_id, compiled.definition, nodes, statuses, children, axis, depth=depth + 1
    )
