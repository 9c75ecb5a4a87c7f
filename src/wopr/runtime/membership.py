"""This process among those that share a store: its signs of life, its duties, and its leaving."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import anyio
import anyio.abc
import structlog

from wopr.protocol.errors import WoprError
from wopr.runtime.advance import Advancer
from wopr.runtime.duties import Duty
from wopr.runtime.metrics import Metrics
from wopr.store.port.peers import Peers, Process

BEAT_SECONDS = 2.0
# A lead that was not renewed for so long is somebody else's by now.
LEAD_SECONDS = 5.0
LOOK_SECONDS = 1.0
# A sign of life that is this late was held up; where one process was, others may have been too.
LATE_SECONDS = 2 * BEAT_SECONDS
# Runs that this process has by the store's word and not by its own are looked for so often.
LOOKS_PER_COUNT = 5
# Runs that wait for code of this process are taken up so many at a time.
MOST_TAKEN_UP = 100

log = structlog.get_logger("wopr.peers")


class Membership:
    """Keeps this process known to the others, and does what only one of them should."""

    def __init__(
        self,
        peers: Peers,
        advancer: Advancer,
        metrics: Metrics,
        *,
        process: Process,
        duties: Sequence[Duty],
    ) -> None:
        self._peers = peers
        self._advancer = advancer
        self._metrics = metrics
        self._duties = duties
        self._process = process
        self._duty: anyio.CancelScope | None = None
        self._is_leaving = False
        self._has_left = False
        self._beating = anyio.Lock()
        self._on_duty = anyio.Lock()
        # Of a clock that goes on while the process is stopped.
        self._beat_at = time.monotonic()
        self._trusts_from = self._beat_at

    @property
    def leads(self) -> bool:
        """Whether the duties are this process's."""
        return self._duty is not None

    @property
    def silent_seconds(self) -> float:
        """How long ago the last sign of life was taken."""
        return time.monotonic() - self._beat_at

    async def join(self) -> None:
        """Be known, before anything is claimed."""
        await self._peers.beat(self._process)
        self._beat_at = time.monotonic()

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Go on being known."""
        tasks.start_soon(self._beat_forever, tasks)
        tasks.start_soon(self._look_forever)

    async def leave(self, seconds: float) -> None:
        """Let nodes in flight end for so long, then give back what is left and be known no longer."""
        self._is_leaving = True
        self._process = replace(self._process, executes=False)
        self._advancer.holding.executes = False
        self._stop_duties()
        async with self._beating:
            with suppress(WoprError):
                # Not to be renewed while nodes end: another one leads meanwhile.
                await self._peers.beat(self._process, leads=False)
        await self._advancer.wakeups.source.stop()
        with anyio.move_on_after(seconds):
            await self._advancer.holding.until_empty()
        self._drop_all()
        # Whoever gives a sign of life after leaving is there again.
        async with self._beating:
            self._has_left = True
            with suppress(WoprError):
                await self._peers.leave(self._process.name, self._advancer.journal.now())

    async def _beat_forever(self, tasks: anyio.abc.TaskGroup) -> None:
        while True:
            # Not cut off in the middle: the connection would be lost with it.
            with anyio.CancelScope(shield=True):
                async with self._beating:
                    if not self._has_left:
                        await self._beat(tasks)
            await anyio.sleep(BEAT_SECONDS)

    async def _beat(self, tasks: anyio.abc.TaskGroup) -> None:
        try:
            beat = await self._peers.beat(self._process, leads=not self._is_leaving)
        except WoprError as error:
            log.error("no sign of life is taken", code=error.code, message=str(error))
            if self.silent_seconds > LEAD_SECONDS:
                self._stop_duties()
            return
        if beat.is_new:
            # Taken for dead: the runs are others' by now.
            log.warning("this process was taken for dead", process=self._process.name)
            self._drop_all()
        was_late = self.silent_seconds > LATE_SECONDS
        self._beat_at = time.monotonic()
        if was_late:
            self._trusts_from = self._beat_at + BEAT_SECONDS
        self._lead(tasks, beat.leads)

    def _lead(self, tasks: anyio.abc.TaskGroup, leads: bool) -> None:
        if not leads:
            self._stop_duties()
        elif self._duty is None:
            self._duty = anyio.CancelScope()
            tasks.start_soon(self._do_duties, self._duty)

    def _stop_duties(self) -> None:
        duty, self._duty = self._duty, None
        if duty is not None:
            duty.cancel()

    async def _do_duties(self, scope: anyio.CancelScope) -> None:
        # Duties that were stopped may still finish something: no second set beside them.
        with scope:
            async with self._on_duty, anyio.create_task_group() as tasks:
                log.info("this process leads", process=self._process.name)
                for duty in self._duties:
                    tasks.start_soon(duty)

    async def _look_forever(self) -> None:
        looks = 0
        while True:
            try:
                with anyio.CancelScope(shield=True):
                    await self._look(is_counting=looks % LOOKS_PER_COUNT == 0)
            except WoprError as error:
                log.error("rescue waits for the store", code=error.code, message=str(error))
            looks += 1
            await anyio.sleep(LOOK_SECONDS)

    async def _look(self, *, is_counting: bool) -> None:
        now = self._advancer.journal.now()
        if self._may_judge():
            freed = await self._peers.rescue(now)
            if freed:
                self._metrics.rescued(freed)
                log.warning("runs of a dead process are taken up", runs=freed)
        await self._peers.queue_due(now)
        if is_counting:
            for tenant, run_id in await self._peers.held(self._process.name):
                # An append whose answer was lost may have taken it.
                if run_id not in self._advancer.runs:
                    self._advancer.wakeups.soon(tenant, run_id)
        if self._advancer.holding.executes:
            await self._take_up_waiting()

    async def _take_up_waiting(self) -> None:
        """Advance runs that wait for code that this process has."""
        code = self._process.code
        for tenant, run_id in await self._peers.waiting_for(code, MOST_TAKEN_UP):
            if self._advancer.holding.may_take(tenant):
                self._advancer.wakeups.soon(tenant, run_id)

    def _may_judge(self) -> bool:
        """Whether old signs of life mean death: not when all may have been held up as this one was.

        It would bury itself and those who are about to speak.
        """
        return self.silent_seconds <= LATE_SECONDS and time.monotonic() >= self._trusts_from

    def _drop_all(self) -> None:
        for run in list(self._advancer.runs.values()):
            if run.is_held:
                self._advancer.executing.drop(run)
                self._advancer.release(run)
