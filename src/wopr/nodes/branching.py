"""`core.conditional` and `core.loop`: where a workflow decides which way to go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from wopr.engine.expression_tokens import is_list
from wopr.engine.expressions import ExpressionFault, ExpressionUse, is_true
from wopr.engine.outcome import Completed, NodeFailure
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import UNSET, Closed, Json, JsonObject, NonEmpty, Unset


def _truth(ctx: NodeContext, expression: str, extra: JsonObject) -> bool:
    try:
        return is_true(expression, {**ctx.scope, **extra})
    except ExpressionFault as fault:
        message = f"node {ctx.node_id!r}: {fault}"
        raise NodeFailure(message, code="expression_error", retryable=False) from fault


class ConditionalConfig(Closed, frozen=True, kw_only=True):
    """The question; `input` in the expression is the node's inputs."""

    expression: NonEmpty

    @staticmethod
    def expressions_in(config: JsonObject) -> Iterator[ExpressionUse]:
        """The question is a condition."""
        expression = config.get("expression")
        if isinstance(expression, str):
            yield ExpressionUse(
                path="expression", source=expression, names=("input",), is_condition=True
            )


@node("core.conditional")
def conditional(ctx: NodeContext, config: ConditionalConfig, inputs: JsonObject) -> Completed:
    """Answer a question as output `result`; edges with a condition on it go one way or the other."""
    return Completed({"result": _truth(ctx, config.expression, {"input": inputs})})


class LoopConfig(Closed, frozen=True, kw_only=True):
    """How often: over `items`, a number of `times`, or `while` an expression holds."""

    items: list[Json] | Unset = UNSET
    times: Annotated[int, msgspec.Meta(ge=0)] | Unset = UNSET
    while_: NonEmpty | Unset = msgspec.field(default=UNSET, name="while")

    @staticmethod
    def expressions_in(config: JsonObject) -> Iterator[ExpressionUse]:
        """`while` is a condition."""
        expression = config.get("while")
        if isinstance(expression, str):
            names = ("input", "iteration")
            yield ExpressionUse(path="while", source=expression, names=names, is_condition=True)


@node("core.loop", reentrant=True)
def loop(ctx: NodeContext, config: LoopConfig, inputs: JsonObject) -> Completed:
    """Head a loop: outputs `done`, `iteration` from 0, and `item` where there are items.

    The workflow leads the way: an edge with `done == false` into the body, one from the body
    back to the loop, and one with `done == true` out of it.
    """
    step = ctx.iteration
    items = inputs.get("items", config.items)
    if is_list(items):
        if step >= len(items):
            return Completed({"done": True, "iteration": step})
        return Completed({"done": False, "iteration": step, "item": items[step]})
    if not isinstance(config.times, Unset):
        return Completed({"done": step >= config.times, "iteration": step})
    if not isinstance(config.while_, Unset):
        extra = {"input": inputs, "iteration": step}
        return Completed({"done": not _truth(ctx, config.while_, extra), "iteration": step})
    raise NodeFailure(
        "a loop needs config.items, config.times, config.while or a list on its input items",
        code="validation_error",
        retryable=False,
    )
