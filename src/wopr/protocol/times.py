"""Instants: milliseconds since the epoch inside, ISO 8601 UTC with milliseconds outside."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1)
# Whatever is written in one millisecond carries the same few instants.
_KEPT = 256


@lru_cache(maxsize=_KEPT)
def to_iso(instant: int) -> str:
    """Write an instant the way every document on the wire does."""
    moment = _EPOCH + timedelta(milliseconds=instant)
    return f"{moment.isoformat(timespec='milliseconds')}Z"


@lru_cache(maxsize=_KEPT)
def to_millis(iso: str) -> int:
    """Read an ISO 8601 timestamp; a time without a zone is UTC."""
    moment = datetime.fromisoformat(iso)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
