"""Instants: milliseconds since the epoch inside, ISO 8601 UTC with milliseconds outside."""

from __future__ import annotations

from datetime import UTC, datetime


def to_iso(instant: int) -> str:
    """Write an instant the way every document on the wire does."""
    seconds, millis = divmod(instant, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{millis:03d}Z"


def to_millis(iso: str) -> int:
    """Read an ISO 8601 timestamp; a time without a zone is UTC."""
    moment = datetime.fromisoformat(iso)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
