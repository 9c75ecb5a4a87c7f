"""Node types that only conformance workflows use; registered with `--conformance`."""

from __future__ import annotations

from wopr.engine.outcome import Completed
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import JsonObject


@node(
    "conformance.requiresMissing",
    requires=["conformance.never-provided"],
    conformance_only=True,
)
def requires_missing(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
    """Need a capability that no host provides, and so never run."""
    return Completed()
