"""Appends of one process, several to a transaction.

PostgreSQL lets only one transaction with a notification commit at a time, and waits for the disk
meanwhile; so what is queued while one commits goes into the next together, and the wait is paid
once per group. Calls that touch several runs, or the audit log, have transactions of their own:
a group must not wait for another group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import psycopg

from wopr.protocol.errors import WoprError
from wopr.store.port import Batch
from wopr.store.postgres.append import APPEND, APPEND_EACH, Appending, appending, is_held_here
from wopr.store.postgres.append_more import has_more, write_more
from wopr.store.postgres.database import Connection, Database, Transaction, execute
from wopr.store.postgres.faults import is_disconnection

# A bound on how long the first call of a group waits for the last.
GROUP_LIMIT = 64
WIDTH = 2


class _Job(NamedTuple):
    call: Appending
    done: asyncio.Future[bool]


class Lanes:
    """Appends in groups, on up to two connections at once."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._queue: deque[_Job] = deque()
        self._draining = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def append(self, tenant: str, batches: Sequence[Batch]) -> bool:
        """Write every batch or none, durably; False when another process has what is claimed."""
        call = appending(tenant, batches)
        if len(batches) == 1 and call.locks is None and not has_more(batches):
            return await self._grouped(call)
        return await self._alone(call, batches)

    async def finish(self) -> None:
        """Wait until the last queued call is committed."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _grouped(self, call: Appending) -> asyncio.Future[bool]:
        """Queue a call. A caller that stops waiting does not take it back."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._queue.append(_Job(call, done))
        # Counted here and in the lane itself: a task is done some time after its last look.
        if self._draining < WIDTH:
            self._draining += 1
            lane = asyncio.create_task(self._drain())
            self._tasks.add(lane)
            lane.add_done_callback(self._tasks.discard)
        return done

    async def _drain(self) -> None:
        try:
            while self._queue:
                count = min(len(self._queue), GROUP_LIMIT)
                await self._settle([self._queue.popleft() for _ in range(count)])
        finally:
            self._draining -= 1

    async def _settle(self, jobs: Sequence[_Job]) -> None:
        try:
            await self._commit(jobs)
        except Exception as error:
            if len(jobs) == 1 or _is_in_doubt(error):
                for job in jobs:
                    _fail(job, error)
                return
            # Somebody's fault, not everybody's: each alone, so that only the guilty one fails.
            for job in jobs:
                await self._settle([job])

    async def _commit(self, jobs: Sequence[_Job]) -> None:
        async with self._db.connection("append") as connection:
            if len(jobs) == 1:
                call = jobs[0].call
                values = call.values(self._db.token(connection, call.tenant))
                answers = [await _answer(await execute(connection, APPEND, values))]
            else:
                answers = await self._write(connection, [job.call for job in jobs])
        for job, answer in zip(jobs, answers, strict=True):
            _resolve(job, answer)

    async def _alone(self, call: Appending, batches: Sequence[Batch]) -> bool:
        async def write(transaction: Transaction) -> bool:
            cursor = await execute(transaction.connection, APPEND, call.values(transaction.token))
            is_held = is_held_here(await _answer(cursor), call.run_id)
            await write_more(transaction, batches)
            return is_held

        return await self._db.run(call.tenant, write)

    async def _write(self, connection: Connection, calls: Sequence[Appending]) -> list[str]:
        """Make several calls in one statement, which is one transaction."""
        tokens: dict[str, str] = {}
        for call in calls:
            if call.tenant not in tokens:
                tokens[call.tenant] = self._db.token(connection, call.tenant)
        values = (
            [tokens[call.tenant] for call in calls],
            [call.document for call in calls],
            [blob for call in calls for blob in call.blobs],
            [len(call.blobs) for call in calls],
        )
        cursor = await execute(connection, APPEND_EACH, values)
        return [str(answer) for (answer,) in await cursor.fetchall()]


def _is_in_doubt(error: Exception) -> bool:
    """Whether it may have been written after all: to write it again would find it there."""
    return isinstance(error.__cause__, psycopg.Error) and is_disconnection(error.__cause__)


async def _answer(cursor: psycopg.AsyncCursor[tuple[object, ...]]) -> str:
    [(answer,)] = await cursor.fetchall()
    return str(answer)


def _resolve(job: _Job, answer: str) -> None:
    try:
        is_held = is_held_here(answer, job.call.run_id)
    except WoprError as refused:
        _fail(job, refused)
    else:
        # A caller that was cancelled waits no longer.
        if not job.done.done():
            job.done.set_result(is_held)


def _fail(job: _Job, error: Exception) -> None:
    if not job.done.done():
        job.done.set_exception(error)
