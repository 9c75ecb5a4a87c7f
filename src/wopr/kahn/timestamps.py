"""KAHN timestamps: UTC, three fractional digits, a literal `Z`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

_EPOCH = datetime(1970, 1, 1)
_MILLISECOND = timedelta(milliseconds=1)
# The size of the cache of minutes. Most lines have the same minute as an earlier line.
_MINUTES: Final = 4096


def require_valid_time(ts: str) -> None:
    """Raise `ValueError` if a well-formed timestamp is not a valid time."""
    try:
        _minute_millis(ts[:16])
        if ts[17] > "5":
            read_ts(ts)
    except ValueError as fault:
        raise ValueError(f"ts {ts} is not a valid time: {fault}") from None


def read_ts(ts: str) -> datetime:
    """Parse a timestamp to a UTC time without a time zone."""
    # Not `fromisoformat`, because the accepted formats depend on the version of Python.
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
    """Format a time. Milliseconds are truncated. A time without a time zone is in UTC."""
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return f"{moment.isoformat(timespec='milliseconds')}Z"


def to_ts(timestamp: str) -> str:
    """Convert the timestamp of a run's event to a KAHN timestamp."""
    return write_ts(datetime.fromisoformat(timestamp))


def millis(ts: str) -> int:
    """Return the milliseconds of a timestamp since the epoch."""
    return _minute_millis(ts[:16]) + int(ts[17:19]) * 1000 + int(ts[20:23])


@lru_cache(_MINUTES)
def _minute_millis(beginning: str) -> int:
    """Return the milliseconds of a minute, given as the first characters of a timestamp."""
    return (read_ts(f"{beginning}:00.000Z") - _EPOCH) // _MILLISECOND


def from_millis(moment: int) -> str:
    """Format milliseconds since the epoch as a timestamp."""
    return write_ts(_EPOCH + moment * _MILLISECOND)


def seconds_between(start: str, end: str) -> float:
    """Return the seconds between two timestamps, at least 0."""
    return max(0, millis(end) - millis(start)) / 1000
