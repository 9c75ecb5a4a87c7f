"""What is kept of a framework's work, step by step, so that a restart goes on with the last.

Every step is an outcome on record, as that of a model call is. A step holds the framework's own
state as readable JSON, so that secrets in it are redacted like everywhere else.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from wopr.engine.expression_tokens import is_object
from wopr.nodes.context import NodeContext
from wopr.nodes.llm_context import Spent
from wopr.protocol.documents import UNSET, Closed, Json, JsonObject, NonEmpty, Unset
from wopr.protocol.interrupts import ApprovalAction


class Ask(Closed, frozen=True, kw_only=True):
    """Something that a person must say before the framework goes on.

    An approval shows an artifact; a clarification is one question, whose answer may be anything.
    """

    kind: Literal["approval", "clarification"]
    text: NonEmpty
    artifact: Json | Unset = UNSET
    artifact_type: NonEmpty = "approval"
    description: str = ""
    actions: tuple[ApprovalAction, ...] = ("accept", "reject")


class Going(Closed, frozen=True, kw_only=True, tag_field="step", tag="going"):
    """The framework is at work, and could go on from this state."""

    state: Json


class Paused(Closed, frozen=True, kw_only=True, tag_field="step", tag="paused"):
    """The framework waits for people; `state` is what it goes on from with their answers."""

    state: Json
    asks: list[Ask]


class Done(Closed, frozen=True, kw_only=True, tag_field="step", tag="done"):
    """The framework has finished.

    `decision` is what the agent decided, and stands in the outputs at `place`; an empty place
    means that its members are outputs themselves.
    """

    decision: Json
    outputs: JsonObject = {}
    place: str = "result"

    def outputs_with(self, decision: Json) -> JsonObject:
        """The node's outputs, with this decision in its place."""
        if not self.place:
            members: JsonObject = decision if is_object(decision) else {"result": decision}
            return self.outputs | members
        told = {"text": decision} if isinstance(decision, str) else {}
        return self.outputs | told | {self.place: decision}


Step: TypeAlias = Going | Paused | Done


class _Kept(Closed, frozen=True, kw_only=True):
    step: Step
    # What the node has used so far: tokens, money, calls of models and of tools.
    spent: tuple[int, float, int, int] = (0, 0.0, 0, 0)


class _NothingKept(Exception):
    """Asked for a step that is not there."""


class Record:
    """The steps of one visit of a node."""

    def __init__(self, ctx: NodeContext, framework: str) -> None:
        self._ctx = ctx
        self._key = f"{framework}:step"
        self.spent = Spent()
        # How often the framework has paused, the pause that is under way included.
        self.pauses = 0

    async def last(self) -> Step | None:
        """The last step on record; None before there is one. Called once, before `keep`."""
        found: Step | None = None
        while True:
            try:
                kept = msgspec.convert(await self._ctx.once(self._key, _nothing), _Kept)
            except _NothingKept:
                return found
            found = self._counted(kept.step)
            tokens, cost, calls, tool_calls = kept.spent
            self.spent = Spent(tokens=tokens, cost_usd=cost, calls=calls, tool_calls=tool_calls)

    async def keep(self, step: Step) -> Step:
        """Keep a step, once everything that led to it is on the log; as it reads from the record."""
        spent = self.spent
        used = (spent.tokens, spent.cost_usd, spent.calls, spent.tool_calls)
        kept: Json = msgspec.to_builtins(_Kept(step=step, spent=used))

        async def effect() -> Json:
            return await self._ctx.llm.redact(kept)

        await self._ctx.flush()
        kept_step = msgspec.convert(await self._ctx.once(self._key, effect), _Kept).step
        return self._counted(kept_step)

    def _counted(self, step: Step) -> Step:
        self.pauses += isinstance(step, Paused)
        return step


async def _nothing() -> Json:
    raise _NothingKept
