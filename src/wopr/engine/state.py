"""What a run is at one point of its log. Values only: every change makes a new one."""

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
    # Answered; what follows from the answer is not on the log yet.
    "resuming",
    "completed",
    "failed",
    "skipped",
    "cancelled",
]
ACTIVE: frozenset[str] = frozenset({"running", "retrying", "suspended", "resuming"})
ENDED: frozenset[str] = frozenset({"completed", "failed", "skipped", "cancelled"})


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What is fixed about a run before its first event."""

    run_id: str
    tenant: str
    workflow_id: str
    workflow_version: str
    parent_run_id: str | None = None
    parent_node_id: str | None = None
    # The run that this one descends from, through parents and fork sources; None for a root.
    root_run_id: str | None = None
    fork: Fork | None = None

    @property
    def origin_run_id(self) -> str:
        """The run id to use inside payloads: a replay repeats the names of what it replays."""
        if self.fork is None or isinstance(self.fork.origin_run_id, Unset):
            return self.run_id
        return self.fork.origin_run_id


class ChainLink(msgspec.Struct, frozen=True, kw_only=True):
    """One step of handing work to a child, with the event that recorded it."""

    phase: str
    child_run_id: str
    event_id: str


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A supervisor's decision and the event that recorded it."""

    event_id: str
    decision: JsonObject


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the run. `outputs` survive a re-entry until the next completion."""

    status: NodeStatus = "pending"
    attempt: int = 0
    # Which round of the loop that it heads; an outer loop's next round counts it anew.
    iteration: int = 0
    # How often the node had started before in this run, retries not counted.
    visit: int = 0
    started_at: int = 0
    ended_at: int = 0
    retry_at: int = 0
    outputs: JsonObject | None = None
    error: RunError | None = None
    reason: str = ""
    # (child run id, child workflow id) of every child that this execution dispatched.
    children: tuple[tuple[str, str], ...] = ()
    # How many of them, from the first on, a fork's source dispatched: they are not the fork's own.
    borrowed: int = 0
    started_event: str = ""
    # How many `output.chunk` events this execution has on the log.
    chunks: int = 0
    # What the node waits for. One with held outputs stays until the node has ended.
    interrupt: Interrupt | None = None
    # How the last interrupt ended.
    resolution: Resolution | None = None
    chain: tuple[ChainLink, ...] = ()
    # To whom this execution handed control over; empty while its own agent acts.
    handed_to: str = ""
    # What agents decided in this execution, as far as they said how sure they were.
    decided: tuple[JsonObject, ...] = ()
    # Which of the run's decisions this visit of a supervisor made.
    decision: int | None = None
    # Tool calls that are on the log without their return: call id and event id.
    open_calls: Mapping[str, str] = {}
    # Model calls and tools' returns of this visit that are on the log; what a fork copied is not
    # the fork's own.
    model_calls: int = 0
    tool_returns: int = 0
    # How many messages its shared context had when this execution started.
    heard: int = 0
    # The live invocation of an agent that this execution has begun.
    invocation_id: str = ""
    # What a reviewer wants changed, for the node that does the work again.
    feedback: JsonObject | None = None
    # How often reviewers at this gate have sent the work back.
    refinements: int = 0
    # When its last wait ended: the node's own time limit counts from there.
    resumed_at: int = 0
    # The version of the code that executed it last.
    code_version: str = ""

    @property
    def holds_outputs(self) -> bool:
        """Whether the node is done but for a decision that a person has to ratify."""
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
    # The sequence of the last pause or resume; before the first of all if there was none.
    last_steered: int = -1
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
    # How many calls of models and of tools the whole run has on its log.
    model_calls: int = 0
    tool_calls: int = 0
    agent: AgentRef | None = None
    run_orchestrator: AgentRef | None = None
    decisions: tuple[Decision, ...] = ()
    # (child run id, node) of every child that the run itself ever had, in the order they were made.
    children: tuple[tuple[str, str], ...] = ()
    # The workflow of the newest worker that a dispatch node started; empty before the first.
    last_worker: str = ""
    cancelled_by_parent: bool = False
    # Resume values by interrupt key: the same key never asks twice.
    answers: Mapping[str, Json] = {}
    # The last event, which causes whatever the engine does next.
    last_event_id: str = ""

    @property
    def is_terminal(self) -> bool:
        """Whether the log is closed."""
        return self.status in ("completed", "failed", "cancelled")

    def active(self) -> list[str]:
        """Nodes that have started and not ended."""
        return [node_id for node_id, node in self.nodes.items() if node.status in ACTIVE]


_PENDING = NodeState()


def initial(identity: RunIdentity, graph: Graph) -> RunState:
    """The state of a run whose log is empty."""
    return RunState(
        identity=identity,
        graph=graph,
        nodes=dict.fromkeys(graph.nodes, _PENDING),
    )
