"""What follows from a run's state without waiting: steps taken, nodes started and called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from wopr.engine.outcome import Completed, Failed, NodeFailure, Outcome, Suspended
from wopr.engine.plan import plan
from wopr.engine.state import RunState
from wopr.engine.steps import Breach, FailRun, Resume, Start, Step
from wopr.nodes.llm_config import AgentConfig
from wopr.nodes.llm_plan import needed_tools
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import JsonObject, Unset
from wopr.protocol.offloading import WorkNeeded
from wopr.protocol.runs import RunError
from wopr.runtime.active import ActiveRun
from wopr.runtime.agent_call import AgentCall
from wopr.runtime.appender import Burst
from wopr.runtime.calling import call_now, keys_of
from wopr.runtime.handoff_schemas import check_return
from wopr.runtime.handoffs import hand_over
from wopr.runtime.resolving import continue_answer, play_script, settle_held
from wopr.runtime.steps import complete, error_json, fail_node, stop_nodes, take
from wopr.runtime.steps import settle as settle_node
from wopr.runtime.suspending import hold
from wopr.runtime.wishes import PauseWish

if TYPE_CHECKING:
    from wopr.runtime.advance import Advancer


class Stepping:
    """Turns plans into bursts. Nodes that wait are put on the run's `launch`."""

    def __init__(self, advancer: Advancer, provides: frozenset[str]) -> None:
        self._advancer = advancer
        self._provides = provides

    def take_all(self, run: ActiveRun, burst: Burst) -> bool:
        """Take every step that needs no waiting; True when the burst is full and more are left."""
        self.look_for_tools(run, burst.state.started_at)
        while not burst.state.is_terminal:
            if burst.is_full:
                return True
            if _has_too_much_data(run, burst):
                break
            try:
                steps = self._planned(run, burst)
            except WorkNeeded:
                if not burst.events:
                    raise
                # The work takes time, and an attempt with its result repeats only the plan.
                return True
            possible = tuple(
                step
                for step in steps
                if not (_lacks_code(run, step) or self._lacks_memory(run, burst, step))
            )
            if not possible:
                run.missing_types = _missing_types(run, burst.state, steps)
                return False
            self._take(run, burst, possible)
        run.missing_types = {}
        return False

    def _planned(self, run: ActiveRun, burst: Burst) -> tuple[Step, ...]:
        """The steps of the plan, as far as a wish to pause allows them."""
        state = run.vault.reveal(burst.state)
        steps = plan(state, burst.now, self._advancer.journal.limits).steps
        if run.pausing is not None and not run.pausing.is_settled(burst.state):
            steps = tuple(step for step in steps if isinstance(step, Breach))
            if not steps:
                _pause_when_drained(run.pausing, burst)
        return steps

    def _take(self, run: ActiveRun, burst: Burst, steps: Sequence[Step]) -> None:
        """Take steps that were planned together: the starts of nodes, or other steps."""
        if _lacks_room(run, burst, steps[0]):
            return
        for step in steps:
            if isinstance(step, Start):
                self.start_node(run, burst, step)
            elif isinstance(step, Resume):
                self.resume_node(run, burst, step)
            else:
                take(run, burst, step)

    def _lacks_memory(self, run: ActiveRun, burst: Burst, step: Step) -> bool:
        """Whether a step starts a node that waits until there is memory for its run."""
        if not isinstance(step, Start):
            return False
        node_type = run.compiled.types[step.node_id]
        return node_type is not None and node_type.is_async and not self._admit(run, burst)

    def _admit(self, run: ActiveRun, burst: Burst) -> bool:
        """Whether the run may be in memory while a node is executed; else it is woken later."""
        identity = run.state.identity
        size = run.memory + burst.memory + burst.spilled.memory
        return self._advancer.holding.memory.admit(identity.tenant, identity.run_id, size)

    def look_for_tools(self, run: ActiveRun, started_at: int) -> None:
        """Find the nodes whose agents need tools that this process has not.

        Agents have the manifests of the time when the run started.
        """
        if run.lacking_tools is not None or not (started_at and run.compiled.has_agents):
            return
        run.lacking_tools = {}
        tenant = run.state.identity.tenant
        services = self._advancer.services
        for node_id, config in run.compiled.configs.items():
            if isinstance(config, AgentConfig):
                needed = needed_tools(config, self._allowed(run, node_id, started_at))
                if any(services.llm.toolbox.find(tenant, name) is None for name in needed):
                    run.lacking_tools[node_id] = needed

    def _allowed(self, run: ActiveRun, node_id: str, started_at: int) -> frozenset[str] | None:
        """The tools that the agent of a node may call; None for a node without a manifest."""
        agent = run.compiled.graph.nodes[node_id].agent
        if isinstance(agent, Unset):
            return None
        version = None if isinstance(agent.version, Unset) else agent.version
        agents = self._advancer.services.agents
        return agents.allowlist(run.state.identity.tenant, agent.agent_id, version, started_at)

    def start_node(self, run: ActiveRun, burst: Burst, step: Start) -> None:
        """Append a node's start, and call it unless it may wait. The process has its type."""
        node = run.compiled.graph.nodes[step.node_id]
        if self._refuse_test_hook(run, burst, node.id):
            return
        node_type = run.compiled.types[node.id]
        if node_type is None:
            raise AssertionError(f"there is no code for node type {node.type_id!r}")
        missing = [need for need in node_type.requires if need not in self._provides]
        if missing:
            fail_node(burst, node.id, _not_provided(node.type_id, missing))
            return
        hand_over(burst, node)
        payload: JsonObject = {"nodeId": node.id, "typeId": node.type_id, "attempt": step.attempt}
        if not isinstance(node.agent, Unset):
            payload["agent"] = msgspec.to_builtins(node.agent)
        burst.add("node.started", payload, node_id=node.id)
        self._call_or_launch(run, burst, node.id, node_type)

    def resume_node(self, run: ActiveRun, burst: Burst, step: Resume) -> None:
        """Let a node go on with the answer that the log has, and call it."""
        continue_answer(burst, step.node_id)
        if burst.state.nodes[step.node_id].status == "running":
            self._call_due(run, burst, step.node_id)

    def _refuse_test_hook(self, run: ActiveRun, burst: Burst, node_id: str) -> bool:
        """Fail a node that needs a test hook which this host does not honour."""
        hook = run.compiled.test_hooks.get(node_id)
        if hook is None:
            return False
        fail_node(burst, node_id, _not_provided(hook, ["conformance.mockAgent"]))
        return True

    def asked_keys(self, run: ActiveRun, burst: Burst, node_id: str) -> frozenset[str] | None:
        """What a node would ask a model first, for a replay to compare; None when it asks none."""
        node_type = run.compiled.types[node_id]
        if node_type is None or burst.state.nodes[node_id].status != "running":
            return None
        return keys_of(
            run, AgentCall(self._advancer, run, node_id, burst.state, now=burst.now), node_type
        )

    def _call_or_launch(
        self, run: ActiveRun, burst: Burst, node_id: str, node_type: NodeType
    ) -> None:
        made = burst.state.nodes[node_id].decision
        if made is not None:
            # A supervisor whose decision is on the log does not decide again.
            decision = run.vault.reveal(burst.state).decisions[made].decision
            complete(burst, node_id, {"decision": decision})
            return
        if node_type.is_async:
            if self._admit(run, burst):
                run.launch.append(node_id)
            return
        call = AgentCall(self._advancer, run, node_id, burst.state, now=burst.now)
        self.settle(run, burst, call, call_now(run, call, node_type))

    def settle(self, run: ActiveRun, burst: Burst, call: AgentCall, outcome: Outcome) -> None:
        """Append what a node emitted and what came of its call; a node with too much data fails."""
        try:
            self._settle(run, burst, call, outcome)
        except NodeFailure as failure:
            fail_node(burst, call.node_id, failure.error)

    def _settle(self, run: ActiveRun, burst: Burst, call: AgentCall, outcome: Outcome) -> None:
        try:
            call.write(burst)
            burst.check_outcome(outcome)
        except NodeFailure as failure:
            outcome = Failed(failure.error)
        if isinstance(outcome, Completed):
            outcome = check_return(call, outcome) or outcome
        doubt = call.doubt(burst) if isinstance(outcome, Completed) else None
        if doubt is not None and isinstance(outcome, Completed):
            fault = hold(burst, call.node_id, doubt, outcome.outputs)
            if fault is not None:
                fail_node(burst, call.node_id, fault)
            return
        settle_node(run, burst, call.node_id, outcome)
        if isinstance(outcome, Suspended) and outcome.script:
            play_script(burst, call.node_id, outcome.script)
            self.call_again(run, burst)

    def call_again(self, run: ActiveRun, burst: Burst) -> None:
        """Call every running node that is due, or that this process is not executing."""
        if burst.state.status == "paused":
            return
        self.look_for_tools(run, burst.state.started_at)
        for node_id, node in list(burst.state.nodes.items()):
            if node.status != "running" or node_id in run.launch:
                continue
            if node_id in run.in_flight:
                run.missed.add(node_id)
                continue
            self._call_due(run, burst, node_id)

    def _call_due(self, run: ActiveRun, burst: Burst, node_id: str) -> None:
        """Call a running node, unless it sleeps. A node that is done but for an answer ends."""
        if self._refuse_test_hook(run, burst, node_id):
            return
        if burst.state.nodes[node_id].holds_outputs:
            settle_held(burst, node_id)
            return
        until = run.parked.get(node_id, 0)
        node_type = run.compiled.types[node_id] if run.has_code(node_id) else None
        if node_type is not None and (until is None or until <= burst.now):
            self._call_or_launch(run, burst, node_id, node_type)


def _has_too_much_data(run: ActiveRun, burst: Burst) -> bool:
    """Fail a run whose events are larger than the host allows; whether it was."""
    if burst.limits is None or burst.size <= burst.limits.run_bytes:
        return False
    try:
        burst.limits.check_run(burst.size)
    except NodeFailure as failure:
        stop_nodes(run, burst, failure.error.code)
        burst.add("run.failed", {"error": error_json(failure.error)})
    return True


def _lacks_room(run: ActiveRun, burst: Burst, step: Step) -> bool:
    """Fail a run that would start a node far beyond a quota of its tenant; whether it was.

    The nodes that handle a failure are not started either.
    """
    if not isinstance(step, Start):
        return False
    try:
        burst.check_room()
    except NodeFailure as failure:
        fail_node(burst, step.node_id, failure.error, max(1, step.attempt))
        take(run, burst, FailRun(step.node_id, failure.error))
        return True
    return False


def _lacks_code(run: ActiveRun, step: Step) -> bool:
    """Whether a step starts a node that this process has no code for."""
    return isinstance(step, Start) and _has_no_code(run, step.node_id)


def _has_no_code(run: ActiveRun, node_id: str) -> bool:
    """Whether a node waits for a process with its code; a node with a test hook fails instead."""
    return not run.has_code(node_id) and node_id not in run.compiled.test_hooks


def _missing_types(run: ActiveRun, state: RunState, steps: Sequence[Step]) -> dict[str, str]:
    """Nodes that must be started or called again, and that this process has no code for."""
    due = [step.node_id for step in steps if isinstance(step, Start)]
    if state.status != "paused":
        due += [node_id for node_id, node in state.nodes.items() if node.status == "running"]
    return {node_id: run.code(node_id) for node_id in due if _has_no_code(run, node_id)}


def _pause_when_drained(pausing: PauseWish, burst: Burst) -> None:
    is_running = any(node.status == "running" for node in burst.state.nodes.values())
    if is_running:
        return
    reason = {"reason": pausing.reason} if pausing.reason else {}
    burst.add("run.paused", {**reason, "drainPolicy": "drain-current-node"})


def _not_provided(what: str, missing: list[str]) -> RunError:
    return RunError(
        code="capability_not_provided",
        message=f"{what} requires {', '.join(missing)}, which this host does not provide",
        details={"missing": missing},
    )
