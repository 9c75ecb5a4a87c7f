"""Reads a model's answer that should be JSON: what it holds, or why it cannot be used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import jsonschema_rs
import msgspec

from wopr.protocol.documents import Json

_FENCE: Final = re.compile(r"\A\s*```[A-Za-z]*\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)


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


def read_document(
    text: str, schema: jsonschema_rs.Draft202012Validator, *, was_cut: bool
) -> Document | Unusable:
    """Decode and check an answer."""
    fenced = _FENCE.match(text)
    try:
        value: Json = msgspec.json.decode(text if fenced is None else fenced[1])
    except msgspec.DecodeError as fault:
        if was_cut:
            return Unusable(reason="truncation", message="the answer was cut off")
        return Unusable(reason="parse-error", message=f"the answer is not JSON: {fault}")
    error = next(iter(schema.iter_errors(value)), None)
    if error is not None:
        place = ".".join(str(step) for step in error.instance_path) or "the whole"
        return Unusable(reason="schema-violation", message=f"{place}: {error.message}")
    return Document(value=value, was_fenced=fenced is not None)
