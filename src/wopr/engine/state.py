"""The state of a run at one point of its log. States are immutable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from wopr.engine.graph import Graph
from wopr.engine.interrupts import Interrupt, Resolution
from wopr.protocol.agents import AgentRef
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.forks import Fork
from wopr.protocol.runs import Owner, RunError, RunStatus

NodeStatus: TypeAlias = Literal[
    "pending",
    "running",
    "retrying",
    "suspended",
    # The interrupt is resolved, but the events that follow from it are not on the log yet.
    "resuming",
    "completed",
    "failed",
    "skipped",
    "cancelled",
]
ACTIVE: frozenset[str] = frozenset({"running", "retrying", "suspended", "resuming"})
ENDED: frozenset[str] = frozenset({"completed", "failed", "skipped", "cancelled"})


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a run that are fixed before its first event."""

    run_id: str
    tenant: str
    workflow_id: str
    workflow_version: str
    parent_run_id: str | None = None
    parent_node_id: str | None = None
    # The root of this run through parents and fork sources; None for a root run.
    root_run_id: str | None = None
    fork: Fork | None = None

    @property
    def origin_run_id(self) -> str:
        """Return the run id to use in payloads: a replay uses the id of its source."""
        if self.fork is None or isinstance(self.fork.origin_run_id, Unset):
            return self.run_id
        return self.fork.origin_run_id


class ChainLink(msgspec.Struct, frozen=True, kw_only=True):
    """One step of handing work to a child, with the event that recorded it."""

    phase: str
    child_run_id: str
    event_id: str


class SupervisorDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A supervisor's decision and the event that recorded it."""

    event_id: str
    decision: JsonObject


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one node. After a re-entry, `outputs` stay until the next completion."""

    status: NodeStatus = "pending"
    attempt: int = 0
    # The iteration of the loop that this node heads. A new iteration of an outer loop resets it.
    iteration: int = 0
    # How often the node had started before in this run, without retries.
    visit: int = 0
    started_at: int = 0
    ended_at: int = 0
    retry_at: int = 0
    outputs: JsonObject | None = None
    error: RunError | None = None
    reason: str = ""
    # (child run id, child workflow id) of every child that this execution dispatched.
    children: tuple[tuple[str, str], ...] = ()
    # The number of these children that the source of the fork dispatched. They are the first.
    inherited_children: int = 0
    started_event: str = ""
    # How many `output.chunk` events this execution has on the log.
    chunks: int = 0
    # The pending interrupt. An interrupt with held outputs stays until the node has ended.
    interrupt: Interrupt | None = None
    # How the last interrupt ended.
    resolution: Resolution | None = None
    chain: tuple[ChainLink, ...] = ()
    # The agent that this execution handed off to; empty while its own agent acts.
    handed_to: str = ""
    # Decisions with a confidence that agents made in this execution.
    agent_decisions: tuple[JsonObject, ...] = ()
    # The index in `RunState.decisions` of the decision of this execution of a supervisor.
    decision: int | None = None
    # Tool calls on the log without a result: call id and event id.
    open_calls: Mapping[str, str] = {}
    # Model calls and tool results of this execution on the log. Copied events of a fork's source
    # do not count.
    model_calls: int = 0
    tool_returns: int = 0
    # How many messages its shared context had when this execution started.
    context_messages: int = 0
    # The agent invocation that this execution started and that has not ended.
    invocation_id: str = ""
    # The feedback of a reviewer, for the node that does the work again.
    feedback: JsonObject | None = None
    # How often reviewers at this gate sent the work back.
    refinements: int = 0
    # When its last interrupt ended. The node's timeout counts from there.
    resumed_at: int = 0
    # The version of the code that last executed the node.
    code_version: str = ""

    @property
    def holds_outputs(self) -> bool:
        """Return whether the node's outputs wait for a person to ratify a decision."""
        return self.interrupt is not None and self.interrupt.held_outputs is not None


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """The fold of a run's log."""

    identity: RunIdentity
    graph: Graph
    status: RunStatus = "pending"
    next_sequence: int = 0
    started_at: int = 0
    updated_at: int = 0
    ended_at: int = 0
    paused_at: int = 0
    # The sequence of the last pause or resume; -1 if there was none.
    last_command: int = -1
    inputs: JsonObject = {}
    outputs: JsonObject | None = None
    variables: JsonObject = {}
    channels: JsonObject = {}
    nodes: Mapping[str, NodeState] = {}
    executions: int = 0
    configurable: JsonObject = {}
    tags: tuple[str, ...] = ()
    metadata: JsonObject = {}
    owner: Owner | None = None
    error: RunError | None = None
    engine_version: str = ""
    traceparent: str = ""
    pins: Mapping[str, int] = {}
    usage: JsonObject | None = None
    # The number of model and tool calls on the log of the run.
    model_calls: int = 0
    tool_calls: int = 0
    agent: AgentRef | None = None
    run_orchestrator: AgentRef | None = None
    decisions: tuple[SupervisorDecision, ...] = ()
    # (child run id, node) of every child that the run created, in order of creation.
    children: tuple[tuple[str, str], ...] = ()
    # The workflow of the last worker that a dispatch node started; empty before the first.
    last_worker: str = ""
    cancelled_by_parent: bool = False
    # Resume values by interrupt key. A key is used for one interrupt only.
    answers: Mapping[str, Json] = {}
    # The last event, which is the cause of the engine's next events.
    last_event_id: str = ""

    @property
    def is_terminal(self) -> bool:
        """Return whether the run has ended."""
        return self.status in ("completed", "failed", "cancelled")

    def active_nodes(self) -> list[str]:
        """Return the nodes that have started and not ended."""
        return [node_id for node_id, node in self.nodes.items() if node.status in ACTIVE]


_PENDING = NodeState()


def initial_state(identity: RunIdentity, graph: Graph) -> RunState:
    """Return the state of a run with an empty log."""
    return RunState(
        identity=identity,
        graph=graph,
        nodes=dict.fromkeys(graph.nodes, _PENDING),
    )


def is_history(run: RunIdentity, sequence: int) -> bool:
    """Return whether an event repeats the source: all of a replay, the copied ones of a branch."""
    fork = run.fork
    return fork is not None and (fork.mode == "replay" or sequence < fork.from_seq)


def is_copied_by_branch(run: RunIdentity, sequence: int) -> bool:
    """Return whether an event is before the fork point of a branch."""
    fork = run.fork
    return fork is not None and fork.mode == "branch" and sequence < fork.from_seq


def time_shift(run: RunIdentity, sequence: int) -> int:
    """Return by how many milliseconds the time of a copied event is shifted.

    Hours or days may pass between the copied events of a branch and its own events. Limits and
    deadlines do not count that time.
    """
    if run.fork is None:
        return 0
    return sum(shift.by_ms for shift in run.fork.shifts if sequence < shift.before)
