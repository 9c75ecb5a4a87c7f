"""Heavy reads: reads of whole runs take turns, one of each tenant and a few of a process at a time.

A comparison, a debug bundle or a page of a run reads and decodes all events of a run. Many at once
would take the memory and the processor from all other requests.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

import anyio
import anyio.to_thread

from wopr.protocol.errors import Unavailable

T = TypeVar("T")
# Reads of one tenant that wait for their turn.
MOST_WAITING: Final = 30
RETRY_SECONDS: Final = 5
# Work on fewer bytes takes less time than handing it to a thread is worth.
NEAR_BYTES: Final = 256 * 1024
# Runs with more data are large: a request for their snapshot takes a turn.
LARGE_BYTES: Final = 1024 * 1024


@dataclass(slots=True)
class _Tenant:
    """The turn of a tenant, and how many reads have it or wait for it."""

    turn: anyio.Lock = field(default_factory=anyio.Lock)
    reads: int = 0


class HeavyReads:
    """Gives turns to heavy reads: at most `at_once` in all, and one for each tenant."""

    def __init__(self, at_once: int) -> None:
        self._at_once = anyio.Semaphore(at_once)
        self._tenants: dict[str, _Tenant] = {}

    @asynccontextmanager
    async def turn(self, tenant: str, *, must: bool = False) -> AsyncGenerator[None, None]:
        """Wait for a turn, and have it during the block.

        Raises `Unavailable` when too many wait, unless the read `must` be done: it is part of an
        answer that has begun.
        """
        own = self._tenants.setdefault(tenant, _Tenant())
        if own.reads > MOST_WAITING and not must:
            raise Unavailable(
                f"{MOST_WAITING} reads of large runs of this tenant wait for their turn, which is "
                f"the limit; try again in {RETRY_SECONDS} seconds",
                retry_after=RETRY_SECONDS,
                limit=MOST_WAITING,
            )
        own.reads += 1
        try:
            # Tenants wait for each other in the order in which their turns came.
            async with own.turn, self._at_once:
                yield
        finally:
            own.reads -= 1
            if not own.reads:
                del self._tenants[tenant]


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Do work on so many bytes: in a thread when they are many, so that the event loop goes on."""
    return work() if size < NEAR_BYTES else await anyio.to_thread.run_sync(work)
