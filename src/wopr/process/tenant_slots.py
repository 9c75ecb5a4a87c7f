"""Limits of concurrent work per tenant, so that no tenant takes the capacity of another."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

import anyio
import anyio.to_thread

from wopr.protocol.errors import Unavailable

T = TypeVar("T")
# Heavy reads of one tenant that may wait.
MAX_WAITING_READS: Final = 30
READ_RETRY_SECONDS: Final = 5
# Work on fewer bytes takes less time than the switch to a thread.
INLINE_BYTES: Final = 256 * 1024
# A run with more data is large: a request for its snapshot is a heavy read.
LARGE_RUN_BYTES: Final = 1024 * 1024
# Calls of one tenant that may wait for a slot in `FairSlots`.
MAX_WAITING: Final = 100
RETRY_SECONDS: Final = 2


@dataclass(slots=True)
class _Slots:
    """The slots of a tenant, and how many tasks have one or wait for one."""

    semaphore: anyio.Semaphore
    tasks: int = 0


class TenantSlots:
    """`per_tenant` slots for every tenant. A tenant that has used all of its slots waits."""

    def __init__(self, per_tenant: int) -> None:
        self.per_tenant = per_tenant
        # Tenants that use a slot now.
        self._tenants: dict[str, _Slots] = {}

    async def acquire(self, tenant: str) -> None:
        """Take a slot of a tenant, and wait for it if all are taken."""
        slots = self._tenants.get(tenant)
        if slots is None:
            slots = self._tenants[tenant] = _Slots(
                anyio.Semaphore(self.per_tenant, fast_acquire=True)
            )
        slots.tasks += 1
        try:
            await slots.semaphore.acquire()
        except BaseException:
            self._leave(tenant, slots)
            raise

    def release(self, tenant: str) -> None:
        """Release a slot. The task of the tenant that has waited longest gets it."""
        slots = self._tenants[tenant]
        slots.semaphore.release()
        self._leave(tenant, slots)

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncGenerator[None, None]:
        """Hold a slot of a tenant during the block."""
        await self.acquire(tenant)
        try:
            yield
        finally:
            self.release(tenant)

    def _leave(self, tenant: str, slots: _Slots) -> None:
        slots.tasks -= 1
        if not slots.tasks:
            del self._tenants[tenant]


class FairSlots:
    """`size` slots for all tenants, granted in rotation. One tenant has at most half of them."""

    def __init__(self, size: int, max_waiting: int = MAX_WAITING) -> None:
        self._max_waiting = max_waiting
        self._free = size
        self._share = max(1, size // 2)
        self._used: dict[str, int] = {}
        self._waiting: OrderedDict[str, deque[anyio.Event]] = OrderedDict()

    @asynccontextmanager
    async def slot(self, tenant: str, wait_seconds: float) -> AsyncGenerator[None, None]:
        """Hold a slot during the block. Raises `Unavailable` if no slot is free in time."""
        await self._wait(tenant, wait_seconds)
        try:
            yield
        finally:
            self._release(tenant)

    async def _wait(self, tenant: str, seconds: float) -> None:
        queue = self._waiting.setdefault(tenant, deque())
        if len(queue) >= self._max_waiting:
            raise Unavailable(
                f"{self._max_waiting} checks of this tenant are waiting, which is the limit. "
                f"Try again in {RETRY_SECONDS} seconds.",
                retry_after=RETRY_SECONDS,
            )
        granted = anyio.Event()
        queue.append(granted)
        self._grant()
        try:
            with anyio.move_on_after(seconds):
                await granted.wait()
        except BaseException:
            if granted.is_set():
                self._release(tenant)
            else:
                self._leave(tenant, granted)
            raise
        if not granted.is_set():
            self._leave(tenant, granted)
            raise Unavailable(
                f"A check could not start within {seconds:g} s. "
                f"Try again in {RETRY_SECONDS} seconds.",
                retry_after=RETRY_SECONDS,
            )

    def _leave(self, tenant: str, waiter: anyio.Event) -> None:
        queue = self._waiting[tenant]
        queue.remove(waiter)
        if not queue:
            del self._waiting[tenant]

    def _release(self, tenant: str) -> None:
        self._free += 1
        self._used[tenant] -= 1
        if not self._used[tenant]:
            del self._used[tenant]
        self._grant()

    def _grant(self) -> None:
        """Grant free slots to waiting tenants.

        The tenant that was served last is last in the order.
        """
        for tenant in list(self._waiting):
            if not self._free:
                return
            if self._used.get(tenant, 0) >= self._share:
                continue
            queue = self._waiting[tenant]
            queue.popleft().set()
            self._free -= 1
            self._used[tenant] = self._used.get(tenant, 0) + 1
            if queue:
                self._waiting.move_to_end(tenant)
            else:
                del self._waiting[tenant]


@dataclass(slots=True)
class _Reads:
    """The heavy reads of a tenant: the read in progress holds the lock, the others wait."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    count: int = 0


class HeavyReads:
    """Limits reads of whole runs: at most `at_once` in all, and one for each tenant.

    A comparison, a debug bundle or a page of a run reads and decodes all events of a run. Many at
    once would take the memory and the processor from all other requests.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = anyio.Semaphore(at_once)
        self._tenants: dict[str, _Reads] = {}

    @asynccontextmanager
    async def slot(self, tenant: str, *, always_waits: bool = False) -> AsyncGenerator[None, None]:
        """Wait for a slot, and hold it during the block.

        Raises `Unavailable` if too many reads wait. With `always_waits` it waits in any case, for a
        response that has already begun.
        """
        own = self._tenants.setdefault(tenant, _Reads())
        if own.count > MAX_WAITING_READS and not always_waits:
            raise Unavailable(
                f"{MAX_WAITING_READS} reads of large runs of this tenant are waiting, which is the "
                f"limit. Try again in {READ_RETRY_SECONDS} seconds.",
                retry_after=READ_RETRY_SECONDS,
                limit=MAX_WAITING_READS,
            )
        own.count += 1
        try:
            # Tenants are served in the order in which their own lock became free.
            async with own.lock, self._at_once:
                yield
        finally:
            own.count -= 1
            if not own.count:
                del self._tenants[tenant]


async def run_by_size(size: int, work: Callable[[], T]) -> T:
    """Run `work` on `size` bytes; in a thread if they are many, to keep the event loop free."""
    return work() if size < INLINE_BYTES else await anyio.to_thread.run_sync(work)
