"""Fair scheduling of advances between tenants, with a fixed number of slots.

A tenant with many runnable runs must not delay the runs of other tenants. Each advance needs a
slot. While slots are free, an advance starts at once. When all slots are taken, waiting tenants get
the next free slot in rotation (round-robin), regardless of how many runs of each tenant wait. A
tenant over its rate of events gets no slot until the rate allows it.

An advance that waits for a long check or for the lock of its run releases its slot. One tenant has
no more advances in progress than there are slots, including those that released their slot.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TypeAlias

import anyio

# More slots make larger groups of commits. With fewer slots new requests wait less: each advance
# can occupy the event loop for some tenths of a millisecond.
SLOTS: Final = 32
# How often the rate of a delayed tenant is checked again: its quota may have been changed.
RECHECK_SECONDS: Final = 1.0

# Waiting advances in the order of arrival. A dict, so that one can be removed without a search.
_Waiters: TypeAlias = "OrderedDict[Callable[[], None], None]"


class FairScheduler:
    """A fixed number of slots, given to waiting tenants in rotation.

    `delay` returns the seconds that a tenant must wait for its rate of events.
    """

    def __init__(self, delay: Callable[[str], float], slots: int = SLOTS) -> None:
        self._delay = delay
        self._slots = slots
        # Negative while more released slots were taken back than were free.
        self._free = slots
        # Advances in progress by tenant, and the tasks that have a slot.
        self._begun: Counter[str] = Counter()
        self._holders: set[object] = set()
        self._rechecks: set[asyncio.Task[None]] = set()
        # Tenants that wait for their rate, with their waiters.
        self._delayed: dict[str, _Waiters] = {}
        # Tenants that wait for a slot, in the order of their next slot, with their waiters.
        self._waiting: OrderedDict[str, _Waiters] = OrderedDict()

    @property
    def waiting(self) -> int:
        """The number of advances that wait for a slot."""
        queues = (*self._waiting.values(), *self._delayed.values())
        return sum(len(waiters) for waiters in queues)

    def waiting_of(self, tenant: str) -> int:
        """Return the number of advances of a tenant that wait for a slot."""
        return len(self._waiting.get(tenant, ())) + len(self._delayed.get(tenant, ()))

    def must_wait(self, tenant: str) -> bool:
        """Return whether a new advance of a tenant waits, for its rate or its other advances."""
        waiters = self._waiting.get(tenant, ())
        is_full = self._begun[tenant] + len(waiters) >= self._slots
        return is_full or tenant in self._delayed or self._delay(tenant) > 0

    def submit(self, tenant: str, begin: Callable[[], None]) -> None:
        """Call `begin` with a slot: at once when one is free, else when the tenant gets one.

        The receiver of the slot enters `release_at_end` to give it back.
        """
        if tenant in self._delayed:
            self._delayed[tenant][begin] = None
            return
        wait = self._delay(tenant)
        if wait:
            self._postpone(tenant, self._waiting.pop(tenant, OrderedDict()), wait)
            self._delayed[tenant][begin] = None
        elif self._may_begin(tenant):
            self._start(tenant)
            begin()
        else:
            waiters = self._waiting.get(tenant)
            if waiters is None:
                waiters = self._waiting[tenant] = OrderedDict()
            waiters[begin] = None

    def release(self, tenant: str) -> None:
        """Give a slot back. The next waiting tenant gets it."""
        self._free += 1
        self._begun[tenant] -= 1
        if not self._begun[tenant]:
            del self._begun[tenant]
        self._assign()

    def _may_begin(self, tenant: str) -> bool:
        return self._free > 0 and self._begun[tenant] < self._slots

    def _start(self, tenant: str) -> None:
        self._free -= 1
        self._begun[tenant] += 1

    def _assign(self) -> None:
        """Give free slots to tenants that wait."""
        full: list[tuple[str, _Waiters]] = []
        while self._free > 0 and self._waiting:
            tenant, waiters = self._waiting.popitem(last=False)
            if not self._may_begin(tenant):
                full.append((tenant, waiters))
                continue
            wait = self._delay(tenant)
            if wait:
                self._postpone(tenant, waiters, wait)
                continue
            begin, _ = waiters.popitem(last=False)
            if waiters:
                self._waiting[tenant] = waiters
            self._start(tenant)
            begin()
        for tenant, waiters in reversed(full):
            self._waiting[tenant] = waiters
            self._waiting.move_to_end(tenant, last=False)

    def _postpone(self, tenant: str, waiters: _Waiters, seconds: float) -> None:
        self._delayed[tenant] = waiters
        asyncio.get_running_loop().call_later(
            min(seconds, RECHECK_SECONDS), self._start_recheck, tenant
        )

    def _start_recheck(self, tenant: str) -> None:
        # In a task, because anyio can start tasks only from within a task.
        task = asyncio.get_running_loop().create_task(self._recheck(tenant))
        self._rechecks.add(task)
        task.add_done_callback(self._rechecks.discard)

    async def _recheck(self, tenant: str) -> None:
        """Let a delayed tenant wait for a slot. `_assign` delays it again if its rate says so."""
        waiters = self._delayed.pop(tenant)
        if waiters:
            self._waiting[tenant] = waiters
        self._assign()

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncGenerator[None, None]:
        """Hold a slot during the block. Wait for it first if none is free."""
        if self._may_begin(tenant) and not self._delay(tenant):
            self._start(tenant)
        else:
            await self._wait(tenant)
        with self.release_at_end(tenant):
            yield

    @contextmanager
    def release_at_end(self, tenant: str) -> Generator[None, None, None]:
        """Give the caller's slot back at the end of the block."""
        task = asyncio.current_task()
        self._holders.add(task)
        try:
            yield
        finally:
            self._holders.discard(task)
            self.release(tenant)

    @contextmanager
    def without_slot(self) -> Generator[None, None, None]:
        """Release the caller's slot, if it has one, during the block.

        The caller takes it back without a wait: it may hold the lock of a run for which tasks with
        a slot wait.
        """
        if asyncio.current_task() not in self._holders:
            yield
            return
        self._free += 1
        self._assign()
        try:
            yield
        finally:
            self._free -= 1

    @asynccontextmanager
    async def hold_lock(self, lock: anyio.Lock) -> AsyncGenerator[None, None]:
        """Hold a lock during the block. The caller's slot is released while it waits."""
        if lock.locked():
            with self.without_slot():
                await lock.acquire()
        else:
            await lock.acquire()
        try:
            yield
        finally:
            lock.release()

    async def _wait(self, tenant: str) -> None:
        granted = anyio.Event()
        self.submit(tenant, granted.set)
        try:
            await granted.wait()
        except BaseException:
            if granted.is_set():
                self.release(tenant)
            else:
                self._cancel(tenant, granted.set)
            raise

    def _cancel(self, tenant: str, begin: Callable[[], None]) -> None:
        if tenant in self._delayed:
            del self._delayed[tenant][begin]
            return
        waiters = self._waiting[tenant]
        del waiters[begin]
        if not waiters:
            del self._waiting[tenant]
