"""`core.dispatch`: executes the supervisor's newest decision."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from wopr.engine.fold.agents import DISPATCH
from wopr.engine.outcome import Breached, Completed, NodeFailure, Outcome, Suspended, Waiting
from wopr.nodes.context import ChildView, NodeContext
from wopr.nodes.gates import open_conversation
from wopr.nodes.orchestrator.decisions import read_decision, review
from wopr.nodes.registry import node
from wopr.nodes.sub_workflow import mapped_variables
from wopr.protocol.documents import UNSET, Closed, Json, JsonObject, Unset
from wopr.protocol.events.orchestrator import AskUser, NextWorker, Terminate
from wopr.protocol.runs import RunError

VariableMapping = dict[str, str]
_PHASES = {
    "completed": "child.completed",
    "failed": "child.failed",
    "cancelled": "child.cancelled",
}


class DispatchConfig(Closed, frozen=True, kw_only=True):
    """How decisions are executed, and how variables map to and from the workers."""

    ask_user_routing: Literal["conversation", "clarification", "auto"] = "auto"
    worker_dispatch_model: Literal["child-run"] = "child-run"
    fan_out_policy: Literal["sequential", "reject"] = "sequential"
    iteration_cap: Annotated[int, msgspec.Meta(ge=1)] | Unset = UNSET
    input_mapping: VariableMapping = {}
    output_mapping: VariableMapping = {}
    per_worker_input_mappings: dict[str, VariableMapping] = {}
    per_worker_output_mappings: dict[str, VariableMapping] = {}

    def inputs_for(self, worker: str) -> VariableMapping:
        """Return the input mapping of a worker: its own, also if it is empty, or the default."""
        return self.per_worker_input_mappings.get(worker, self.input_mapping)

    def outputs_for(self, worker: str) -> VariableMapping:
        """Return the output mapping of a worker: its own, also if it is empty, or the default."""
        return self.per_worker_output_mappings.get(worker, self.output_mapping)


@node(DISPATCH)
async def dispatch(ctx: NodeContext, config: DispatchConfig, inputs: JsonObject) -> Outcome:
    """Execute the newest decision: start its workers, ask the user, or end the loop."""
    if not ctx.decisions:
        raise NodeFailure(
            "there is no decision to execute", code="no_pending_decision", retryable=False
        )
    cause, decision = ctx.decisions[-1]
    if not isinstance(config.iteration_cap, Unset) and ctx.visit >= config.iteration_cap:
        return _cap_breach(config.iteration_cap)
    reviewed = review(ctx, cause, decision)
    if isinstance(reviewed, Suspended):
        return reviewed
    if reviewed is None:
        return Completed({"rejected": True}, cause)
    match read_decision(reviewed):
        case Terminate():
            return Completed({"decision": "terminate"}, cause)
        case AskUser(prompt=prompt):
            return _ask_user(ctx, config, prompt, cause)
        case NextWorker(next_worker_ids=workers):
            return await _run_workers(ctx, config, workers, cause)


def _cap_breach(cap: int) -> Breached:
    message = f"dispatch may run at most {cap} times"
    error = RunError(code="loop_limit_exceeded", message=message)
    return Breached(
        kind="loop-iterations", limit=cap, observed=cap + 1, error=error, scope="dispatch"
    )


def _ask_user(ctx: NodeContext, config: DispatchConfig, prompt: str, cause: str) -> Outcome:
    key = ctx.interrupt_key("ask")
    answer = ctx.answer(key)
    is_conversation = config.ask_user_routing != "clarification"
    if isinstance(answer, Unset):
        if is_conversation:
            return open_conversation(ctx, key, prompt)
        questions = [{"id": "q1", "question": prompt}]
        return Suspended(kind="clarification", key=key, data={"questions": questions})
    text: Json = answer.get("outcome") if is_conversation else answer["answers"]["q1"]
    return Completed({"answer": text}, cause)


async def _run_workers(
    ctx: NodeContext, config: DispatchConfig, workers: list[str], cause: str
) -> Outcome:
    """Run the workers in sequence: a child has ended before the next child is created."""
    if len(workers) > 1 and config.fan_out_policy == "reject":
        raise NodeFailure(
            f"the decision starts {len(workers)} workers, but fanOutPolicy is reject",
            code="fan_out_unsupported",
            retryable=False,
        )
    for index, worker in enumerate(workers):
        if index >= len(ctx.children):
            await _start_worker(ctx, config, worker, cause)
            return Waiting()
        child = ctx.children[index]
        if not child.has_ended:
            return Waiting()
        _record_end(ctx, config, worker, child)
    last = ctx.children[len(workers) - 1]
    return Completed({"childRunId": last.run_id, "childStatus": last.status}, cause)


async def _start_worker(ctx: NodeContext, config: DispatchConfig, worker: str, cause: str) -> None:
    await _hand_over(ctx, worker, cause)
    link: JsonObject = {"workerId": worker, "parentRunId": ctx.run_id}
    began = ctx.emit(
        "core.workflowChain.event", {"phase": "dispatch.began", **link}, causation_id=cause
    )
    inputs = mapped_variables(ctx, config.inputs_for(worker))
    try:
        child_id = await ctx.spawn(worker, inputs, causation_id=cause, flush=False)
    except NodeFailure as failure:
        error = {"code": failure.error.code, "message": failure.error.message}
        failed = {"phase": "dispatch.failed", **link, "error": error}
        ctx.emit("core.workflowChain.event", failed, causation_id=began)
        raise
    ctx.emit(
        "core.workflowChain.event",
        {"phase": "dispatch.succeeded", **link, "childRunId": child_id},
        causation_id=began,
    )
    await ctx.flush()


async def _hand_over(ctx: NodeContext, worker: str, cause: str) -> None:
    """Emit a handoff if the agents before and after are known and differ.

    The first worker takes over from the supervisor. Each further worker takes over from the worker
    before it, also if that ran in an earlier turn.
    """
    last = ctx.last_worker
    before = ctx.run_orchestrator if last is None else await ctx.entry_agent(last)
    after = await ctx.entry_agent(worker)
    if before and after and before != after:
        payload = {"fromAgentId": before, "toAgentId": after}
        ctx.emit("agent.handoff", payload, causation_id=cause)


def _record_end(ctx: NodeContext, config: DispatchConfig, worker: str, child: ChildView) -> None:
    """Record the end of a child once, and set the mapped variables if it completed."""
    links = {link.phase: link.event_id for link in ctx.chain if link.child_run_id == child.run_id}
    phase = _PHASES[child.status]
    if phase in links:
        return
    link: JsonObject = {
        "workerId": worker,
        "parentRunId": ctx.run_id,
        "childRunId": child.run_id,
    }
    if child.error is not None:
        link["error"] = {"code": child.error.code, "message": child.error.message}
    ended = ctx.emit(
        "core.workflowChain.event",
        {"phase": phase, **link},
        causation_id=links.get("dispatch.succeeded", ""),
    )
    mapping = config.outputs_for(worker)
    if child.status != "completed" or not mapping:
        return
    taken = {parent: name for parent, name in mapping.items() if name in child.variables}
    for parent, name in taken.items():
        ctx.set_variable(parent, child.variables[name])
    ctx.emit(
        "core.workflowChain.event",
        {"phase": "output.harvested", **link, "harvestedKeys": list(taken)},
        causation_id=ended,
    )
