"""Control flow: start, end, noop, parallel, merge, identity, delay, fail, conditional and loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from wopr.engine.cel.expressions import ExpressionFault, ExpressionUse, is_true
from wopr.engine.outcome import Completed, Failed, NodeFailure, Sleeping
from wopr.nodes.conformance import IdentityHooks
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import (
    UNSET,
    Closed,
    Document,
    Json,
    JsonObject,
    NonEmpty,
    Unset,
    is_list,
)
from wopr.protocol.runs import RunError


class NoConfig(Document, frozen=True, kw_only=True):
    """A config without keys."""


class NoopConfig(Document, frozen=True, kw_only=True):
    """Markers of the conformance fixtures. They change nothing."""

    nondeterministic: bool = False
    phase4_probe: bool = msgspec.field(default=False, name="phase4Probe")


@node("core.noop")
def noop(ctx: NodeContext, config: NoopConfig, inputs: JsonObject) -> Completed:
    """Complete at once."""
    return Completed()


@node("core.start")
def start(ctx: NodeContext, config: NoConfig, inputs: JsonObject) -> Completed:
    """Mark the start of a workflow."""
    return Completed(inputs)


@node("core.end")
def end(ctx: NodeContext, config: NoConfig, inputs: JsonObject) -> Completed:
    """Mark the end of a workflow. Its inputs become the run's outputs."""
    return Completed(inputs)


@node("core.parallel")
def parallel(ctx: NodeContext, config: NoConfig, inputs: JsonObject) -> Completed:
    """Start all nodes that follow at the same time."""
    return Completed(inputs)


@node("core.merge")
def merge(ctx: NodeContext, config: NoConfig, inputs: JsonObject) -> Completed:
    """Join branches. The trigger rules of the edges define which branches must have completed."""
    return Completed(inputs)


@node("core.identity")
def identity(ctx: NodeContext, config: IdentityHooks, inputs: JsonObject) -> Completed:
    """Copy each input to the output of the same name."""
    return Completed(inputs)


# 1000 years, so that every store can represent the time.
MAX_DELAY_MS = 31_536_000_000_000
DelayMs = Annotated[float, msgspec.Meta(ge=0, le=MAX_DELAY_MS)]
DEFAULT_DELAY_MS = 100


class DelayInputs(Document, frozen=True, kw_only=True):
    """The length of the delay, as an input."""

    delay_ms: DelayMs | Unset = UNSET


class DelayConfig(Document, frozen=True, kw_only=True):
    """The length of the delay. The three names mean the same; `ms` is used first."""

    ms: DelayMs | Unset = UNSET
    duration_ms: DelayMs | Unset = UNSET
    delay_ms: DelayMs | Unset = UNSET


@node("core.delay")
def delay(ctx: NodeContext, config: DelayConfig, inputs: DelayInputs) -> Completed | Sleeping:
    """Wait for a number of milliseconds from the node's start. The timer survives restarts."""
    wanted = (inputs.delay_ms, config.ms, config.duration_ms, config.delay_ms)
    length = next((int(ms) for ms in wanted if not isinstance(ms, Unset)), DEFAULT_DELAY_MS)
    until = ctx.started_at + length
    return Completed() if ctx.now >= until else Sleeping(until)


class FailConfig(Document, frozen=True, kw_only=True):
    """The error to fail with."""

    code: NonEmpty = "conformance_test_failure"
    message: NonEmpty = "Intentional conformance failure"


@node("core.fail")
def fail(ctx: NodeContext, config: FailConfig, inputs: JsonObject) -> Failed:
    """Fail with the configured code and message."""
    return Failed(RunError(code=config.code, message=config.message))


def _evaluate_condition(ctx: NodeContext, expression: str, extra: JsonObject) -> bool:
    try:
        return is_true(expression, {**ctx.scope, **extra})
    except ExpressionFault as fault:
        message = f"node {ctx.node_id!r}: {fault}"
        raise NodeFailure(message, code="expression_error", retryable=False) from fault


class ConditionalConfig(Closed, frozen=True, kw_only=True):
    """The expression. It reads the node's inputs as `input`."""

    expression: NonEmpty

    @staticmethod
    def expressions_in(config: JsonObject) -> Iterator[ExpressionUse]:
        """Yield the condition."""
        expression = config.get("expression")
        if isinstance(expression, str):
            yield ExpressionUse(
                path="expression", source=expression, names=("input",), is_condition=True
            )


@node("core.conditional")
def conditional(ctx: NodeContext, config: ConditionalConfig, inputs: JsonObject) -> Completed:
    """Evaluate an expression to the output `result`, for conditions of the outgoing edges."""
    return Completed({"result": _evaluate_condition(ctx, config.expression, {"input": inputs})})


class LoopConfig(Closed, frozen=True, kw_only=True):
    """The iterations: one for each of `items`, a number of `times`, or `while` a condition."""

    items: list[Json] | Unset = UNSET
    times: Annotated[int, msgspec.Meta(ge=0)] | Unset = UNSET
    while_: NonEmpty | Unset = msgspec.field(default=UNSET, name="while")

    @staticmethod
    def expressions_in(config: JsonObject) -> Iterator[ExpressionUse]:
        """Yield the condition `while`."""
        expression = config.get("while")
        if isinstance(expression, str):
            names = ("input", "iteration")
            yield ExpressionUse(path="while", source=expression, names=names, is_condition=True)


@node("core.loop", reentrant=True)
def loop(ctx: NodeContext, config: LoopConfig, inputs: JsonObject) -> Completed:
    """Head a loop, with the outputs `done`, `iteration` from 0, and `item` for a loop over items.

    The workflow has an edge with `done == false` into the body, an edge from the body back to the
    loop, and an edge with `done == true` out of the loop.
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
        return Completed(
            {"done": not _evaluate_condition(ctx, config.while_, extra), "iteration": step}
        )
    raise NodeFailure(
        "a loop needs config.items, config.times, config.while or a list on its input items",
        code="validation_error",
        retryable=False,
    )
