"""The worker that takes wake-ups from the queue. Procrastinate runs it on separate connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import anyio
import psycopg
from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import ProcrastinateException
from procrastinate.jobs import DeleteJobCondition
from procrastinate.worker import Worker

from wopr.protocol.errors import Unavailable
from wopr.store.postgres.database import Connection, Database
from wopr.store.postgres.schema_constants import DEAD_AFTER_SECONDS, QUEUE, TASK

_CONNECTIONS = 3
_POLL_SECONDS = 0.5
_HEARTBEAT_SECONDS = 2.0
_GRACE_SECONDS = 5.0

# Procrastinate logs three lines for each job.
logging.getLogger("procrastinate").setLevel(logging.CRITICAL)


class ProcrastinateWorker:
    """`JobWorker` with Procrastinate."""

    def __init__(
        self, db: Database, advance: Callable[[str, str], Awaitable[None]], at_once: int
    ) -> None:
        self._db = db
        self._advance = advance
        self._at_once = at_once
        self._worker: Worker | None = None
        self._is_stopped = False

    async def run(self) -> None:
        """Work until stopped. Raises `Unavailable` when the store cannot be reached."""
        app = App(connector=_connector(self._db))

        async def advance(tenant: str, run_id: str) -> None:
            await self._advance(tenant, run_id)

        app.task(name=TASK, queue=QUEUE)(advance)
        try:
            async with app.open_async():
                await self._work(app)
        except (ProcrastinateException, psycopg.Error, OSError) as error:
            raise Unavailable(
                "the queue is not available: the database cannot be reached"
            ) from error

    def stop(self) -> None:
        """Take no more wake-ups; `run` ends when those in progress have ended."""
        self._is_stopped = True
        if self._worker is not None:
            self._worker.stop()  # type: ignore[no-untyped-call]  # it has no types

    async def _work(self, app: App) -> None:
        if self._is_stopped:
            return
        worker = Worker(
            app,
            queues=[QUEUE],
            concurrency=self._at_once,
            fetch_job_polling_interval=_POLL_SECONDS,
            shutdown_graceful_timeout=_GRACE_SECONDS,
            delete_jobs=DeleteJobCondition.ALWAYS,
            install_signal_handlers=False,
            update_heartbeat_interval=_HEARTBEAT_SECONDS,
            stalled_worker_timeout=DEAD_AFTER_SECONDS,
        )
        # A separate task, so that the worker can stop gracefully when this task is cancelled.
        working = asyncio.create_task(
            worker.run()  # type: ignore[no-untyped-call]  # it has no types
        )
        try:
            # The first step of `run` resets a request to stop, so let it run first.
            await asyncio.sleep(0)
            self._worker = worker
            if not self._is_stopped:
                await asyncio.wait([working])
        finally:
            worker.stop()  # type: ignore[no-untyped-call]  # it has no types
            with anyio.CancelScope(shield=True):
                await asyncio.wait([working])
            self._worker = None
        working.result()


def _connector(db: Database) -> PsycopgConnector:
    return PsycopgConnector(
        conninfo=db.conninfo,
        configure=_enable_autocommit,
        min_size=1,
        max_size=_CONNECTIONS,
        timeout=_GRACE_SECONDS,
    )


async def _enable_autocommit(connection: Connection) -> None:
    await connection.set_autocommit(True)
