"""The writer: one thread that commits all waiting jobs in one transaction.

While a commit waits for the disk, new jobs are queued, and the next transaction takes all of them.
So there is one wait for the disk per group and not per job. A future resolves after the commit of
its job.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeAlias, TypeVar, cast

from wopr.protocol.errors import Unavailable, WoprError
from wopr.store.sqlite.connections import unavailable_error

T = TypeVar("T")

# The largest number of jobs in a group, because the first waits for the last.
GROUP_LIMIT = 256


class _Job(Generic[T]):
    """One closure, the future of its caller, and its result."""

    __slots__ = ("error", "future", "result", "work")

    error: Exception | None
    result: T

    def __init__(
        self, work: Callable[[sqlite3.Connection], T], future: asyncio.Future[T] | Future[T]
    ) -> None:
        self.work = work
        self.future = future
        self.error = None


_Jobs: TypeAlias = Sequence[_Job[object]]


class Writer:
    """Runs closures on its own thread and connection, in groups.

    A closure checks first and then writes. A `WoprError` that it raises before it has written fails
    only its own job. Any other error rolls the group back, and each job runs again in its own
    transaction, so that only the failing job fails.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        # A SimpleQueue is written in C, and much faster than a Condition.
        self._queue: SimpleQueue[_Job[object] | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="wopr-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Queue `work`, and return a future of its result after the commit.

        A job whose caller is cancelled may still be committed. Raises `Unavailable` after `refuse`.
        """
        if self._closed:
            raise Unavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(cast("_Job[object]", _Job(work, future)))
        return future

    def call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work`, and return its result after the commit, also while the event loop is blocked.

        Call it on another thread than the loop's. Raises `Unavailable` after `refuse`.
        """
        if self._closed:
            raise Unavailable("the store is closed")
        future: Future[T] = Future()
        self._queue.put(cast("_Job[object]", _Job(work, future)))
        return future.result()

    def refuse(self) -> None:
        """Refuse new jobs; queued jobs still run."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)

    def finish(self) -> None:
        """Wait until the last job is committed. Blocks: call it on a thread, after `refuse`."""
        self._thread.join()

    def close(self) -> None:
        """Release the connection, after `finish`."""
        self._connection.close()

    def _serve(self) -> None:
        while (first := self._queue.get()) is not None:
            jobs = [first]
            # This thread is the only consumer, so the queue has at least this many jobs.
            for _ in range(min(self._queue.qsize(), GROUP_LIMIT - 1)):
                job = self._queue.get()
                if job is None:
                    self._queue.put(None)
                    break
                jobs.append(job)
            self._commit(jobs)
            # The caller of `call` waits on another thread, because the loop may be blocked.
            _resolve([job for job in jobs if isinstance(job.future, Future)])
            self._resolve_on_loop(jobs)

    def _commit(self, jobs: _Jobs) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            # No job caused this error, so no job is tried alone: each would wait for the lock
            # again.
            _fail(jobs, error)
            return
        try:
            for job in jobs:
                self._run(job)
            self._connection.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            if len(jobs) == 1:
                _fail(jobs, error)
                return
            for job in jobs:
                self._commit((job,))

    def _run(self, job: _Job[object]) -> None:
        before = self._connection.total_changes
        try:
            job.error = None
            job.result = job.work(self._connection)
        except WoprError as refused:
            if self._connection.total_changes != before:
                raise
            job.error = refused

    def _roll_back(self) -> None:
        # Some errors have already ended the transaction.
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def _resolve_on_loop(self, jobs: _Jobs) -> None:
        # One wake-up of the loop for the group. No caller waits after the loop has stopped.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_resolve, jobs)


def _fail(jobs: _Jobs, error: Exception) -> None:
    for job in jobs:
        if isinstance(error, sqlite3.Error):
            job.error = unavailable_error(error)
            job.error.__cause__ = error
        else:
            job.error = error


def _resolve(jobs: _Jobs) -> None:
    for job in jobs:
        if job.future.done():
            continue  # the caller was cancelled, or waited on another thread
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)
