"""Effects that forks must not repeat, and the ways to fork."""

from __future__ import annotations

from wopr.engine.outcome import Completed
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import JsonObject
from wopr.protocol.forks import ForkMode

MODES: tuple[ForkMode, ...] = ("replay", "branch")


class Effects:
    """Effects that are counted."""

    def __init__(self) -> None:
        self.done = 0

    def node_type(self) -> NodeType:
        async def effect(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
            self.done += 1
            return Completed({"number": self.done})

        return NodeType(type_id="test.effect", execute=effect, is_async=True)
