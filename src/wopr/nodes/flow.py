"""The quiet ones: nodes that only pass control on."""

from __future__ import annotations

from wopr.engine.outcome import Completed
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import JsonObject


@node("core.noop")
def noop(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
    """Complete at once."""
    return Completed()


@node("core.start")
def start(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
    """Mark where a workflow begins."""
    return Completed(inputs)


@node("core.end")
def end(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
    """Mark where a workflow ends; its inputs become the run's outputs."""
    return Completed(inputs)


@node("core.parallel")
def parallel(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
    """Fan out: every node that follows starts at the same time."""
    return Completed(inputs)


@node("core.merge")
def merge(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
    """Join branches; the edges' trigger rules say which of them must have come through."""
    return Completed(inputs)
