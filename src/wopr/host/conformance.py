"""The operations behind the test endpoints of `--conformance`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

import anyio
import msgspec

from wopr.agents.registry import InstalledAgent
from wopr.agents.tools.permissions import args_hash, permission_of
from wopr.engine.escalation import DEFAULT_THRESHOLD
from wopr.engine.fold.agents import DISPATCH, SUPERVISOR
from wopr.engine.plan import Start, plan
from wopr.engine.state import RunIdentity, RunState, initial_state
from wopr.host.host import Host
from wopr.protocol.documents import (
    UNSET,
    Closed,
    Document,
    Json,
    JsonObject,
    Millis,
    NonEmpty,
    Unset,
    is_object,
)
from wopr.protocol.errors import Forbidden, Refused, SequenceTaken, Unavailable
from wopr.protocol.events import RunEvent
from wopr.protocol.runs import TERMINAL, CreateRun, Owner, RunAccepted, RunError
from wopr.protocol.workflow import WorkflowId
from wopr.runs.active import ActiveRun
from wopr.runs.execution.tool_calls import ToolPolicy
from wopr.runs.forks.create import read_events
from wopr.runs.interrupts.approvals import Resolver
from wopr.runs.requests import NewRun, started_payload
from wopr.runs.sensitive_values import SensitiveValues
from wopr.security.digest import json_digest
from wopr.security.redact import Redactor

# A capability name without effect. Clients use it to detect the test endpoint.
PROBE_CAPABILITY: Final = "__probe__"
# The capabilities that can be switched off, each with the node type and the config keys that need
# it.
TOGGLES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "agents.dispatchMapping": (
        DISPATCH,
        ("inputMapping", "outputMapping", "perWorkerInputMappings", "perWorkerOutputMappings"),
    ),
    "subWorkflow.inputMapping": ("core.subWorkflow", ("inputMapping",)),
}
# A node's id, type, config and other members.
_Node: TypeAlias = tuple[str, str, JsonObject, JsonObject]
_WAIT_SECONDS: Final = 10
_REQUIRED_ROLE: Final = "reviewer"
_OVERRIDE_ROLE: Final = "admin"
_DECISIONS: Final = (
    "approval.granted",
    "approval.rejected",
    "approval.overridden",
    "authorization.decided",
)


class ToolProbe(Closed, frozen=True, kw_only=True):
    """A tool call to check. The tool is not called."""

    principal: NonEmpty
    tool_name: NonEmpty
    required_scopes: list[NonEmpty] = []
    args: Json | Unset = UNSET
    simulate_rate_limit_exhausted: bool = False


class ProbedCall(Document, frozen=True, kw_only=True):
    """The payload that `agent.toolCalled` would have."""

    args_hash: str
    principal: str
    transport: Literal["mcp", "http", "native"]


class ProbedReturn(Document, frozen=True, kw_only=True):
    """The payload that `agent.toolReturned` would have."""

    status: Literal["ok", "forbidden", "rate_limited"]
    duration_ms: Millis | Unset = UNSET


class ToolProbed(Document, frozen=True, kw_only=True):
    """The payloads of both events."""

    tool_called: ProbedCall
    tool_returned: ProbedReturn


async def probe_tool_call(
    policy: ToolPolicy, redactor: Redactor, tenant: str, wanted: ToolProbe
) -> ToolProbed:
    """Decide on a tool call by the rules for nodes. A principal without a key has no scopes."""
    given: Json = {} if isinstance(wanted.args, Unset) else wanted.args
    called = ProbedCall(
        args_hash=args_hash(redactor.json(given)),
        principal=wanted.principal,
        transport="native",
    )
    return ToolProbed(tool_called=called, tool_returned=await _probe_return(policy, tenant, wanted))


async def _probe_return(policy: ToolPolicy, tenant: str, wanted: ToolProbe) -> ProbedReturn:
    if wanted.required_scopes:
        scopes = await policy.scopes(tenant, wanted.principal)
        if permission_of(scopes, wanted.required_scopes) == "forbidden":
            return ProbedReturn(status="forbidden")
    caller = f"{tenant}/{wanted.principal}"
    if wanted.simulate_rate_limit_exhausted or policy.limits.take((caller, wanted.tool_name)):
        return ProbedReturn(status="rate_limited")
    return ProbedReturn(status="ok", duration_ms=0)


class SampleNode(Closed, frozen=True, kw_only=True):
    """A node of a sample workflow."""

    node_id: NonEmpty
    type_id: NonEmpty
    config: JsonObject = {}


class SampleWorkflow(Closed, frozen=True, kw_only=True):
    """A sample workflow. Its nodes run one after the other."""

    workflow_id: WorkflowId
    nodes: Annotated[list[SampleNode], msgspec.Meta(min_length=1)]
    edges: Annotated[list[JsonObject], msgspec.Meta(max_length=0)] = []


class ClaimRequest(Closed, frozen=True, kw_only=True):
    """The number of executors that compete for one effect."""

    executors: Annotated[int, msgspec.Meta(ge=2, le=16)] = 2


class ClaimResult(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The identity that each executor derived, and how many of them performed the effect."""

    logical_invocation_id: str
    minted_ids: list[str]
    attempted: int
    delivered: int


class GateRequest(Closed, frozen=True, kw_only=True):
    """A decision on a governance gate."""

    scenario: Literal["unauthorized-grant", "grant", "reject", "override", "quorum"]
    principal: NonEmpty = "conformance-principal"
    reason: NonEmpty = "conformance"


class GateResult(Document, frozen=True, kw_only=True, omit_defaults=False):
    """Whether the gate let the run continue, and the event of the decision."""

    released: bool
    event: JsonObject


class AgentDispatch(Document, frozen=True, kw_only=True):
    """One turn of an installed agent, with its decision."""

    task: Json | Unset = UNSET
    decision: Json | Unset = UNSET
    confidence: Annotated[float, msgspec.Meta(ge=0, le=1)] | Unset = UNSET


class AgentDispatched(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The result of the turn, and the events of the agent."""

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
    """Return the definition of a sample.

    Raises `Refused` when a node needs a capability that the overlay switches off.
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
        if (one.type_id, other.type_id) == (SUPERVISOR, DISPATCH)
    ]
    return _definition(
        sample.workflow_id,
        [(node.node_id, node.type_id, _config(node), {}) for node in sample.nodes],
        edges,
    )


def _config(node: SampleNode) -> JsonObject:
    """Return the config with the member names of this host."""
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
    """Start a run with a governance gate, decide it by the scenario, and return the outcome."""
    quorum = 2 if request.scenario == "quorum" else 1
    config: JsonObject = {
        "requiredRole": _REQUIRED_ROLE,
        "quorum": quorum,
        "override": {"requiredRole": _OVERRIDE_ROLE},
        "overrideBypassesQuorum": True,
    }
    gate: _Node = ("gate", "core.openwop.governance.approvalGate", config, {})
    run_id = await _start(host, tenant, _definition(f"sample-governance-gate-{quorum}", [gate], []))
    await _wait_until_settled(host, tenant, run_id)
    roles = {"unauthorized-grant": "viewer", "override": _OVERRIDE_ROLE}
    role = roles.get(request.scenario, _REQUIRED_ROLE)
    decision = "rejected" if request.scenario == "reject" else "granted"
    value: JsonObject = {"decision": decision, "reason": request.reason}
    for number in range(quorum):
        name = request.principal if not number else f"{request.principal}-{number + 1}"
        try:
            by = Resolver(name=name, role=role)
            await host.commands.resolve_interrupt(tenant, run_id, "gate", value, by)
        except Forbidden:
            break
    events = await _events(host, tenant, run_id)
    decided = [event for event in events if event.type in _DECISIONS][-1]
    released = any(event.type == "node.completed" for event in events)
    if not released:
        await host.commands.cancel(tenant, run_id, "conformance")
    return GateResult(released=released, event={"type": decided.type, "payload": decided.payload})


async def dispatch_agent(
    host: Host, tenant: str, agent: InstalledAgent, request: AgentDispatch
) -> AgentDispatched:
    """Run one turn of an installed agent with the decision of the request."""
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
    # The run gets the task as its inputs.
    inputs: JsonObject = task if is_object(task) else {}
    run_id = await _start(host, tenant, _definition(name, [node], []), inputs)
    state = await _wait_until_settled(host, tenant, run_id)
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


async def run_concurrent_executors(host: Host, tenant: str, request: ClaimRequest) -> ClaimResult:
    """Let several executors of one run start the same effect at the same time.

    An executor performs an effect only after its `node.started` is committed. The store accepts one
    event per sequence, so only one executor commits.
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
    run = ActiveRun(initial_state(identity, compiled.graph), compiled, SensitiveValues(), None)
    batch = journal.batch(run)
    batch.add("run.started", started_payload(compiled, inputs={}, owner=Owner(tenant=tenant)))
    await journal.commit(run, batch)
    minted, delivered = list[str](), list[str]()

    # Every executor reads the run before the first executor commits.
    loaded = [await journal.load(tenant, identity.run_id) for _ in range(request.executors)]

    async def execute(own: ActiveRun) -> None:
        planned = journal.batch(own)
        for step in plan(own.state, planned.now, journal.limits).steps:
            if isinstance(step, Start):
                invocation = f"{identity.run_id}:{step.node_id}:{step.attempt}"
                minted.append(invocation)
                host.advancer.executor.start_node(own, planned, step)
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


async def _wait_until_settled(host: Host, tenant: str, run_id: str) -> RunState:
    """Wait until the run has ended or waits for a person."""
    with anyio.move_on_after(_WAIT_SECONDS):
        while True:
            run = await host.advancer.journal.load(tenant, run_id)
            if run is not None and run.state.status in (*TERMINAL, "waiting-approval"):
                return run.state
            await anyio.sleep(0.02)
    raise Unavailable(f"run {run_id} did not settle within {_WAIT_SECONDS} seconds")


async def _events(host: Host, tenant: str, run_id: str) -> list[RunEvent]:
    row = await host.run_reader.row(tenant, run_id)
    return await read_events(host.advancer.journal, tenant, run_id, row.last_sequence + 1)
