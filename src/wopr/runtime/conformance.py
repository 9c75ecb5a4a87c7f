"""The work behind the test seams of `--conformance`: each drives the host's own machinery."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

import anyio
import msgspec

from wopr.agents.registry import Installed
from wopr.engine.escalation import DEFAULT_THRESHOLD
from wopr.engine.plan import plan
from wopr.engine.state import RunIdentity, RunState, initial
from wopr.engine.steps import Start
from wopr.protocol.documents import (
    UNSET,
    Closed,
    Document,
    Json,
    JsonObject,
    NonEmpty,
    Unset,
    is_object,
)
from wopr.protocol.errors import Forbidden, Refused, SequenceTaken, Unavailable
from wopr.protocol.events import RunEvent
from wopr.protocol.runs import TERMINAL, CreateRun, Owner, RunAccepted, RunError
from wopr.protocol.workflow import WorkflowId
from wopr.runtime.active import ActiveRun
from wopr.runtime.forking import read_events
from wopr.runtime.host import Host
from wopr.runtime.requests import NewRun
from wopr.runtime.starting import started_payload
from wopr.runtime.vault import Vault
from wopr.runtime.waits import Resolver
from wopr.security.digest import json_digest

# The capabilities that the toggle can take away, with the node type and the config keys that
# need each. The probe tells whether the toggle exists.
PROBE: Final = "__probe__"
TOGGLES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "agents.dispatchMapping": (
        "core.dispatch",
        ("inputMapping", "outputMapping", "perWorkerInputMappings", "perWorkerOutputMappings"),
    ),
    "subWorkflow.inputMapping": ("core.subWorkflow", ("inputMapping",)),
}
# A node's id, type, config and other members.
_Node: TypeAlias = tuple[str, str, JsonObject, JsonObject]
_SUPERVISOR: Final = "core.orchestrator.supervisor"
_WAIT_SECONDS: Final = 10
_REQUIRED_ROLE: Final = "reviewer"
_OVERRIDE_ROLE: Final = "admin"
_DECISIONS: Final = (
    "approval.granted",
    "approval.rejected",
    "approval.overridden",
    "authorization.decided",
)


class SampleNode(Closed, frozen=True, kw_only=True):
    """A node as the workflow seam takes it."""

    node_id: NonEmpty
    type_id: NonEmpty
    config: JsonObject = {}


class SampleWorkflow(Closed, frozen=True, kw_only=True):
    """A workflow as the workflow seam takes it: its nodes run one after the other."""

    workflow_id: WorkflowId
    nodes: Annotated[list[SampleNode], msgspec.Meta(min_length=1)]
    edges: Annotated[list[JsonObject], msgspec.Meta(max_length=0)] = []


class ClaimRequest(Closed, frozen=True, kw_only=True):
    """How many executors race for one effect."""

    executors: Annotated[int, msgspec.Meta(ge=2, le=16)] = 2


class ClaimResult(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The identity that each executor derived, and how many of them performed the effect."""

    logical_invocation_id: str
    minted_ids: list[str]
    attempted: int
    delivered: int


class GateRequest(Closed, frozen=True, kw_only=True):
    """Which decision on a governance gate to try."""

    scenario: Literal["unauthorized-grant", "grant", "reject", "override", "quorum"]
    principal: NonEmpty = "conformance-principal"
    reason: NonEmpty = "conformance"


class GateResult(Document, frozen=True, kw_only=True, omit_defaults=False):
    """Whether the gate let the run go on, and the event that recorded the decision."""

    released: bool
    event: JsonObject


class AgentDispatch(Document, frozen=True, kw_only=True):
    """One turn of an installed agent, with the decision that it is to take."""

    task: Json | Unset = UNSET
    decision: Json | Unset = UNSET
    confidence: Annotated[float, msgspec.Meta(ge=0, le=1)] | Unset = UNSET


class AgentDispatched(Document, frozen=True, kw_only=True, omit_defaults=False):
    """How the turn ended, and what the agent said."""

    agent_id: str
    status: Literal["completed", "escalated", "failed"]
    run_id: str
    tool_surface: list[str]
    confidence: float
    threshold: float
    events: list[JsonObject]
    result: JsonObject
    # Why the turn failed.
    error: RunError | Unset = UNSET


def sample_definition(sample: SampleWorkflow, overlay: Mapping[str, bool]) -> JsonObject:
    """The whole definition that a sample stands for.

    Raises `Refused` when a node needs a capability that the overlay takes away.
    """
    for node in sample.nodes:
        for capability, (type_id, keys) in TOGGLES.items():
            needed = next((key for key in keys if node.config.get(key)), None)
            if node.type_id == type_id and needed and overlay.get(capability) is False:
                raise Refused(
                    f"Node {node.node_id!r} has {needed}, which needs {capability}: "
                    "this host does not provide it.",
                    field=f"nodes.{node.node_id}.config.{needed}",
                    requiredCapability=capability,
                )
    pairs = list(zip(sample.nodes, sample.nodes[1:], strict=False))
    edges = [(one.node_id, other.node_id) for one, other in pairs]
    edges += [
        (other.node_id, one.node_id)
        for one, other in pairs
        if (one.type_id, other.type_id) == (_SUPERVISOR, "core.dispatch")
    ]
    return _definition(
        sample.workflow_id,
        [(node.node_id, node.type_id, _config(node), {}) for node in sample.nodes],
        edges,
    )


def _config(node: SampleNode) -> JsonObject:
    """The config under this host's names."""
    names = {"childWorkflowId": "workflowId"} if node.type_id == "core.subWorkflow" else {}
    return {names.get(name, name): value for name, value in node.config.items()}


def _definition(
    workflow_id: str,
    nodes: list[_Node],
    edges: list[tuple[str, str]],
) -> JsonObject:
    return {
        "id": workflow_id,
        "name": workflow_id,
        "version": "1.0",
        "nodes": [
            {
                "id": node_id,
                "typeId": type_id,
                "name": node_id,
                "position": {"x": 240 * index, "y": 0},
                "config": config,
                "inputs": {},
                **extra,
            }
            for index, (node_id, type_id, config, extra) in enumerate(nodes)
        ],
        "edges": [
            {"id": f"{source}-{target}", "sourceNodeId": source, "targetNodeId": target}
            for source, target in edges
        ],
        "triggers": [{"id": "manual", "type": "manual", "enabled": True}],
        "variables": [],
        "metadata": {"tags": ["conformance"]},
        "settings": {"timeout": 0},
    }


async def decide_gate(host: Host, tenant: str, request: GateRequest) -> GateResult:
    """Start a run with a governance gate, decide it as the scenario says, and read the outcome."""
    quorum = 2 if request.scenario == "quorum" else 1
    config: JsonObject = {
        "requiredRole": _REQUIRED_ROLE,
        "quorum": quorum,
        "override": {"requiredRole": _OVERRIDE_ROLE},
        "overrideBypassesQuorum": True,
    }
    gate: _Node = ("gate", "core.openwop.governance.approvalGate", config, {})
    run_id = await _start(host, tenant, _definition(f"sample-governance-gate-{quorum}", [gate], []))
    await _settled(host, tenant, run_id)
    roles = {"unauthorized-grant": "viewer", "override": _OVERRIDE_ROLE}
    role = roles.get(request.scenario, _REQUIRED_ROLE)
    decision = "rejected" if request.scenario == "reject" else "granted"
    value: JsonObject = {"decision": decision, "reason": request.reason}
    for number in range(quorum):
        name = request.principal if not number else f"{request.principal}-{number + 1}"
        try:
            by = Resolver(name=name, role=role)
            await host.commands.answer(tenant, run_id, "gate", value, by)
        except Forbidden:
            break
    events = await _events(host, tenant, run_id)
    decided = [event for event in events if event.type in _DECISIONS][-1]
    released = any(event.type == "node.completed" for event in events)
    if not released:
        await host.commands.cancel(tenant, run_id, "conformance")
    return GateResult(released=released, event={"type": decided.type, "payload": decided.payload})


async def dispatch_agent(
    host: Host, tenant: str, agent: Installed, request: AgentDispatch
) -> AgentDispatched:
    """Run one turn of an installed agent, whose decision the request gives."""
    manifest = agent.manifest
    confidence = 1.0 if isinstance(request.confidence, Unset) else request.confidence
    task: Json = None if isinstance(request.task, Unset) else request.task
    decided: Json = {"task": task} if isinstance(request.decision, Unset) else request.decision
    config: JsonObject = {
        "mockReasoning": {"summary": f"{manifest.persona} reads the task."},
        "mockDecision": {"decision": decided, "confidence": confidence},
    }
    pin: JsonObject = {"agent": {"agentId": manifest.agent_id, "version": manifest.version}}
    name = f"sample-dispatch-{json_digest([config, pin]).hex()[:16]}"
    node: _Node = ("agent", "core.conformance.mock-agent", config, pin)
    # The agent is handed the task as the inputs of its run.
    inputs: JsonObject = task if is_object(task) else {}
    run_id = await _start(host, tenant, _definition(name, [node], []), inputs)
    state = await _settled(host, tenant, run_id)
    events = await _events(host, tenant, run_id)
    statuses: dict[str, Literal["completed", "failed"]] = {
        "completed": "completed",
        "failed": "failed",
    }
    return AgentDispatched(
        agent_id=manifest.agent_id,
        status=statuses.get(state.status, "escalated"),
        run_id=run_id,
        tool_surface=sorted(manifest.tools),
        confidence=confidence,
        threshold=DEFAULT_THRESHOLD if manifest.threshold is None else manifest.threshold,
        events=[
            {"type": event.type, **event.payload}
            for event in events
            if event.type.startswith("agent.")
        ],
        result=state.outputs or {},
        error=state.error or UNSET,
    )


async def race(host: Host, tenant: str, request: ClaimRequest) -> ClaimResult:
    """Let several executors of one run reach one effect at once.

    An executor performs an effect only after its `node.started` is committed. The sequence of that
    event is the claim: the store takes one event per sequence, so that one executor wins.
    """
    journal = host.advancer.journal
    definition = _definition(
        "sample-concurrent-claim", [("effect", "core.conformance.side-effect", {}, {})], []
    )
    await host.library.register(tenant, definition, may_author_conformance=True)
    compiled = await host.library.newest(tenant, "sample-concurrent-claim")
    identity = RunIdentity(
        run_id=journal.new_id(),
        tenant=tenant,
        workflow_id=compiled.workflow_id,
        workflow_version=compiled.version,
    )
    run = ActiveRun(initial(identity, compiled.graph), compiled, Vault(), None)
    burst = journal.burst(run)
    burst.add("run.started", started_payload(compiled, inputs={}, owner=Owner(tenant=tenant)))
    await journal.commit(run, burst)
    minted, delivered = list[str](), list[str]()

    # Every executor has read the run before the first of them commits.
    loaded = [await journal.load(tenant, identity.run_id) for _ in range(request.executors)]

    async def execute(own: ActiveRun) -> None:
        planned = journal.burst(own)
        for step in plan(own.state, planned.now, journal.limits).steps:
            if isinstance(step, Start):
                invocation = f"{identity.run_id}:{step.node_id}:{step.attempt}"
                minted.append(invocation)
                host.advancer.stepping.start_node(own, planned, step)
                try:
                    await journal.commit(own, planned)
                except SequenceTaken:
                    return
                delivered.append(invocation)

    async with anyio.create_task_group() as tasks:
        for own in loaded:
            if own is not None:
                tasks.start_soon(execute, own)
    await host.commands.cancel(tenant, identity.run_id, "conformance")
    return ClaimResult(
        logical_invocation_id=minted[0],
        minted_ids=minted,
        attempted=len(minted),
        delivered=len(delivered),
    )


async def _start(
    host: Host, tenant: str, definition: JsonObject, inputs: JsonObject | None = None
) -> str:
    await host.library.register(tenant, definition, may_author_conformance=True)
    new = NewRun(
        request=CreateRun(workflow_id=definition["id"], inputs=inputs or {}),
        compiled=await host.library.newest(tenant, definition["id"]),
        owner=Owner(tenant=tenant),
    )
    accepted = await host.commands.create(new)
    return msgspec.json.decode(accepted, type=RunAccepted).run_id


async def _settled(host: Host, tenant: str, run_id: str) -> RunState:
    """Wait until the run has ended or waits for a person."""
    with anyio.move_on_after(_WAIT_SECONDS):
        while True:
            run = await host.advancer.journal.load(tenant, run_id)
            if run is not None and run.state.status in (*TERMINAL, "waiting-approval"):
                return run.state
            await anyio.sleep(0.02)
    raise Unavailable(f"run {run_id} did not settle within {_WAIT_SECONDS} seconds")


async def _events(host: Host, tenant: str, run_id: str) -> list[RunEvent]:
    row = await host.readers.row(tenant, run_id)
    return await read_events(host.advancer.journal, tenant, run_id, row.last_sequence + 1)
