"""`core.setVariable`, `core.getVariable` and `core.channelWrite`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from wopr.engine.cel.expressions import ExpressionFault, ExpressionUse, evaluate
from wopr.engine.channels import is_context_channel
from wopr.engine.outcome import Completed, NodeFailure
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import UNSET, Closed, Json, JsonObject, NonEmpty, Unset
from wopr.protocol.workflow import Reducer


class SetVariableConfig(Closed, frozen=True, kw_only=True):
    """The variable, and its value: a constant, an expression, or the input `value`."""

    name: NonEmpty
    value: Json | Unset = UNSET
    expression: NonEmpty | Unset = UNSET

    @staticmethod
    def expressions_in(config: JsonObject) -> Iterator[ExpressionUse]:
        """Yield the expression of the value."""
        expression = config.get("expression")
        if isinstance(expression, str):
            yield ExpressionUse(path="expression", source=expression, names=("input",))

    @staticmethod
    def known_inputs(config: JsonObject) -> tuple[str, ...] | None:
        """Return the inputs that the node reads: any with an expression (None), else `value`."""
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
    """The variable to read."""

    name: NonEmpty


@node("core.getVariable")
def get_variable(ctx: NodeContext, config: GetVariableConfig, inputs: JsonObject) -> Completed:
    """Read a variable of the run. There is no output if it is not set."""
    if config.name not in ctx.variables:
        return Completed()
    return Completed({"value": ctx.variables[config.name]})


class ChannelWriteConfig(Closed, frozen=True, kw_only=True):
    """The channel and its reducer. A declared channel keeps its own reducer, TTL and size."""

    channel_name: NonEmpty
    reducer: Reducer | Unset = UNSET
    value: Json | Unset = UNSET
    # The engine reads it from the definition when it folds an undeclared channel.
    ttl_ms: Annotated[int, msgspec.Meta(ge=0, le=31_536_000_000)] = 0
    max_size: Annotated[int, msgspec.Meta(ge=1)] | Unset = UNSET

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Yield a fault for a channel that only agents may write."""
        name = config.get("channelName")
        if isinstance(name, str) and is_context_channel(name):
            yield (
                "channelName",
                f"{name} is reserved for the shared context of agents: use another name",
            )

    @staticmethod
    def known_inputs(_: JsonObject) -> tuple[str, ...]:
        """Return the inputs that the node reads."""
        return ("value",)


@node("core.channelWrite")
def channel_write(ctx: NodeContext, config: ChannelWriteConfig, inputs: JsonObject) -> Completed:
    """Write the input `value`, or the configured value, to a channel."""
    value = inputs.get("value", config.value)
    if isinstance(value, Unset):
        raise NodeFailure(
            f"nothing to write to {config.channel_name}: give config.value or the input value",
            code="validation_error",
            retryable=False,
        )
    reducer = "" if isinstance(config.reducer, Unset) else config.reducer
    ctx.write_channel(config.channel_name, value, reducer=reducer)
    return Completed()
