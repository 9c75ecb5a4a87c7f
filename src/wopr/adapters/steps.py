"""The stored steps of a framework, and its questions to people.

A restarted host continues with the last step. Every step is a recorded effect of the node, like a
model call. It contains the framework's state as JSON, so that secrets in it are redacted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from wopr.agents.loop.context import BudgetUsage
from wopr.engine.outcome import Suspended
from wopr.nodes.context import NodeContext
from wopr.protocol.documents import UNSET, Closed, Json, JsonObject, NonEmpty, Unset, is_object
from wopr.protocol.interrupts import ApprovalAction
from wopr.security.digest import canonical_digest

# The id of the only question of a clarification.
QUESTION = "answer"
_DIGEST_DIGITS = 16


class HumanRequest(Closed, frozen=True, kw_only=True):
    """An approval or a question that the framework needs from a person.

    An approval shows an artifact. A clarification is one question with any answer.
    """

    kind: Literal["approval", "clarification"]
    text: NonEmpty
    artifact: Json | Unset = UNSET
    artifact_type: NonEmpty = "approval"
    description: str = ""
    actions: tuple[ApprovalAction, ...] = ("accept", "reject")


class Running(Closed, frozen=True, kw_only=True, tag_field="step", tag="going"):
    """The framework is running, and can continue from this state."""

    state: Json


class Paused(Closed, frozen=True, kw_only=True, tag_field="step", tag="paused"):
    """The framework waits for answers, and continues with them from this state."""

    state: Json
    asks: list[HumanRequest]


class Done(Closed, frozen=True, kw_only=True, tag_field="step", tag="done"):
    """The framework has finished.

    `decision` is the agent's decision. `place` is the name of its output; if it is empty, the
    members of the decision are the outputs.
    """

    decision: Json
    outputs: JsonObject = {}
    place: str = "result"

    def outputs_with(self, decision: Json) -> JsonObject:
        """Return the node's outputs with this decision."""
        if not self.place:
            members: JsonObject = decision if is_object(decision) else {"result": decision}
            return self.outputs | members
        text = {"text": decision} if isinstance(decision, str) else {}
        return self.outputs | text | {self.place: decision}


Step: TypeAlias = Running | Paused | Done


class _StoredStep(Closed, frozen=True, kw_only=True):
    step: Step
    # The usage of the node so far: tokens, cost, model calls and tool calls.
    spent: tuple[int, float, int, int] = (0, 0.0, 0, 0)


class _NoStep(Exception):
    """There are no more stored steps."""


class StepRecord:
    """The stored steps of one visit of a node."""

    def __init__(self, ctx: NodeContext, framework: str) -> None:
        self._ctx = ctx
        self._key = f"{framework}:step"
        self.spent = BudgetUsage()
        # How often the framework has paused, including the current pause.
        self.pauses = 0

    async def last(self) -> Step | None:
        """Return the last stored step, or None. Call it once, before `store`."""
        found: Step | None = None
        while True:
            try:
                stored = msgspec.convert(await self._ctx.once(self._key, _no_step), _StoredStep)
            except _NoStep:
                return found
            found = self._count_pause(stored.step)
            tokens, cost, calls, tool_calls = stored.spent
            self.spent = BudgetUsage(
                tokens=tokens, cost_usd=cost, calls=calls, tool_calls=tool_calls
            )

    async def store(self, step: Step) -> Step:
        """Store a step after its events. Return the stored step, in which secrets are redacted."""
        spent = self.spent
        usage = (spent.tokens, spent.cost_usd, spent.calls, spent.tool_calls)
        stored: Json = msgspec.to_builtins(_StoredStep(step=step, spent=usage))

        async def effect() -> Json:
            return await self._ctx.llm.redact(stored)

        await self._ctx.flush()
        stored_step = msgspec.convert(await self._ctx.once(self._key, effect), _StoredStep).step
        return self._count_pause(stored_step)

    def _count_pause(self, step: Step) -> Step:
        self.pauses += isinstance(step, Paused)
        return step


async def _no_step() -> Json:
    raise _NoStep


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanAnswer:
    """The answer of a person: granted or not, an edited artifact, or any value."""

    is_granted: bool = True
    edited: Json | Unset = UNSET
    feedback: str = ""
    value: Json = None


async def collect_answers(
    ctx: NodeContext, asks: Sequence[HumanRequest], pause: int
) -> list[HumanAnswer] | Suspended:
    """Return all answers to a pause in order, or the interrupt for the first missing answer."""
    answers: list[HumanAnswer] = []
    for index, ask in enumerate(asks):
        key = await _interrupt_key(ctx, ask, f"{pause}.{index}")
        resume_value = ctx.answer(key)
        if isinstance(resume_value, Unset):
            return _interrupt(ask, key)
        answers.append(_human_answer(ask, resume_value))
    return answers


async def _interrupt_key(ctx: NodeContext, ask: HumanRequest, position: str) -> str:
    """Return the key of an interrupt, which depends on the pause and on the question.

    After a fork, the agent may ask a different question at the same pause. An answer to the old
    question must not be used for it.
    """
    request: Json = await ctx.llm.redact(msgspec.to_builtins(ask))
    return ctx.interrupt_key(f"{position}-{canonical_digest(request)[:_DIGEST_DIGITS]}")


def _interrupt(ask: HumanRequest, key: str) -> Suspended:
    if ask.kind == "clarification":
        questions = [{"id": QUESTION, "question": ask.text}]
        return Suspended(kind="clarification", key=key, data={"questions": questions})
    data: JsonObject = {
        "artifactId": key,
        "artifactType": ask.artifact_type,
        "title": ask.text,
        "actions": list(ask.actions),
    }
    if ask.description:
        data["description"] = ask.description
    if not isinstance(ask.artifact, Unset):
        data["artifactData"] = ask.artifact
    return Suspended(kind="approval", key=key, data=data)


def _human_answer(ask: HumanRequest, resume_value: JsonObject) -> HumanAnswer:
    if ask.kind == "clarification":
        answers: JsonObject = resume_value["answers"]
        return HumanAnswer(value=answers[QUESTION])
    return HumanAnswer(
        is_granted=resume_value["action"] != "reject",
        edited=resume_value.get("editedArtifactData", UNSET),
        feedback=resume_value.get("feedback", ""),
    )
