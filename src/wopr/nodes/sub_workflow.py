"""`core.subWorkflow`: run another workflow as a child and wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from wopr.engine.outcome import Completed, NodeFailure, Outcome, Waiting
from wopr.nodes.context import ChildView, NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import Closed, JsonObject, NonEmpty


class SubWorkflowConfig(Closed, frozen=True, kw_only=True):
    """The workflow, and how variables map to the child and back."""

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
        child_inputs = inputs | mapped_variables(ctx, config.input_mapping)
        child_id = await ctx.spawn(config.workflow_id, child_inputs)
        if not config.wait_for_completion:
            return Completed({"childRunId": child_id, "childStatus": "running"})
        return Waiting()
    child = ctx.children[0]
    return _outcome_of_child(ctx, config, child) if child.has_ended else Waiting()


def mapped_variables(ctx: NodeContext, mapping: Mapping[str, str]) -> JsonObject:
    """Return inputs of a child from the variables of this run that are set."""
    return {
        child: ctx.variables[parent] for child, parent in mapping.items() if parent in ctx.variables
    }


def _outcome_of_child(ctx: NodeContext, config: SubWorkflowConfig, child: ChildView) -> Outcome:
    outputs: JsonObject = {"childRunId": child.run_id, "childStatus": child.status}
    if child.status == "completed":
        unmapped: JsonObject = {}
        for parent, name in config.output_mapping.items():
            if name in child.variables:
                ctx.set_variable(parent, child.variables[name])
            else:
                unmapped[parent] = name
        # A variable that the child has not set does not change the parent's. The outputs name it.
        return Completed(outputs | ({"unmapped": unmapped} if unmapped else {}))
    if config.on_child_failure == "absorb":
        return Completed(outputs)
    reason = f": {child.error.message}" if child.error else ""
    raise NodeFailure(
        f"child run of {config.workflow_id} ended {child.status}{reason}",
        code="child_failed" if child.status == "failed" else "child_cancelled",
        retryable=False,
        details=outputs | ({"childError": child.error.code} if child.error else {}),
    )
