"""Instants as KAHN writes them: UTC, three fractional digits, a literal `Z`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

_EPOCH = datetime(1970, 1, 1)
_MILLISECOND = timedelta(milliseconds=1)
# Lines come in the order of their making: most are of a minute that was seen a moment ago.
_MINUTES: Final = 4096


def require_instant(ts: str) -> None:
    """Raise `ValueError` when a well-formed timestamp names no real instant."""
    try:
        _minute(ts[:16])
        if ts[17] > "5":
            read_ts(ts)
    except ValueError as fault:
        raise ValueError(f"ts {ts} is no real instant: {fault}") from None


def read_ts(ts: str) -> datetime:
    """Read a timestamp of the wire as a UTC time without a zone."""
    # Field by field: what `fromisoformat` accepts differs between versions of Python.
    return datetime(
        int(ts[0:4]),
        int(ts[5:7]),
        int(ts[8:10]),
        int(ts[11:13]),
        int(ts[14:16]),
        int(ts[17:19]),
        int(ts[20:23]) * 1000,
    )


def write_ts(moment: datetime) -> str:
    """Write a time for the wire; milliseconds are cut off and not rounded, no zone means UTC."""
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return f"{moment.isoformat(timespec='milliseconds')}Z"


def to_ts(timestamp: str) -> str:
    """Turn the timestamp of a run's event into KAHN's form."""
    return write_ts(datetime.fromisoformat(timestamp))


def millis(ts: str) -> int:
    """Count the milliseconds of a timestamp of the wire since the epoch."""
    return _minute(ts[:16]) + int(ts[17:19]) * 1000 + int(ts[20:23])


@lru_cache(_MINUTES)
def _minute(beginning: str) -> int:
    """The milliseconds up to a minute, given as the first characters of a timestamp."""
    return (read_ts(f"{beginning}:00.000Z") - _EPOCH) // _MILLISECOND


def from_millis(moment: int) -> str:
    """Write milliseconds since the epoch as a timestamp of the wire."""
    return write_ts(_EPOCH + moment * _MILLISECOND)


def seconds_between(start: str, end: str) -> float:
    """Measure from one timestamp of the wire to another; never less than nothing."""
    return max(0, millis(end) - millis(start)) / 1000
