"""Reads a model's answer that should be JSON: what it holds, or why it cannot be used."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from wopr.engine.outcome import NodeFailure
from wopr.nodes.context import NodeContext
from wopr.protocol.checking import SCHEMA_CHECK_FAILED, UserSchema
from wopr.protocol.documents import Json

_FENCE = "```"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusable:
    """Why an answer cannot be used, in words that hold nothing of it."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A usable answer; `was_fenced` when it had to be taken out of a code block."""

    value: Json
    was_fenced: bool = False


async def read_document(
    ctx: NodeContext, text: str, schema: UserSchema, *, was_cut: bool
) -> Document | Unusable:
    """Decode and check an answer.

    A schema that could not be applied fails the node: another answer would not help.
    """
    fenced = _code_block(text)
    try:
        value: Json = msgspec.json.decode(text if fenced is None else fenced)
    except msgspec.DecodeError as fault:
        if was_cut:
            return Unusable(reason="truncation", message="the answer was cut off")
        return Unusable(reason="parse-error", message=f"the answer is not JSON: {fault}")
    for violation in await ctx.violations(schema, value):
        message = f"{violation.place() or 'the whole'}: {violation.message}"
        if violation.code == SCHEMA_CHECK_FAILED:
            raise NodeFailure(
                f"the model's answer, {message}", code=violation.code, retryable=False
            )
        return Unusable(reason="schema-violation", message=message)
    return Document(value=value, was_fenced=fenced is not None)


def _code_block(text: str) -> str | None:
    """The content of the code block that is the whole text; None for other text.

    It takes linear time. A regular expression would backtrack over the line ends.
    """
    block = text.strip()
    language, line_end, content = block[len(_FENCE) : -len(_FENCE)].partition("\n")
    language = language.rstrip()
    is_language = not language or (language.isascii() and language.isalpha())
    is_fenced = block.startswith(_FENCE) and block.endswith(_FENCE)
    return content if is_fenced and line_end and is_language else None
