"""People's part: what a framework asks becomes a wait, and what they answer goes back to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from wopr.adapters.steps import Ask
from wopr.engine.outcome import Suspended
from wopr.nodes.context import NodeContext
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset
from wopr.security.digest import canonical_digest

# The id of the one question of a clarification.
QUESTION = "answer"
_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a person said: whether it is granted, another version of the artifact, or any value."""

    is_granted: bool = True
    edited: Json | Unset = UNSET
    feedback: str = ""
    value: Json = None


async def answered(ctx: NodeContext, asks: Sequence[Ask], pause: int) -> list[Answer] | Suspended:
    """All answers to the pause of this number in order, or the wait for the first that is missing."""
    answers: list[Answer] = []
    for place, ask in enumerate(asks):
        key = await _key(ctx, ask, f"{pause}.{place}")
        said = ctx.answer(key)
        if isinstance(said, Unset):
            return _wait(ask, key)
        answers.append(_read(ask, said))
    return answers


async def _key(ctx: NodeContext, ask: Ask, place: str) -> str:
    """The key of a wait, bound to when and what is asked.

    Work that is done again after a fork may come to another question, and the answer to the old
    one must not count for it.
    """
    asked: Json = await ctx.llm.redact(msgspec.to_builtins(ask))
    return ctx.interrupt_key(f"{place}-{canonical_digest(asked)[:_DIGITS]}")


def _wait(ask: Ask, key: str) -> Suspended:
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


def _read(ask: Ask, said: JsonObject) -> Answer:
    if ask.kind == "clarification":
        answers: JsonObject = said["answers"]
        return Answer(value=answers[QUESTION])
    return Answer(
        is_granted=said["action"] != "reject",
        edited=said.get("editedArtifactData", UNSET),
        feedback=said.get("feedback", ""),
    )
