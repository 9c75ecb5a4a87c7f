"""`core.subWorkflow`: run another workflow as a child and wait for it."""

from __future__ import annotations

from typing import Literal

from wopr.engine.outcome import Completed, NodeFailure, Outcome, Waiting
from wopr.nodes.context import ChildView, NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import Closed, JsonObject, NonEmpty


class SubWorkflowConfig(Closed, frozen=True, kw_only=True):
    """Which workflow, and how its variables map: child from parent going in, parent from child out."""

    workflow_id: NonEmpty
    wait_for_completion: bool = True
    on_child_failure: Literal["fail-parent", "absorb"] = "fail-parent"
    input_mapping: dict[str, str] = {}
    output_mapping: dict[str, str] = {}
    propagate_cancellation: bool = True


@node("core.subWorkflow")
async def sub_workflow(ctx: NodeContext, config: SubWorkflowConfig, inputs: JsonObject) -> Outcome:
    """Start the child once, then wait until it has ended."""
    if not ctx.children:
        child_id = await ctx.spawn(config.workflow_id, _child_inputs(ctx, config, inputs))
        if not config.wait_for_completion:
            return Completed({"childRunId": child_id, "childStatus": "running"})
        return Waiting()
    child = ctx.children[0]
    return _harvest(ctx, config, child) if child.has_ended else Waiting()


def _child_inputs(ctx: NodeContext, config: SubWorkflowConfig, inputs: JsonObject) -> JsonObject:
    """Map at dispatch, once; a variable that is not set leaves its key absent."""
    mapped = {
        child: ctx.variables[parent]
        for child, parent in config.input_mapping.items()
        if parent in ctx.variables
    }
    return inputs | mapped


def _harvest(ctx: NodeContext, config: SubWorkflowConfig, child: ChildView) -> Outcome:
    outputs: JsonObject = {"childRunId": child.run_id, "childStatus": child.status}
    if child.status == "completed":
        unmapped: JsonObject = {}
        for parent, name in config.output_mapping.items():
            if name in child.variables:
                ctx.set_variable(parent, child.variables[name])
            else:
                unmapped[parent] = name
        # A variable that the child has not set leaves the parent's as it is. The log says so.
        return Completed(outputs | ({"unmapped": unmapped} if unmapped else {}))
    if config.on_child_failure == "absorb":
        return Completed(outputs)
    why = f": {child.error.message}" if child.error else ""
    raise NodeFailure(
        f"child run of {config.workflow_id} ended {child.status}{why}",
        code="child_failed" if child.status == "failed" else "child_cancelled",
        retryable=False,
        details=outputs | ({"childError": child.error.code} if child.error else {}),
    )
