"""Membership of this process in a cluster: joining, heartbeats, leadership, rescue and leaving."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

import anyio
import anyio.abc
import structlog

from wopr.cluster.leases import Leases
from wopr.process.background import BackgroundTask
from wopr.process.metrics import Metrics
from wopr.protocol.errors import WoprError
from wopr.store.port.peers import Peers, Process

HEARTBEAT_SECONDS = 2.0
# A leader that has sent no heartbeat for this time is no longer the leader.
LEADER_TIMEOUT_SECONDS = 5.0
RESCUE_SECONDS = 1.0
# A heartbeat is late after this time. The cause may have delayed other processes too.
LATE_SECONDS = 2 * HEARTBEAT_SECONDS
# Every fifth round compares the leases in the store with the runs in memory.
ROUNDS_PER_COMPARISON = 5
# The most runs waiting for code that one round advances.
MAX_WAITING_RUNS = 100

# Runs until it is cancelled.
LeaderTask: TypeAlias = Callable[[], Coroutine[None, None, None]]

log = structlog.get_logger("wopr.cluster")


class Membership:
    """Sends heartbeats, rescues runs of dead processes, and runs the leader's tasks if it leads.

    `wake` advances a run in the background. `is_active` returns whether a run is in memory.
    `drop_runs` stops the nodes of all runs whose leases this process has. `stop_wakeups` stops
    taking runs from the queue.
    """

    def __init__(
        self,
        peers: Peers,
        leases: Leases,
        metrics: Metrics,
        *,
        process: Process,
        leader_tasks: Sequence[LeaderTask],
        now: Callable[[], int],
        wake: Callable[[str, str], None],
        is_active: Callable[[str], bool],
        drop_runs: Callable[[], None],
        stop_wakeups: Callable[[], Awaitable[None]],
    ) -> None:
        self._peers = peers
        self._leases = leases
        self._metrics = metrics
        self._leader_tasks = leader_tasks
        self._process = process
        self._now = now
        self._wake = wake
        self._is_active = is_active
        self._drop_runs = drop_runs
        self._stop_wakeups = stop_wakeups
        self._leader_scope: anyio.CancelScope | None = None
        self._is_leaving = False
        self._has_left = False
        self._heartbeat_lock = anyio.Lock()
        self._leader_lock = anyio.Lock()
        # A clock that also counts while the process is suspended.
        self._heartbeat_at = time.monotonic()
        self._trusts_others_from = self._heartbeat_at
        self._rounds = 0

    @property
    def leads(self) -> bool:
        """Return whether this process runs the leader's tasks."""
        return self._leader_scope is not None

    @property
    def heartbeat_age(self) -> float:
        """The seconds since the last successful heartbeat."""
        return time.monotonic() - self._heartbeat_at

    async def join(self) -> None:
        """Send the first heartbeat, before any lease is acquired."""
        await self._peers.heartbeat(self._process)
        self._heartbeat_at = time.monotonic()

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Send heartbeats and rescue runs of dead processes."""

        async def heartbeat() -> None:
            async with self._heartbeat_lock:
                if not self._has_left:
                    await self._send_heartbeat(tasks)

        for name, period, work in (
            ("heartbeat", HEARTBEAT_SECONDS, heartbeat),
            ("rescue", RESCUE_SECONDS, self._rescue_round),
        ):
            task = BackgroundTask(
                name, work, period=period, is_shielded=True, max_retry_seconds=period
            )
            tasks.start_soon(task.run)

    async def leave(self, seconds: float) -> None:
        """Wait up to `seconds` for nodes in flight, release all leases, and leave the cluster."""
        self._is_leaving = True
        self._process = replace(self._process, executes=False)
        self._leases.executes = False
        self._stop_leading()
        async with self._heartbeat_lock:
            with suppress(WoprError):
                # Another process becomes the leader while the nodes of this one end.
                await self._peers.heartbeat(self._process, leads=False)
        await self._stop_wakeups()
        with anyio.move_on_after(seconds):
            await self._leases.until_empty()
        self._drop_runs()
        # A heartbeat after this would make the process a member again.
        async with self._heartbeat_lock:
            self._has_left = True
            with suppress(WoprError):
                await self._peers.leave(self._process.name, self._now())

    async def _send_heartbeat(self, tasks: anyio.abc.TaskGroup) -> None:
        try:
            heartbeat = await self._peers.heartbeat(self._process, leads=not self._is_leaving)
        except WoprError:
            if self.heartbeat_age > LEADER_TIMEOUT_SECONDS:
                self._stop_leading()
            raise
        if heartbeat.is_new:
            # Other processes declared this one dead and have its runs now.
            log.warning("process was declared dead by others", process=self._process.name)
            self._drop_runs()
        was_late = self.heartbeat_age > LATE_SECONDS
        self._heartbeat_at = time.monotonic()
        if was_late:
            self._trusts_others_from = self._heartbeat_at + HEARTBEAT_SECONDS
        if not heartbeat.leads:
            self._stop_leading()
        elif self._leader_scope is None:
            self._leader_scope = anyio.CancelScope()
            tasks.start_soon(self._run_leader_tasks, self._leader_scope)

    def _stop_leading(self) -> None:
        scope, self._leader_scope = self._leader_scope, None
        if scope is not None:
            scope.cancel()

    async def _run_leader_tasks(self, scope: anyio.CancelScope) -> None:
        with scope:
            # Cancelled tasks may still be finishing: a second set must not run at the same time.
            async with self._leader_lock, anyio.create_task_group() as tasks:
                log.info("process became the leader", process=self._process.name)
                for task in self._leader_tasks:
                    tasks.start_soon(task)

    async def _rescue_round(self) -> None:
        self._rounds += 1
        await self._rescue(is_comparing=self._rounds % ROUNDS_PER_COMPARISON == 1)

    async def _rescue(self, *, is_comparing: bool) -> None:
        """Release leases of dead processes, queue due runs, and wake runs that wait for code."""
        now = self._now()
        if self._may_declare_dead():
            freed = await self._peers.rescue(now)
            if freed:
                self._metrics.count_rescued(freed)
                log.warning("runs of a dead process are released", runs=freed)
        await self._peers.queue_due(now)
        if is_comparing:
            for tenant, run_id in await self._peers.held_runs(self._process.name):
                # The reply to the append that acquired the lease may have been lost.
                if not self._is_active(run_id):
                    self._wake(tenant, run_id)
        if self._leases.executes:
            await self._wake_waiting_runs()

    async def _wake_waiting_runs(self) -> None:
        """Wake runs that wait for code that this process has."""
        for tenant, run_id in await self._peers.waiting_for(self._process.code, MAX_WAITING_RUNS):
            if self._leases.has_room_for(tenant):
                self._wake(tenant, run_id)

    def _may_declare_dead(self) -> bool:
        """Return whether an old heartbeat of another process means that it is dead.

        False while this process was late itself: the cause may have delayed all processes.
        """
        return self.heartbeat_age <= LATE_SECONDS and time.monotonic() >= self._trusts_others_from
