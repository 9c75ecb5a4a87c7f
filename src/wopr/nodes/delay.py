"""`core.delay`: wait, durably."""

from __future__ import annotations

from typing import Annotated

import msgspec

from wopr.engine.outcome import Completed, Sleeping
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import UNSET, Document, Unset

# 1000 years: a time that every store can write.
LONGEST_MS = 31_536_000_000_000
DelayMs = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_MS)]
DEFAULT_MS = 100


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
    length = next((int(ms) for ms in wanted if not isinstance(ms, Unset)), DEFAULT_MS)
    until = ctx.started_at + length
    return Completed() if ctx.now >= until else Sleeping(until)
