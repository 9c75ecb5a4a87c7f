"""Nodes that only pass control on: `core.noop`, `core.start`, `core.end` and others."""

from __future__ import annotations

import msgspec

from wopr.engine.outcome import Completed
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import Document, JsonObject


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
    """Mark where a workflow begins."""
    return Completed(inputs)


@node("core.end")
def end(ctx: NodeContext, config: NoConfig, inputs: JsonObject) -> Completed:
    """Mark where a workflow ends; its inputs become the run's outputs."""
    return Completed(inputs)


@node("core.parallel")
def parallel(ctx: NodeContext, config: NoConfig, inputs: JsonObject) -> Completed:
    """Fan out: every node that follows starts at the same time."""
    return Completed(inputs)


@node("core.merge")
def merge(ctx: NodeContext, config: NoConfig, inputs: JsonObject) -> Completed:
    """Join branches; the edges' trigger rules say which of them must have come through."""
    return Completed(inputs)
