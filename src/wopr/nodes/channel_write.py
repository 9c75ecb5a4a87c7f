"""`core.channelWrite`: write a value to a channel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from wopr.engine.contexts import is_context
from wopr.engine.outcome import Completed, NodeFailure
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import UNSET, Closed, Json, JsonObject, NonEmpty, Unset
from wopr.protocol.workflow import Reducer


class ChannelWriteConfig(Closed, frozen=True, kw_only=True):
    """Where and how. A declared channel keeps its own reducer, TTL and size."""

    channel_name: NonEmpty
    reducer: Reducer | Unset = UNSET
    value: Json | Unset = UNSET
    # The engine reads this one from the definition when it folds an undeclared channel.
    ttl_ms: Annotated[int, msgspec.Meta(ge=0, le=31_536_000_000)] = 0
    max_size: Annotated[int, msgspec.Meta(ge=1)] | Unset = UNSET

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Refuse the channels that only agents write."""
        name = config.get("channelName")
        if isinstance(name, str) and is_context(name):
            yield "channelName", f"{name} holds the context that agents share; use another name"

    @staticmethod
    def known_inputs(_: JsonObject) -> tuple[str, ...]:
        """The inputs that the node reads."""
        return ("value",)


@node("core.channelWrite")
def channel_write(ctx: NodeContext, config: ChannelWriteConfig, inputs: JsonObject) -> Completed:
    """Write the input `value`, or the configured one."""
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
