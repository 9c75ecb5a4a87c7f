"""`core.delay`: wait, durably."""

from __future__ import annotations

from typing import Annotated

import msgspec

from wopr.engine.outcome import Completed, Sleeping
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import UNSET, Document, Unset

DelayMs = Annotated[float, msgspec.Meta(ge=0)]
DEFAULT_MS = 100
LONGEST_MS = 60_000


class DelayInputs(Document, frozen=True, kw_only=True):
    """How long, as an input port."""

    delay_ms: DelayMs | Unset = UNSET


class DelayConfig(Document, frozen=True, kw_only=True):
    """How long, in any of the spellings that definitions use."""

    ms: DelayMs | Unset = UNSET
    duration_ms: DelayMs | Unset = UNSET
    delay_ms: DelayMs | Unset = UNSET


@node("core.delay")
def delay(ctx: NodeContext, config: DelayConfig, inputs: DelayInputs) -> Completed | Sleeping:
    """Wait for the given time, at most a minute, counted from the node's start."""
    wanted = (inputs.delay_ms, config.ms, config.duration_ms, config.delay_ms)
    length = next((int(ms) for ms in wanted if not isinstance(ms, Unset)), DEFAULT_MS)
    until = ctx.started_at + min(length, LONGEST_MS)
    return Completed() if ctx.now >= until else Sleeping(until)
