"""Parsing of option values: `name=value` pairs, JSON, durations and times."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import typer

from wopr.protocol.documents import Json, JsonObject, to_millis

_DURATION: Final = re.compile(r"^(\d{1,9})(ms|s|m|h|d|w)?$")
_UNIT_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_LONGEST_MS: Final = 100 * 365 * _UNIT_MS["d"]


def parse_value(raw: str) -> Json:
    """Parse a value as JSON if it is valid JSON, else as text."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError):
        return raw


def parse_assignments(pairs: Sequence[str], option: str) -> JsonObject:
    """Parse `name=value` pairs. A repeated name is an error."""
    values: JsonObject = {}
    for pair in pairs:
        name, equals, raw = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not of the form name=value", param_hint=option)
        if name in values:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint=option)
        values[name] = parse_value(raw)
    return values


def keep_declared_text(
    pairs: Sequence[str], values: JsonObject, kinds: Mapping[str, str]
) -> JsonObject:
    """Return the values. A value that is declared as a string keeps its original text."""
    texts = {name: raw for name, _, raw in (pair.partition("=") for pair in pairs)}
    return {
        name: texts[name] if kinds.get(name) == "string" and not isinstance(value, str) else value
        for name, value in values.items()
    }


def parse_json(argument: str, option: str) -> Json:
    """Parse any JSON from the argument, from a file (`@path`) or from stdin (`-`)."""
    try:
        return msgspec.json.decode(_argument_bytes(argument, option))
    except (msgspec.DecodeError, UnicodeError) as fault:
        raise typer.BadParameter(f"not JSON: {fault}", param_hint=option) from None


def parse_object(argument: str, option: str) -> JsonObject:
    """Parse a JSON object from the argument, from a file (`@path`) or from stdin (`-`)."""
    raw = _argument_bytes(argument, option)
    try:
        return msgspec.json.decode(raw, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeError) as fault:
        raise typer.BadParameter(f"not a JSON object: {fault}", param_hint=option) from None


def _argument_bytes(argument: str, option: str) -> bytes:
    if argument == "-":
        return sys.stdin.buffer.read()
    if not argument.startswith("@"):
        return argument.encode(errors="surrogateescape")
    try:
        return Path(argument[1:]).read_bytes()
    except OSError as fault:
        raise typer.BadParameter(
            f"cannot read {argument[1:]}: {fault.strerror}", param_hint=option
        ) from None


def parse_duration(raw: str, option: str) -> int:
    """Parse `90d`, `24h`, `30m`, `45s` or `250ms` as milliseconds; a bare number is seconds."""
    match = _DURATION.match(raw.strip())
    millis = int(match[1]) * _UNIT_MS[match[2] or "s"] if match else None
    if millis is None or millis > _LONGEST_MS:
        raise typer.BadParameter(
            f"{raw!r} is not a duration such as 90d, 24h, 30m or 45s, of at most 100 years",
            param_hint=option,
        )
    return millis


def parse_moment(raw: str, now: int, option: str) -> int:
    """Parse an ISO 8601 time, or a duration before `now`, to milliseconds."""
    if _DURATION.match(raw.strip()):
        return max(0, now - parse_duration(raw, option))
    try:
        return max(0, to_millis(raw))
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{raw!r} is neither a duration such as 2h nor an ISO 8601 time", param_hint=option
        ) from None
