"""Time, ids and addresses, as values that can be passed in, so that tests can hold them still."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import uuid_utils

from wopr.runtime.egress import Resolver, resolve


def wall_clock() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def time_ordered_id() -> str:
    """A UUIDv7: unique everywhere, and neighbours in time are neighbours in an index."""
    return str(uuid_utils.uuid7())


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the runtime gets the time, new ids and the addresses of names from."""

    now: Callable[[], int] = wall_clock
    new_id: Callable[[], str] = time_ordered_id
    resolver: Resolver = resolve
