"""Reads KAHN lines: the event for checking, the bytes for keeping."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec

from wopr.fleet.events import (
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

# Twice over the bytes: that is half the work of making the event from the fields.
_FIELDS: Final = msgspec.json.Decoder(JsonObject)
_EVENT: Final[msgspec.json.Decoder[KahnEvent]] = msgspec.json.Decoder(KahnEvent)


class BadLine(ValueError):
    """A line that is no KAHN event; the code is that of the finding it makes."""

    def __init__(self, message: str, code: FaultCode = "schema") -> None:
        super().__init__(message)
        self.message = message
        self.code: FaultCode = code


@dataclass(frozen=True, slots=True)
class KahnLine:
    """A checked line: its bytes without the newline, all its fields, and the event they make."""

    raw: bytes
    fields: JsonObject
    event: KahnEvent


def read_line(raw: bytes) -> KahnLine:
    """Check a line against its schema and the conditions between its fields. Raises `BadLine`."""
    line = decode_line(raw)
    for fault in condition_faults(line.event):
        raise BadLine(fault, "ci_conditional")
    return line


def decode_line(raw: bytes) -> KahnLine:
    """Check a line against its schema alone. Raises `BadLine`."""
    try:
        # All of it, not only what the structs know: an unknown field must be sound JSON too.
        fields = _FIELDS.decode(raw)
        event = _EVENT.decode(raw)
    except (msgspec.MsgspecError, ValueError) as fault:
        raise BadLine(_reason(fault)) from fault
    except RecursionError:
        raise BadLine("the line is nested too deeply") from None
    _require_exit_code(event)
    return KahnLine(raw, fields, event)


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


def _require_exit_code(event: KahnEvent) -> None:
    if isinstance(event, RunEnd) and event.outcome in TOLD_OUTCOMES and event.exit_code is UNSET:
        raise BadLine(f"exit_code is required when outcome is {event.outcome}")


def _reason(fault: Exception) -> str:
    if isinstance(fault, UnicodeDecodeError):
        return "the line is not UTF-8"
    return str(fault)
