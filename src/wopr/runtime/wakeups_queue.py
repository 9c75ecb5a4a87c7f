"""Wake-ups where several processes share a store: a queue in it, and a worker in each of them."""

from __future__ import annotations

import asyncio

import anyio
import anyio.abc
import structlog

from wopr.protocol.errors import WoprError
from wopr.runtime.holding import PUT_OFF_MS, Holding
from wopr.runtime.wakeups import STORE_AWAY_SECONDS, Waker
from wopr.store.port import RunRow
from wopr.store.port.peers import JobWorker, Peers

# Wake-ups that are further off than this are found in time by whoever looks.
NEAR_MS = 20_000

log = structlog.get_logger("wopr.queue")


class QueueSource:
    """`WakeupSource` on the store's queue. Its wake-ups are queued with the appends that cause them."""

    def __init__(self, peers: Peers, holding: Holding, *, at_once: int) -> None:
        self._peers = peers
        self._holding = holding
        self._at_once = at_once
        self._worker: JobWorker | None = None
        self._waker: Waker | None = None
        self._is_stopping = False
        self._stopped = anyio.Event()

    def start(self, tasks: anyio.abc.TaskGroup, waker: Waker) -> None:
        """Take wake-ups from the queue, if this process executes anything."""
        self._waker = waker
        if self._holding.executes:
            tasks.start_soon(self._work_forever)
        else:
            self._stopped.set()

    def noted(self, row: RunRow) -> None:
        """Look into the queue when a run of this process is due: the queue's own look may be later."""
        if self._worker is None or row.wake_at is None:
            return
        delay = row.wake_at - row.updated_at
        if 0 < delay <= NEAR_MS:
            asyncio.get_running_loop().call_later(delay / 1000, self._look)

    def woke(self, tenant: str, run_id: str) -> None:
        """The wake-up is in the queue since the commit."""

    async def tell(self, tenant: str, run_id: str, process: str) -> None:
        """Pass a wake-up on to the process that has the run."""
        await self._peers.tell(tenant, run_id, process)

    async def stop(self) -> None:
        """Take no more from the queue, and wait for what was begun."""
        self._is_stopping = True
        if self._worker is not None:
            self._worker.stop()
        await self._stopped.wait()

    def _look(self) -> None:
        if self._worker is not None:
            self._worker.look()

    async def _work_forever(self) -> None:
        try:
            while not self._is_stopping:
                self._worker = self._peers.worker(self._advance, self._at_once)
                try:
                    await self._worker.run()
                except WoprError as error:
                    log.error("the queue waits for the store", message=str(error))
                if not self._is_stopping:
                    await anyio.sleep(STORE_AWAY_SECONDS)
        finally:
            self._worker = None
            self._stopped.set()

    async def _advance(self, tenant: str, run_id: str) -> None:
        if self._waker is None:
            return
        # What this process has needs no more room, and nobody else may wake it.
        if not (self._holding.has(tenant, run_id) or self._holding.may_take(tenant)):
            # Others may have room; and those who wait in the queue behind it should not wait too.
            await self._peers.queue(tenant, run_id, PUT_OFF_MS)
            return
        await self._waker.now(tenant, run_id)
