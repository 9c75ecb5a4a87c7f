"""Reads KAHN lines: the event for checking, the bytes for keeping."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from wopr.fleet.events import (
    PATTERN_WORDS,
    DoneWhenResult,
    KahnEvent,
    NodeAttempt,
    NodeTransition,
    RunEnd,
)
from wopr.protocol.documents import UNSET, JsonObject, Unset

FaultCode: TypeAlias = Literal["schema", "ci_conditional"]

# Outcomes of a CI run whose exit code must be told.
TOLD_OUTCOMES: Final = ("stuck", "catastrophic")

# Events with conditions between their fields.
_CONDITIONAL: Final = (NodeTransition, NodeAttempt)

# Twice over the bytes: that is half the work of making the event from the fields.
# What the decoder says of a string that does not match its pattern.
_PATTERN_FAULT: Final = re.compile(r"Expected `str` matching regex ('.*'|\".*\") - at `\$\.(.*)`")
_FIELDS: Final = msgspec.json.Decoder(JsonObject)
_EVENT: Final[msgspec.json.Decoder[KahnEvent]] = msgspec.json.Decoder(KahnEvent)


class BadLine(ValueError):
    """A line that is no KAHN event; the code is that of the finding it makes."""

    def __init__(self, message: str, code: FaultCode = "schema") -> None:
        super().__init__(message)
        self.message = message
        self.code: FaultCode = code


class KahnLine(NamedTuple):
    """A checked line: its bytes without the newline, and the event that they make."""

    raw: bytes
    event: KahnEvent

    @property
    def fields(self) -> JsonObject:
        """All its fields, those too that the event does not know."""
        return _FIELDS.decode(self.raw)


def read_line(raw: bytes) -> KahnLine:
    """Check a line against its schema and the conditions between its fields. Raises `BadLine`."""
    return KahnLine(raw, read_event(raw))


def decode_line(raw: bytes) -> KahnLine:
    """Check a line against its schema alone. Raises `BadLine`."""
    return KahnLine(raw, _decode_event(raw))


def read_event(raw: bytes) -> KahnEvent:
    """Read the event of a line as `read_line` does."""
    event = _decode_event(raw)
    if isinstance(event, _CONDITIONAL):
        for fault in condition_faults(event):
            raise BadLine(fault, "ci_conditional")
    return event


def _decode_event(raw: bytes) -> KahnEvent:
    try:
        # All of it, not only what the structs know: an unknown field must be sound JSON too.
        _FIELDS.decode(raw)
        event = _EVENT.decode(raw)
    except (msgspec.MsgspecError, ValueError) as fault:
        raise BadLine(_reason(fault)) from fault
    except RecursionError:
        raise BadLine("the line is nested too deeply") from None
    if isinstance(event, RunEnd):
        _require_exit_code(event)
    return event


def condition_faults(event: KahnEvent) -> Iterator[str]:
    """Name every breach of a condition between the fields of a CI event."""
    match event:
        case NodeTransition():
            if (event.to == "running") == isinstance(event.attempt, Unset):
                yield "attempt is there if and only if to is running"
        case NodeAttempt():
            if event.attempt == 1 and event.backoff_s is not UNSET:
                yield "backoff_s is left out on attempt 1"
            for result in event.done_when_results:
                yield from _result_faults(result)
        case _:
            return


def _result_faults(result: DoneWhenResult) -> Iterator[str]:
    if result.rc == 0 and result.tail is not UNSET:
        yield "tail is there only when rc is not 0"
    if result.truncated is not UNSET and result.tail is UNSET:
        yield "truncated is there only with a tail"


def _require_exit_code(event: RunEnd) -> None:
    if event.outcome in TOLD_OUTCOMES and event.exit_code is UNSET:
        raise BadLine(f"exit_code is required when outcome is {event.outcome}")


def _reason(fault: Exception) -> str:
    if isinstance(fault, UnicodeDecodeError):
        return "the line is not UTF-8"
    found = _PATTERN_FAULT.fullmatch(str(fault))
    if found is None:
        return str(fault)
    pattern, field = literal_eval(found[1]), found[2]
    return f"{field} must be {PATTERN_WORDS.get(pattern, f'a string that matches {pattern}')}"
