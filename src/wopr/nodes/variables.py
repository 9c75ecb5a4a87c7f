"""`core.setVariable` and `core.getVariable`."""

from __future__ import annotations

from collections.abc import Iterator

from wopr.engine.expressions import ExpressionFault, ExpressionUse, evaluate
from wopr.engine.outcome import Completed, NodeFailure
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import UNSET, Closed, Json, JsonObject, NonEmpty, Unset


class SetVariableConfig(Closed, frozen=True, kw_only=True):
    """Which variable, and its value: a constant, an expression, or the input port `value`."""

    name: NonEmpty
    value: Json | Unset = UNSET
    expression: NonEmpty | Unset = UNSET

    @staticmethod
    def expressions_in(config: JsonObject) -> Iterator[ExpressionUse]:
        """The expression that gives the value."""
        expression = config.get("expression")
        if isinstance(expression, str):
            yield ExpressionUse(path="expression", source=expression, names=("input",))

    @staticmethod
    def known_inputs(config: JsonObject) -> tuple[str, ...] | None:
        """An expression reads any input; without one, only `value` is read."""
        return None if "expression" in config else ("value",)


@node("core.setVariable")
def set_variable(ctx: NodeContext, config: SetVariableConfig, inputs: JsonObject) -> Completed:
    """Set a variable of the run."""
    value = inputs.get("value", config.value)
    if not isinstance(config.expression, Unset):
        try:
            value = evaluate(config.expression, {**ctx.scope, "input": inputs})
        except ExpressionFault as fault:
            message = f"node {ctx.node_id!r}: {fault}"
            raise NodeFailure(message, code="expression_error", retryable=False) from fault
    if isinstance(value, Unset):
        raise NodeFailure(
            f"{config.name} has no value: give config.value, config.expression or the input value",
            code="validation_error",
            retryable=False,
        )
    ctx.set_variable(config.name, value)
    return Completed({"value": value})


class GetVariableConfig(Closed, frozen=True, kw_only=True):
    """Which variable to read."""

    name: NonEmpty


@node("core.getVariable")
def get_variable(ctx: NodeContext, config: GetVariableConfig, inputs: JsonObject) -> Completed:
    """Read a variable of the run; a variable that is not set gives no output."""
    if config.name not in ctx.variables:
        return Completed()
    return Completed({"value": ctx.variables[config.name]})
