"""Template filters: times, durations, sizes, JSON and statuses as text."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import msgspec

from wopr.protocol.documents import Json, JsonObject, Unset, to_iso, to_millis
from wopr.protocol.observed_ids import OBSERVED_PREFIX, is_observed_run
from wopr.protocol.references import references_in

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_SHORT_VALUE: Final = 60
# Bytes of a value that a page shows.
_LARGE_VALUE: Final = 64 * 1024
_SHORT_NAME: Final = 24
# The colour of each status. The page always shows the word too.
_TONES: Final = {
    "pending": "quiet",
    "running": "active",
    "retrying": "active",
    "paused": "held",
    "suspended": "waiting",
    "waiting-approval": "waiting",
    "waiting-input": "waiting",
    "waiting-external": "waiting",
    "completed": "good",
    "active": "good",
    "failed": "bad",
    "revoked": "bad",
    "cancelling": "held",
    "cancelled": "quiet",
    "skipped": "quiet",
    # Outcomes of agents and graphs, results of checks, statuses of agents and nodes in the fleet.
    "converged": "good",
    "partial": "waiting",
    "escaped": "held",
    "aborted": "bad",
    "unknown": "quiet",
    "clean": "good",
    "clean_with_flake": "waiting",
    "stuck": "bad",
    "catastrophic": "bad",
    "pass": "good",
    "fail": "bad",
    "warn": "waiting",
    "done": "good",
    "tool_call": "active",
    "blocked": "waiting",
    "blocked-on-clarification": "waiting",
}


def duration(millis: float | None) -> str:
    """Format a duration in one or two units: `840 ms`, `3.2 s`, `4 m 05 s`, `2 d 3 h`."""
    if millis is None:
        return ""
    millis = max(millis, 0)
    if millis < _SECOND:
        return f"{round(millis)} ms"
    if millis < 10 * _SECOND:
        return f"{millis / _SECOND:.2f} s"
    if millis < _MINUTE:
        return f"{millis / _SECOND:.1f} s"
    if millis < _HOUR:
        return f"{int(millis // _MINUTE)} m {int(millis % _MINUTE // _SECOND):02} s"
    if millis < _DAY:
        return f"{int(millis // _HOUR)} h {int(millis % _HOUR // _MINUTE):02} m"
    return f"{int(millis // _DAY)} d {int(millis % _DAY // _HOUR)} h"


def ago(instant: int, now: int) -> str:
    """Format a past time in one unit: `now`, `12 s ago`, `5 m ago`, `3 h ago`, `2 d ago`."""
    passed = max(now - instant, 0)
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m"), (_SECOND, "s")):
        if passed >= unit:
            return f"{passed // unit} {name} ago"
    return "now"


def ahead(instant: int, now: int) -> str:
    """Format a future time in one unit: `in 5 m`, `in 2 d`; a past time is `expired`."""
    left = instant - now
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m"), (_SECOND, "s")):
        if left >= unit:
            return f"in {left // unit} {name}"
    return "expired" if left <= 0 else "now"


def moment(instant: int | str) -> str:
    """Format date and time in UTC, to the second."""
    text = instant if isinstance(instant, str) else to_iso(instant)
    return f"{text[:10]} {text[11:19]}"


def millis(iso: str | Unset) -> int | None:
    """Convert a time of the wire to milliseconds; None if it is absent or invalid."""
    if isinstance(iso, Unset):
        return None
    try:
        return to_millis(iso)
    except (ValueError, OverflowError):
        return None


def pretty(value: Json) -> str:
    """Format JSON over several lines."""
    return msgspec.json.format(_encoded(value), indent=2).decode()


def references(value: Json) -> list[JsonObject]:
    """Return the references to large values, each once."""
    return list({each["artifactId"]: each for each in references_in(value)}.values())


def pretty_start(value: Json) -> str:
    """Format a value as JSON over several lines. A large value is cut, with a note."""
    encoded = _encoded(value)
    if len(encoded) <= _LARGE_VALUE:
        return msgspec.json.format(encoded, indent=2).decode()
    shown = encoded[:_LARGE_VALUE].decode("utf-8", "ignore")
    return f"{shown}…\n\nOnly the first {_LARGE_VALUE} of {len(encoded)} bytes are shown."


def is_large(value: Json) -> bool:
    """Return whether only the beginning of a value is shown."""
    return len(_encoded(value)) > _LARGE_VALUE


def compact(value: Json) -> str:
    """Return JSON on one line, cut if it is long. A text is returned without quotes."""
    text = value if isinstance(value, str) else _encoded(value).decode()
    return text if len(text) <= _SHORT_VALUE else text[: _SHORT_VALUE - 1] + "…"


def _encoded(value: Json) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)


def tone(status: str) -> str:
    """Return the tone of a status: quiet, active, held, waiting, good or bad."""
    return _TONES.get(status, "quiet")


def status_text(status: str) -> str:
    """Return a status in words: `waiting-approval` is `waiting for approval`."""
    kind = status.removeprefix("waiting-")
    if kind == status:
        return status
    return {"external": "waiting for an event"}.get(kind, f"waiting for {kind}")


def percent(share: float) -> str:
    """Format a number from 0 to 1 as whole per cent."""
    return f"{math.floor(share * 100 + 0.5)} %"


def short_id(name: str) -> str:
    """Return the last characters of an id. The first characters are a time, so ids share them.

    For an observed run, return the name that its producer gave it.
    """
    if is_observed_run(name):
        own = name.removeprefix(OBSERVED_PREFIX).rpartition("-")[0]
        return own if len(own) <= _SHORT_NAME else "…" + own[1 - _SHORT_NAME :]
    return name if len(name) <= 12 else name[-12:]


def money(amount: float) -> str:
    """Format an amount in US dollars. Small amounts have four significant digits."""
    return f"${amount:.2f}" if amount >= 1 else f"${amount:.4g}"


def count(number: int) -> str:
    """Format a whole number with separated thousands."""
    return f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def size(number: int) -> str:
    """Format a number of bytes in the largest unit that leaves a whole part."""
    power = min((max(number, 1).bit_length() - 1) // 10, len(_SIZES) - 1)
    amount = f"{number / 1024**power:.1f}".removesuffix(".0")
    return f"{amount}\N{NARROW NO-BREAK SPACE}{_SIZES[power]}"


def number(value: float) -> str:
    """Format a coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


FILTERS: Final[dict[str, Callable[..., object]]] = {
    "duration": duration,
    "ago": ago,
    "ahead": ahead,
    "moment": moment,
    "iso": to_iso,
    "millis": millis,
    "pretty": pretty,
    "pretty_start": pretty_start,
    "is_large": is_large,
    "compact": compact,
    "references": references,
    "tone": tone,
    "status_text": status_text,
    "percent": percent,
    "short_id": short_id,
    "money": money,
    "count": count,
    "size": size,
    "number": number,
    "is_observed": is_observed_run,
}
