"""Turns: how many runs this process advances at once, shared fairly between tenants.

A tenant with many runnable runs must not delay the runs of the other tenants. Each advance takes a
turn. While turns are free, an advance begins at once. When all are taken, the next free turn goes
to the tenants that wait, one after the other, however many runs each of them has waiting. A tenant
that is over its rate of events gets no turn until the rate allows it.

An advance that waits for a long check or for the lock of its run pauses its turn: others have it
meanwhile. One tenant has no more advances in progress than there are turns, paused ones included.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TypeAlias

import anyio

# More make larger groups of commits. Fewer let new requests in sooner: each turn in progress can
# occupy the event loop for some tenths of a millisecond.
TURNS_AT_ONCE: Final = 32
# How often the rate of a delayed tenant is looked at again: its quota may have been changed.
LOOK_SECONDS: Final = 1.0

# In the order in which they came; each can leave without a search.
_Waiters: TypeAlias = "OrderedDict[Callable[[], None], None]"


class Turns:
    """A fixed number of turns, given to waiting tenants in rotation."""

    def __init__(self, delay: Callable[[str], float], at_once: int = TURNS_AT_ONCE) -> None:
        self._delay = delay
        self._at_once = at_once
        # Below zero while more paused turns went on than were free.
        self._free = at_once
        # Advances in progress, by tenant, and the tasks that have a turn.
        self._begun: Counter[str] = Counter()
        self._holders: set[object] = set()
        self._letting_in: set[asyncio.Task[None]] = set()
        # Tenants that wait for their rate, with their waiters.
        self._delayed: dict[str, _Waiters] = {}
        # Tenants that wait, in the order of their next turn, each with its waiters in order.
        self._waiting: OrderedDict[str, _Waiters] = OrderedDict()

    @property
    def waiting(self) -> int:
        """The number of advances that wait for a turn."""
        queues = (*self._waiting.values(), *self._delayed.values())
        return sum(len(waiters) for waiters in queues)

    def waiting_of(self, tenant: str) -> int:
        """The number of advances of a tenant that wait for a turn."""
        return len(self._waiting.get(tenant, ())) + len(self._delayed.get(tenant, ()))

    def must_wait(self, tenant: str) -> bool:
        """Whether a new advance of a tenant waits for the tenant's rate or its other advances."""
        waiters = self._waiting.get(tenant, ())
        is_full = self._begun[tenant] + len(waiters) >= self._at_once
        return is_full or tenant in self._delayed or self._delay(tenant) > 0

    def take(self, tenant: str, begin: Callable[[], None]) -> None:
        """Call `begin` with a turn: at once when one is free, else when the tenant's turn comes.

        The receiver of the turn enters `held` with it.
        """
        if tenant in self._delayed:
            self._delayed[tenant][begin] = None
            return
        wait = self._delay(tenant)
        if wait:
            self._put_off(tenant, self._waiting.pop(tenant, OrderedDict()), wait)
            self._delayed[tenant][begin] = None
        elif self._may_begin(tenant):
            self._start(tenant)
            begin()
        else:
            waiters = self._waiting.get(tenant)
            if waiters is None:
                waiters = self._waiting[tenant] = OrderedDict()
            waiters[begin] = None

    def give_back(self, tenant: str) -> None:
        """End a turn. It passes to the next tenant that waits."""
        self._free += 1
        self._begun[tenant] -= 1
        if not self._begun[tenant]:
            del self._begun[tenant]
        self._give()

    def _may_begin(self, tenant: str) -> bool:
        return self._free > 0 and self._begun[tenant] < self._at_once

    def _start(self, tenant: str) -> None:
        self._free -= 1
        self._begun[tenant] += 1

    def _give(self) -> None:
        """Give free turns to tenants that wait."""
        full: list[tuple[str, _Waiters]] = []
        while self._free > 0 and self._waiting:
            tenant, waiters = self._waiting.popitem(last=False)
            if not self._may_begin(tenant):
                full.append((tenant, waiters))
                continue
            wait = self._delay(tenant)
            if wait:
                self._put_off(tenant, waiters, wait)
                continue
            begin, _ = waiters.popitem(last=False)
            if waiters:
                self._waiting[tenant] = waiters
            self._start(tenant)
            begin()
        for tenant, waiters in reversed(full):
            self._waiting[tenant] = waiters
            self._waiting.move_to_end(tenant, last=False)

    def _put_off(self, tenant: str, waiters: _Waiters, seconds: float) -> None:
        self._delayed[tenant] = waiters
        asyncio.get_running_loop().call_later(
            min(seconds, LOOK_SECONDS), self._start_to_let_in, tenant
        )

    def _start_to_let_in(self, tenant: str) -> None:
        # In a task, because anyio starts no task of an advance outside of one.
        task = asyncio.get_running_loop().create_task(self._let_in(tenant))
        self._letting_in.add(task)
        task.add_done_callback(self._letting_in.discard)

    async def _let_in(self, tenant: str) -> None:
        """Let a tenant wait for a turn again. It is put off once more while its rate demands it."""
        waiters = self._delayed.pop(tenant)
        if waiters:
            self._waiting[tenant] = waiters
        self._give()

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncGenerator[None, None]:
        """Hold a turn for the length of a block, and wait for it first if none is free."""
        if self._may_begin(tenant) and not self._delay(tenant):
            self._start(tenant)
        else:
            await self._wait(tenant)
        with self.held(tenant):
            yield

    @contextmanager
    def held(self, tenant: str) -> Generator[None, None, None]:
        """Give a turn that the caller has got back at the end of a block."""
        task = asyncio.current_task()
        self._holders.add(task)
        try:
            yield
        finally:
            self._holders.discard(task)
            self.give_back(tenant)

    @contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Leave the caller's turn, if it has one, to others for the length of a block.

        Afterwards the caller goes on without a wait, because it can hold the lock of a run for which
        those with a turn wait.
        """
        if asyncio.current_task() not in self._holders:
            yield
            return
        self._free += 1
        self._give()
        try:
            yield
        finally:
            self._free -= 1

    @asynccontextmanager
    async def locked(self, lock: anyio.Lock) -> AsyncGenerator[None, None]:
        """Hold a lock for the length of a block. A turn is paused while its holder waits for it."""
        if lock.locked():
            with self.paused():
                await lock.acquire()
        else:
            await lock.acquire()
        try:
            yield
        finally:
            lock.release()

    async def _wait(self, tenant: str) -> None:
        granted = anyio.Event()
        self.take(tenant, granted.set)
        try:
            await granted.wait()
        except BaseException:
            if granted.is_set():
                self.give_back(tenant)
            else:
                self._leave(tenant, granted.set)
            raise

    def _leave(self, tenant: str, begin: Callable[[], None]) -> None:
        """Stop waiting."""
        if tenant in self._delayed:
            del self._delayed[tenant][begin]
            return
        waiters = self._waiting[tenant]
        del waiters[begin]
        if not waiters:
            del self._waiting[tenant]
