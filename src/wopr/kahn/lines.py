"""Reading, validation and writing of KAHN lines."""

from __future__ import annotations

import json
import re
from ast import literal_eval
from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from wopr.kahn.events import (
    EXIT_CODE_OUTCOMES,
    PATTERN_DESCRIPTIONS,
    DoneWhenResult,
    KahnEvent,
    NodeAttempt,
    NodeTransition,
    RunEnd,
)
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset


def encode_line(fields: JsonObject) -> bytes:
    """Encode an event as a line without its newline: compact, UTF-8, keys in the given order.

    Raises `ValueError` for values that JSON does not allow: `NaN`, infinities, lone surrogates.
    """
    return compact(fields).encode()


def compact(value: Json, *, is_sorted: bool = False) -> str:
    """Return a value as compact JSON, in the form of lines."""
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=is_sorted
    )


def split_lines(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Number the lines of a body from 1, without newlines; blank lines are counted and left out.

    Only a line feed ends a line. Other line breaks are characters inside a string.
    """
    return ((number, line) for number, line in enumerate(body.split(b"\n"), 1) if line.strip())


def number_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Number lines from 1; blank lines are counted and left out."""
    for number, line in enumerate(lines, 1):
        whole = line.removesuffix(b"\n")
        if whole.strip():
            yield number, whole


FaultCode: TypeAlias = Literal["schema", "ci_conditional"]


# Events with conditions between their fields.
_CONDITIONAL: Final = (NodeTransition, NodeAttempt)

# The decoder's message for a string that does not match its pattern.
_PATTERN_FAULT: Final = re.compile(r"Expected `str` matching regex ('.*'|\".*\") - at `\$\.(.*)`")
_FIELDS: Final = msgspec.json.Decoder(JsonObject)
_EVENT: Final[msgspec.json.Decoder[KahnEvent]] = msgspec.json.Decoder(KahnEvent)


class BadLine(ValueError):
    """A line that is not a valid KAHN event; `code` is the code of its finding."""

    def __init__(self, message: str, code: FaultCode = "schema") -> None:
        super().__init__(message)
        self.message = message
        self.code: FaultCode = code


class KahnLine(NamedTuple):
    """A valid line: its bytes without the newline, and the decoded event."""

    raw: bytes
    event: KahnEvent

    @property
    def fields(self) -> JsonObject:
        """All fields, including unknown ones."""
        return _FIELDS.decode(self.raw)


def read_line(raw: bytes) -> KahnLine:
    """Decode a line. Raises `BadLine` if it violates its schema or a condition between its fields."""
    return KahnLine(raw, read_event(raw))


def decode_line(raw: bytes) -> KahnLine:
    """Decode a line. Raises `BadLine` if it violates its schema; conditions are not checked."""
    return KahnLine(raw, _decode_event(raw))


def read_event(raw: bytes) -> KahnEvent:
    """Decode the event of a line as `read_line` does."""
    event = _decode_event(raw)
    if isinstance(event, _CONDITIONAL):
        for fault in condition_faults(event):
            raise BadLine(fault, "ci_conditional")
    return event


def _decode_event(raw: bytes) -> KahnEvent:
    try:
        # Decoded twice, because an unknown field must be valid JSON too. This is faster than
        # building the event from the fields.
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
    """Yield a message for every violated condition between the fields of a CI event."""
    match event:
        case NodeTransition():
            if (event.to == "running") == isinstance(event.attempt, Unset):
                yield "attempt must be present if and only if to is running"
        case NodeAttempt():
            if event.attempt == 1 and event.backoff_s is not UNSET:
                yield "backoff_s must be absent on attempt 1"
            for result in event.done_when_results:
                yield from _result_faults(result)
        case _:
            return


def _result_faults(result: DoneWhenResult) -> Iterator[str]:
    if result.rc == 0 and result.tail is not UNSET:
        yield "tail must be absent if rc is 0"
    if result.truncated is not UNSET and result.tail is UNSET:
        yield "truncated must be absent without a tail"


def _require_exit_code(event: RunEnd) -> None:
    if event.outcome in EXIT_CODE_OUTCOMES and event.exit_code is UNSET:
        raise BadLine(f"exit_code is required when outcome is {event.outcome}")


def _reason(fault: Exception) -> str:
    if isinstance(fault, UnicodeDecodeError):
        return "the line is not UTF-8"
    found = _PATTERN_FAULT.fullmatch(str(fault))
    if found is None:
        return str(fault)
    pattern, field = literal_eval(found[1]), found[2]
    return (
        f"{field} must be {PATTERN_DESCRIPTIONS.get(pattern, f'a string that matches {pattern}')}"
    )
