"""Node types that only conformance workflows use; registered with `--conformance`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from wopr.engine.outcome import Completed, Sleeping
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import Closed, JsonObject


@node(
    "conformance.requiresMissing",
    requires=["conformance.never-provided"],
    conformance_only=True,
)
def requires_missing(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
    """Need a capability that no host provides, and so never run."""
    return Completed()


class HoldInputs(Closed, frozen=True, kw_only=True, omit_defaults=False):
    """How long the hold lasts."""

    delay_ms: Annotated[float, msgspec.Meta(ge=0)] = 0


@node("core.conformance.hold", conformance_only=True)
def hold(ctx: NodeContext, config: JsonObject, inputs: HoldInputs) -> Completed | Sleeping:
    """Complete after `delayMs` with the inputs as outputs. A replay executes it again."""
    until = ctx.started_at + int(inputs.delay_ms)
    if ctx.now < until:
        return Sleeping(until)
    return Completed({"delayMs": inputs.delay_ms})


@node("core.conformance.side-effect", conformance_only=True)
async def side_effect(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
    """Count as a side effect: a replay takes its recorded outcome and never executes it."""
    ctx.log("info", "side effect performed")
    return Completed({"performed": True})
