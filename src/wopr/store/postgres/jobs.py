"""The worker that takes wake-ups from the queue: Procrastinate's own, on connections of its own."""

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
from wopr.store.postgres.schema_peers import DEAD_AFTER_SECONDS, QUEUE, TASK

_CONNECTIONS = 3
_LOOK_SECONDS = 0.5
_BEAT_SECONDS = 2.0
_GRACE_SECONDS = 5.0

# Each job would be three lines.
logging.getLogger("procrastinate").setLevel(logging.CRITICAL)


class ProcrastinateWorker:
    """`JobWorker` by Procrastinate."""

    def __init__(
        self, db: Database, advance: Callable[[str, str], Awaitable[None]], at_once: int
    ) -> None:
        self._db = db
        self._advance = advance
        self._at_once = at_once
        self._worker: Worker | None = None
        self._is_stopped = False

    async def run(self) -> None:
        """Work until stopped. Raises `Unavailable` when the store is away."""
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
        """Take no more; `run` ends when what was begun has."""
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
            fetch_job_polling_interval=_LOOK_SECONDS,
            shutdown_graceful_timeout=_GRACE_SECONDS,
            delete_jobs=DeleteJobCondition.ALWAYS,
            install_signal_handlers=False,
            update_heartbeat_interval=_BEAT_SECONDS,
            stalled_worker_timeout=DEAD_AFTER_SECONDS,
        )
        # A task of its own, so that a cancellation of this one lets the worker end in order.
        working = asyncio.create_task(worker.run())  # type: ignore[no-untyped-call]  # it has no types
        try:
            # The first step of `run` forgets earlier requests to stop, so none is made before it.
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
        configure=_commit_each,
        min_size=1,
        max_size=_CONNECTIONS,
        timeout=_GRACE_SECONDS,
    )


async def _commit_each(connection: Connection) -> None:
    await connection.set_autocommit(True)
