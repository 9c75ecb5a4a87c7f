"""`core.identity`: copy inputs to outputs."""

from __future__ import annotations

from wopr.engine.outcome import Completed
from wopr.nodes.context import NodeContext
from wopr.nodes.identity_hooks import IdentityHooks
from wopr.nodes.registry import node
from wopr.protocol.documents import JsonObject


@node("core.identity")
def identity(ctx: NodeContext, config: IdentityHooks, inputs: JsonObject) -> Completed:
    """Copy each input to the output of the same name."""
    return Completed(inputs)
