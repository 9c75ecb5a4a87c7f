"""Execute nodes and append their outcomes, at once or in the background.

Plain functions of the host are called while a batch is made: `start_node`, `_call_at_once`,
`_settle`. Async nodes, and functions that may block, are executed in the background after their
`node.started` is committed: `launch`, `_execute`, `_finish`. Their outcome is appended in a batch
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeVar, cast

import anyio
import msgspec
import structlog

from wopr.agents.loop.config import AgentConfig
from wopr.agents.loop.request_plan import needed_tools
from wopr.cluster.wakeups import Wakeups
from wopr.engine.limits import node_deadline
from wopr.engine.outcome import (
    Breached,
    Completed,
    Failed,
    NodeFailure,
    Outcome,
    Sleeping,
    Suspended,
    Waiting,
)
from wopr.engine.plan import (
    Breach,
    Expire,
    FailNode,
    FailRun,
    Finish,
    LoopbackLimit,
    Resume,
    Skip,
    Start,
    Step,
    run_outputs,
)
from wopr.engine.ports import PortFault, resolve_inputs
from wopr.engine.state import RunState
from wopr.engine.triggers import expression_scope
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import NodeType, as_outcome
from wopr.process.egress import Egress
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.errors import LeaseLost, Unavailable, WoprError
from wopr.protocol.offloading import WorkNeeded
from wopr.protocol.runs import RunError
from wopr.runs.active import ActiveRun
from wopr.runs.active_runs import ActiveRuns
from wopr.runs.append import EventBatch
from wopr.runs.execution.agent_context import AgentContext, AgentServices, unratified_decision
from wopr.runs.execution.children import child_views
from wopr.runs.execution.context import ContextServices, ExecutionContext
from wopr.runs.execution.handoffs import add_handoff, check_return, check_task
from wopr.runs.execution.node_events import (
    breach_limit,
    cancel_children,
    complete_node,
    error_json,
    fail_node,
    fail_or_retry_node,
    is_current,
    stop_nodes,
)
from wopr.runs.interrupts.resolve import apply_script, complete_ratified, continue_resolution
from wopr.runs.interrupts.suspend import expire_interrupt, suspend, suspend_with_outputs

T = TypeVar("T")
NODE_TIMEOUT: Final = "node_timeout"

log = structlog.get_logger("wopr.nodes")


class Transact(Protocol):
    """Appends a change and the next steps. The caller holds the lock of the run."""

    async def __call__(
        self, run: ActiveRun, change: Callable[[EventBatch], T], *, is_fence: bool = False
    ) -> T:
        """Return the result of `change`.

        With `is_fence`, raises `LeaseLost` when another process has the lease of the run.
        """
        ...


def apply_step(run: ActiveRun, batch: EventBatch, step: Step) -> None:
    """Append the events of a planned step that calls no node. `Executor` applies the others."""
    match step:
        case Start() | Resume():
            raise AssertionError(f"{step} calls a node")
        case Skip(node_id, reason):
            payload = {"nodeId": node_id, "reason": reason}
            batch.add("node.skipped", payload, node_id=node_id)
        case FailNode(node_id, error):
            fail_node(batch, node_id, error)
        case Breach():
            breach_limit(run, batch, step)
        case LoopbackLimit(node_id, iterations, limit, error):
            stop_nodes(run, batch, "loop-limit")
            loop: JsonObject = {"nodeId": node_id, "iterations": iterations, "limit": limit}
            batch.add("workflow.loopback-limit", loop, node_id=node_id)
            batch.add("run.failed", {"error": error_json(error), "failedNodeId": node_id})
        case Expire(node_id):
            fail_node(batch, node_id, expire_interrupt(batch, node_id))
        case Finish():
            # From the masked state, so that the outputs of the run are masked like the log.
            try:
                batch.add("run.completed", {"outputs": run_outputs(batch.state)})
            except NodeFailure as failure:
                batch.add("run.failed", {"error": error_json(failure.error)})
        case FailRun(node_id, error):
            stop_nodes(run, batch, "run-failed")
            batch.add("run.failed", {"error": error_json(error), "failedNodeId": node_id})


class Executor:
    """Starts, calls and settles the nodes of runs."""

    def __init__(
        self,
        active: ActiveRuns,
        wakeups: Wakeups,
        *,
        egress: Egress,
        services: AgentServices,
        provides: frozenset[str],
        transact: Transact,
    ) -> None:
        self.services = services
        self._active = active
        self._journal = active.journal
        self._leases = active.leases
        self._wakeups = wakeups
        self._provides = provides
        self._transact = transact
        self.context_services = ContextServices(
            journal=active.journal, egress=egress, append_drafts=self._append_drafts
        )

    # -- steps that call a node

    def start_node(self, run: ActiveRun, batch: EventBatch, step: Start) -> None:
        """Append the start of a node, and call it or have it called after the commit."""
        node = run.compiled.graph.nodes[step.node_id]
        if self._refuse_test_hook(run, batch, node.id):
            return
        node_type = run.compiled.types[node.id]
        if node_type is None:
            raise AssertionError(f"there is no code for node type {node.type_id!r}")
        missing = [need for need in node_type.requires if need not in self._provides]
        if missing:
            fail_node(batch, node.id, _not_provided(node.type_id, missing))
            return
        payload: JsonObject = {"nodeId": node.id, "typeId": node.type_id, "attempt": step.attempt}
        if not isinstance(node.agent, Unset):
            add_handoff(batch, node)
            payload["agent"] = msgspec.to_builtins(node.agent)
        batch.add("node.started", payload, node_id=node.id)
        self._call_or_launch(run, batch, node.id, node_type)

    def resume_node(self, run: ActiveRun, batch: EventBatch, step: Resume) -> None:
        """Continue a node with the resume value on the log, and call it."""
        continue_resolution(batch, step.node_id)
        if batch.state.nodes[step.node_id].status == "running":
            self._call_if_due(run, batch, step.node_id)

    def call_running_nodes(self, run: ActiveRun, batch: EventBatch) -> None:
        """Call every running node that is due, or that this process is not executing."""
        if batch.state.status == "paused":
            return
        self.find_lacking_tools(run, batch.state.started_at)
        for node_id, node in list(batch.state.nodes.items()):
            if node.status != "running" or node_id in run.to_launch:
                continue
            if node_id in run.in_flight:
                run.call_again.add(node_id)
                continue
            self._call_if_due(run, batch, node_id)

    def _call_if_due(self, run: ActiveRun, batch: EventBatch, node_id: str) -> None:
        """Call a running node unless it sleeps. Complete a node whose decision was ratified."""
        if self._refuse_test_hook(run, batch, node_id):
            return
        if batch.state.nodes[node_id].holds_outputs:
            complete_ratified(batch, node_id)
            return
        until = run.parked.get(node_id, 0)
        node_type = run.compiled.types[node_id] if run.has_code(node_id) else None
        if node_type is not None and (until is None or until <= batch.now):
            self._call_or_launch(run, batch, node_id, node_type)

    def _call_or_launch(
        self, run: ActiveRun, batch: EventBatch, node_id: str, node_type: NodeType
    ) -> None:
        """Call a node at once, or have it called in the background after the commit."""
        number = batch.state.nodes[node_id].decision
        if number is not None:
            # A supervisor whose decision is on the log does not decide again.
            decision = run.sensitive.unmask(batch.state).decisions[number].decision
            complete_node(batch, node_id, {"decision": decision})
            return
        if node_type.is_async:
            if self.reserve_memory(run, batch):
                run.to_launch.append(node_id)
            return
        context = self._context(run, node_id, node_type, batch.state, batch.now)
        self._settle(run, batch, context, self._call_at_once(run, context, node_type))

    # -- calls

    def _context(
        self, run: ActiveRun, node_id: str, node_type: NodeType, state: RunState, now: int
    ) -> ExecutionContext:
        """Return the context of a call. Types that act for agents get an `AgentContext`."""
        if node_type.uses_agent_context:
            return AgentContext(self.context_services, self.services, run, node_id, state, now=now)
        return ExecutionContext(self.context_services, run, node_id, state, now=now)

    def _call_at_once(
        self, run: ActiveRun, context: ExecutionContext, node_type: NodeType
    ) -> Outcome:
        """Call a node that does not wait."""
        timeout = _timeout(context.state, context.node_id, context.now)
        if timeout is not None:
            return timeout
        try:
            arguments = self._arguments(run, context, node_type)
            return as_outcome(node_type.execute(_as_node_context(context), *arguments))
        except WorkNeeded:
            raise
        except Exception as error:  # the outer edge of a node's own code
            return _node_failure(context, *_causes(error))

    def _arguments(
        self, run: ActiveRun, context: ExecutionContext, node_type: NodeType
    ) -> tuple[Json, Json]:
        """Return the decoded config and inputs of a node."""
        graph = run.compiled.graph
        ports = graph.nodes[context.node_id].inputs
        inputs: JsonObject = {}
        if ports or graph.incoming[context.node_id]:
            known = expression_scope(context.state)
            inputs = _edge_values(run, context.node_id, known) | resolve_inputs(ports, known)
        if context.has_agent:
            check_task(self.services, context.state, context.node_id, inputs)
        return run.compiled.configs[context.node_id], node_type.decode_inputs(inputs)

    # -- outcomes

    def _settle(
        self, run: ActiveRun, batch: EventBatch, context: ExecutionContext, outcome: Outcome
    ) -> None:
        """Append what a call has emitted, and its outcome. A node with too much data fails."""
        try:
            self._settle_within_limits(run, batch, context, outcome)
        except NodeFailure as failure:
            fail_node(batch, context.node_id, failure.error)

    def _settle_within_limits(
        self, run: ActiveRun, batch: EventBatch, context: ExecutionContext, outcome: Outcome
    ) -> None:
        node_id = context.node_id
        try:
            context.write(batch)
            batch.check_outcome(outcome)
        except NodeFailure as failure:
            outcome = Failed(failure.error)
        if isinstance(outcome, Completed) and context.has_agent:
            outcome = check_return(self.services, context.state, node_id, outcome) or outcome
        if isinstance(outcome, Completed) and batch.state.nodes[node_id].agent_decisions:
            suspension = unratified_decision(self.services, context, batch)
            if suspension is not None:
                fault = suspend_with_outputs(batch, node_id, suspension, outcome.outputs)
                if fault is not None:
                    fail_node(batch, node_id, fault)
                return
        _append_outcome(run, batch, node_id, outcome)
        if isinstance(outcome, Suspended) and outcome.script:
            apply_script(batch, node_id, outcome.script)
            self.call_running_nodes(run, batch)

    # -- background

    def launch(self, run: ActiveRun) -> None:
        """Start the async nodes whose start is now on the log."""
        if self._leases.is_shared and not run.is_held:
            # Another process executes them: it has the lease of the run, or gets it.
            self._active.drop(run)
        if self._wakeups.tasks is None or not run.to_launch:
            return
        self._active.runs[run.state.identity.run_id] = run
        for node_id in run.to_launch:
            scope = run.in_flight[node_id] = anyio.CancelScope()
            run.call_again.discard(node_id)
            self._wakeups.tasks.start_soon(self._execute, run, node_id, scope)
        run.to_launch.clear()

    async def _execute(self, run: ActiveRun, node_id: str, scope: anyio.CancelScope) -> None:
        """Call an async node and append its outcome."""
        identity, node_type = run.state.identity, run.compiled.types[node_id]
        if node_type is None:
            # Only nodes with code are launched.
            del run.in_flight[node_id]
            return
        context = self._context(run, node_id, node_type, run.state, self._journal.now())
        outcome: Outcome | None = None
        try:
            with scope:
                outcome = await self._call(run, context, node_type)
            scheduler = self._wakeups.scheduler
            async with scheduler.slot(identity.tenant), scheduler.hold_lock(run.lock):
                try:
                    await self._finish(run, context, outcome, scope)
                finally:
                    self._active.release(run)
        except LeaseLost:
            # The process with the lease of the run calls the node.
            self._active.drop(run)
            self._active.release(run)
        except Exception as error:  # the outer edge of a task
            # The node stays running on the log, and is called again.
            if run.in_flight.get(node_id) is scope:
                del run.in_flight[node_id]
            await self._wakeups.retry_later(identity.tenant, identity.run_id, error)

    async def _call(
        self, run: ActiveRun, context: ExecutionContext, node_type: NodeType
    ) -> Outcome:
        """Read the children of a node, and call it."""
        try:
            context.children = await child_views(self._journal, context.state, context.node_id)
        except NodeFailure as failure:
            return Failed(failure.error)
        return await call_in_background(
            context, node_type, lambda: self._arguments(run, context, node_type)
        )

    async def _finish(
        self,
        run: ActiveRun,
        context: ExecutionContext,
        outcome: Outcome | None,
        scope: anyio.CancelScope,
    ) -> None:
        """Append the outcome of an async node, unless the run no longer waits for it."""
        # An interrupted node may be in flight again before its first execution has ended.
        if run.in_flight.get(context.node_id) is scope:
            del run.in_flight[context.node_id]
        if outcome is None or run.state.is_terminal:
            if run.is_held and run.is_idle:
                # The node was cancelled. No event follows, so this append releases the lease.
                await self._transact(run, lambda _: None)
            return

        def change(batch: EventBatch) -> None:
            if not is_current(batch.state, context.node_id, context.started_event):
                return
            self._settle(run, batch, context, outcome)
            if isinstance(outcome, Waiting) and context.node_id in run.call_again:
                # The run was woken during the call. Only this process knows that, so it calls the
                # node again before it releases the run.
                run.to_launch.append(context.node_id)

        await self._transact(run, change, is_fence=self._leases.is_shared)

    async def _append_drafts(self, run: ActiveRun, change: Callable[[EventBatch], int]) -> int:
        """Append what a node in flight has emitted so far."""
        async with run.lock:
            # A node that times out is cancelled after the commit and not during it, so that the
            # state in memory stays equal to the store.
            count = 0
            with anyio.CancelScope(shield=True):
                count = await self._transact(run, change, is_fence=self._leases.is_shared)
            return count

    # -- checks before a call, and the keys that a replay compares

    def reserve_memory(self, run: ActiveRun, batch: EventBatch) -> bool:
        """Reserve memory for a run with a node in flight; False when there is not enough.

        The run is then woken as soon as other runs have released memory.
        """
        identity = run.state.identity
        size = run.memory + batch.memory + batch.large_values.memory
        return self._leases.memory.admit(identity.tenant, identity.run_id, size)

    def find_lacking_tools(self, run: ActiveRun, started_at: int) -> None:
        """Find the nodes whose agents need tools that this process does not have.

        The manifests of the agents are those of the time when the run started.
        """
        if run.lacking_tools is not None or not (started_at and run.compiled.has_agents):
            return
        run.lacking_tools = {}
        tenant, toolbox = run.state.identity.tenant, self.services.llm.toolbox
        for node_id, config in run.compiled.configs.items():
            if isinstance(config, AgentConfig):
                needed = needed_tools(config, self._allowlist(run, node_id, started_at))
                if any(toolbox.find(tenant, name) is None for name in needed):
                    run.lacking_tools[node_id] = needed

    def _allowlist(self, run: ActiveRun, node_id: str, started_at: int) -> frozenset[str] | None:
        agent = run.compiled.graph.nodes[node_id].agent
        if isinstance(agent, Unset):
            return None
        version = None if isinstance(agent.version, Unset) else agent.version
        tenant = run.state.identity.tenant
        return self.services.agents.allowlist(tenant, agent.agent_id, version, started_at)

    def _refuse_test_hook(self, run: ActiveRun, batch: EventBatch, node_id: str) -> bool:
        """Fail a node that needs a test hook which this host does not honour."""
        hook = run.compiled.test_hooks.get(node_id)
        if hook is None:
            return False
        fail_node(batch, node_id, _not_provided(hook, ["conformance.mockAgent"]))
        return True

    def first_request_keys(
        self, run: ActiveRun, batch: EventBatch, node_id: str
    ) -> frozenset[str] | None:
        """Return the keys of the first model request that a node would make, for a replay.

        Empty when its arguments are invalid. None when it makes no request, or when its keys are
        not known here.
        """
        node_type = run.compiled.types[node_id]
        if node_type is None or batch.state.nodes[node_id].status != "running":
            return None
        if node_type.asked_keys is None:
            return None
        context = self._context(run, node_id, node_type, batch.state, batch.now)
        try:
            arguments = self._arguments(run, context, node_type)
            return node_type.asked_keys(_as_node_context(context), *arguments)
        except (NodeFailure, PortFault, msgspec.ValidationError):
            return frozenset()


async def call_in_background(
    context: ExecutionContext, node_type: NodeType, arguments: Callable[[], tuple[Json, Json]]
) -> Outcome:
    """Call a node that may wait, within the rest of its time.

    Raises `Unavailable` when the store is unavailable, and `LeaseLost` when another process has the
    lease of the run. Neither is a failure of the node.
    """
    timeout = _timeout(context.state, context.node_id, context.now)
    if timeout is not None:
        return timeout
    deadline = node_deadline(context.state, context.node_id)
    with anyio.move_on_after(None if deadline is None else (deadline - context.now) / 1000):
        try:
            given = await context.offload(arguments)
            return await node_type.call(_as_node_context(context), *given)
        except Exception as error:  # the outer edge of a node's own code
            causes = list(_causes(error))
            for cause in causes:
                if isinstance(cause, Unavailable | LeaseLost):
                    raise cause from None
            return _node_failure(context, *causes)
    return _timeout_failure(context.state, context.node_id)


def _as_node_context(context: ExecutionContext) -> NodeContext:
    """Return the context as node types see it.

    Types without `uses_agent_context` do not use the parts that only an `AgentContext` has.
    """
    return cast("NodeContext", context)


def _append_outcome(run: ActiveRun, batch: EventBatch, node_id: str, outcome: Outcome) -> None:
    """Append the outcome of a call of a node, or park the node until its next call."""
    run.parked.pop(node_id, None)
    match outcome:
        case Completed(result, cause):
            complete_node(batch, node_id, result, cause)
        case Failed(error):
            if error.code == NODE_TIMEOUT:
                # No node waits for these children now. The next attempt starts its own children.
                cancel_children(run, batch, node_id)
            fail_or_retry_node(batch, node_id, error)
        case Sleeping(until):
            deadline = node_deadline(batch.state, node_id)
            run.parked[node_id] = until if deadline is None else min(until, deadline)
        case Waiting():
            run.parked[node_id] = None
        case Suspended():
            fault = suspend(batch, node_id, outcome)
            if fault is not None:
                fail_node(batch, node_id, fault)
        case Breached():
            breach = Breach(
                outcome.kind,
                outcome.limit,
                outcome.observed,
                outcome.error,
                node_id,
                outcome.scope,
            )
            breach_limit(run, batch, breach)


def _timeout(state: RunState, node_id: str, now: int) -> Failed | None:
    """Return the failure of a node that has used up its own time."""
    deadline = node_deadline(state, node_id)
    return None if deadline is None or now < deadline else _timeout_failure(state, node_id)


def _timeout_failure(state: RunState, node_id: str) -> Failed:
    limit = state.graph.nodes[node_id].settings.timeout
    message = f"{node_id} took longer than its limit of {limit} ms"
    return Failed(RunError(code=NODE_TIMEOUT, message=message))


def _edge_values(run: ActiveRun, node_id: str, known: dict[str, Json]) -> JsonObject:
    """Return the values of edges that name the input they lead to."""
    values: JsonObject = {}
    for edge in run.compiled.graph.incoming[node_id]:
        if isinstance(edge.target_input, Unset):
            continue
        node_outputs = known["nodes"].get(edge.source_node_id, {})
        if isinstance(edge.source_output, Unset):
            values[edge.target_input] = node_outputs.get("output", node_outputs)
        elif edge.source_output in node_outputs:
            values[edge.target_input] = node_outputs[edge.source_output]
    return values


def _causes(error: Exception) -> Iterator[Exception]:
    """Yield the exceptions of an exception group in order, or the exception itself."""
    if not isinstance(error, ExceptionGroup):
        yield error
        return
    for each in cast("ExceptionGroup[Exception]", error).exceptions:
        yield from _causes(each)


def _node_failure(context: ExecutionContext, *causes: Exception) -> Failed:
    """Return the failure of a node: its first cause. Several causes are in `details.errors`."""
    errors = [_error(context, cause) for cause in causes]
    if len(errors) == 1:
        return Failed(errors[0])
    details = {} if isinstance(errors[0].details, Unset) else errors[0].details
    named = [{"code": error.code, "message": error.message} for error in errors]
    return Failed(msgspec.structs.replace(errors[0], details=details | {"errors": named}))


def _error(context: ExecutionContext, cause: Exception) -> RunError:
    match cause:
        case NodeFailure():
            return cause.error
        case PortFault() | msgspec.ValidationError():
            place = "" if isinstance(cause, PortFault) else "inputs: "
            message = f"node {context.node_id!r}: {place}{cause}"
            return RunError(code="validation_error", message=message, retryable=False)
        case WoprError():
            return RunError(code=cause.code, message=cause.message)
        case _:
            log.warning(
                "node raised", run_id=context.run_id, node_id=context.node_id, exc_info=cause
            )
            return RunError(code="node_error", message=f"{type(cause).__name__}: {cause}")


def _not_provided(what: str, missing: list[str]) -> RunError:
    return RunError(
        code="capability_not_provided",
        message=f"{what} requires {', '.join(missing)}, which this host does not provide",
        details={"missing": missing},
    )
