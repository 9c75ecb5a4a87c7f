"""The clock, the id generator and the resolver of names, which tests can replace."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import uuid_utils

from wopr.process.egress import Resolver, resolve


def wall_clock() -> int:
    """Return the milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def time_ordered_id() -> str:
    """Return a UUIDv7: ids that were created together are close in an index."""
    return str(uuid_utils.uuid7())


@dataclass(frozen=True, slots=True)
class Sources:
    """The clock, the ids and the resolver of a host."""

    now: Callable[[], int] = wall_clock
    new_id: Callable[[], str] = time_ordered_id
    resolver: Resolver = resolve
