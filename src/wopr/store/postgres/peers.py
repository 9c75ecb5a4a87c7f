"""Processes that share the database: heartbeats, leases, the queue of wake-ups, and notifications.

A notification says that a run has new events, never their content. It is sent in the transaction
that writes the events, so that every listener finds them. After a lost connection the listener
yields `ListenerConnected`, and its user reads the store again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import anyio
import msgspec
import psycopg
import structlog
from psycopg import AsyncConnection

from wopr.store.port.peers import (
    CachedResource,
    DeliveriesQueued,
    HeartbeatResult,
    JobWorker,
    KnownProcess,
    ListenerConnected,
    Notification,
    PeerFacts,
    Process,
    ResourceChanged,
    RunAnnotated,
    RunAppended,
    RunWoken,
)
from wopr.store.port.runs import TOOL_PREFIX
from wopr.store.postgres.database import Database, execute
from wopr.store.postgres.jobs import ProcrastinateWorker
from wopr.store.postgres.pool import Address
from wopr.store.postgres.schema_constants import DEAD_AFTER_SECONDS

CHANNEL = "wopr"

_RECONNECT_SECONDS = 1.0

# The connection is tested after this time without a notification.
_SILENCE_SECONDS = 15.0

log = structlog.get_logger("wopr.store")
_decoder = msgspec.json.Decoder(list[str | int])


async def listen(address: Address) -> AsyncGenerator[Notification, None]:
    """Yield the notifications of all processes; `ListenerConnected` after each connection."""
    while True:
        try:
            async with await AsyncConnection.connect(
                address.conninfo, autocommit=True
            ) as connection:
                await connection.execute(f"LISTEN {CHANNEL}")
                yield ListenerConnected()
                while True:
                    async for notification in connection.notifies(timeout=_SILENCE_SECONDS):
                        yield _decode_notification(notification.payload)
                    await connection.execute("SELECT 1")
        except psycopg.Error as error:
            log.warning(
                "the listener lost its connection", error=error.sqlstate or type(error).__name__
            )
        await anyio.sleep(_RECONNECT_SECONDS)


def _decode_notification(payload: str) -> Notification:
    """Decode a payload. The second of four elements is its kind.

    Every login can notify, and a newer process may send other kinds. On an unknown payload the
    listener reads everything again.
    """
    try:
        elements = _decoder.decode(payload)
    except msgspec.MsgspecError:
        return ListenerConnected()
    match elements:
        case [str(tenant), str(run_id), int(sequence)]:
            return RunAppended(tenant=tenant, run_id=run_id, sequence=sequence)
        case [str(tenant), str(run_id), str(annotation_id)]:
            return RunAnnotated(tenant=tenant, run_id=run_id, annotation_id=annotation_id)
        case [str(tenant), "woken", str(run_id), str(process)]:
            return RunWoken(tenant=tenant, run_id=run_id, process=process)
        case [str(tenant), "changed", str(resource), str(name)]:
            return ResourceChanged(
                tenant=tenant, resource=cast(CachedResource, resource), name=name
            )
        case [str(tenant), "owed", str(webhook_id), _]:
            return DeliveriesQueued(tenant=tenant, webhook_id=webhook_id)
        case _:
            return ListenerConnected()


# Heartbeats use the database's clock, so that the clocks of machines may differ.
_HEARTBEAT = """
INSERT INTO processes (process_id, kind, code_version, node_types, executes)
VALUES (%s, %s, %s, %s::text[], %s)
ON CONFLICT (process_id) DO UPDATE
SET beat_at = clock_timestamp(), executes = excluded.executes RETURNING xmax = 0
"""
_PROCESSES = """
SELECT process_id, kind, code_version, node_types, executes,
    (extract(epoch FROM started_at) * 1000)::bigint, (extract(epoch FROM beat_at) * 1000)::bigint
FROM processes ORDER BY started_at, process_id
"""
_HAND_OVER = "SELECT host_hand_over(%s, %s, %s, %s::text[])"
_WAITING_FOR = "SELECT tenant, id FROM host_waiting_for_code(%s::text[], %s)"
# The process that has the lease `duties` is the leader.
_ACQUIRE_LEADERSHIP = f"""
INSERT INTO leases AS l (name, process_id) VALUES ('duties', %s)
ON CONFLICT (name) DO UPDATE
SET process_id = excluded.process_id, renewed_at = clock_timestamp()
WHERE l.process_id = excluded.process_id
    OR l.renewed_at < clock_timestamp() - interval '{DEAD_AFTER_SECONDS} seconds'
RETURNING 1
"""
_RELEASE_LEADERSHIP = """
UPDATE leases SET renewed_at = '-infinity' WHERE name = 'duties' AND process_id = %s RETURNING 1
"""
_RESCUE = "SELECT host_rescue(%s)"
_DROP_STALLED = "SELECT host_drop_stalled()"
_QUEUE_DUE = "SELECT host_queue_due(%s, %s)"
_TAKE_DUE = "SELECT tenant, id FROM host_take_due(%s, %s)"
_TAKE = "SELECT tenant, id FROM host_take(%s, %s::text[])"
_QUEUE = "SELECT queue_wake(%s, %s, %s, 0)"
_NOTIFY_HOLDER = (
    "SELECT pg_notify('wopr', jsonb_build_array(%s::text, 'woken', %s::text, %s::text)::text)"
)
_NOTIFY_DELIVERY = (
    "SELECT pg_notify('wopr', jsonb_build_array(%s::text, 'owed', %s::text, '')::text)"
)
_RUNS_HELD_BY = "SELECT tenant, id FROM host_held_by(%s)"
_RELEASE_RUNS = "SELECT tenant, id FROM host_hand_back(%s, %s)"
_SHARE_FACT = """
WITH mine AS (
    INSERT INTO shared_facts (name, value) VALUES (%s, %s) ON CONFLICT (name) DO NOTHING
    RETURNING value
)
SELECT value FROM mine UNION ALL SELECT value FROM shared_facts WHERE name = %s
"""
_ANNOTATION = """
SELECT body FROM annotations WHERE tenant = %s AND run_id = %s AND annotation_id = %s
"""
# A lock of the transaction, which a lost connection also releases.
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('wopr alone'), hashtext(%s))"
_LEASES = """
SELECT kind || ':' || process_id, extract(epoch FROM clock_timestamp() - beat_at)::float8
FROM processes ORDER BY process_id
"""
_QUEUE_FACTS = """
SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(
    coalesce(j.scheduled_at, (SELECT min(e.at) FROM procrastinate_events e WHERE e.job_id = j.id))
)), 0)::float8
FROM procrastinate_jobs j
WHERE j.status = 'todo' AND (j.scheduled_at IS NULL OR j.scheduled_at <= clock_timestamp())
"""
_HELD_RUNS = "SELECT host_held()"

_QUEUED_AT_ONCE = 500


class PostgresPeers:
    """`Peers` on PostgreSQL."""

    def __init__(self, db: Database, *, owns_tables: bool) -> None:
        self._db = db
        self.owns_tables = owns_tables

    def notifications(self) -> AsyncGenerator[Notification, None]:
        """Yield the notifications of all processes, on a separate connection."""
        return listen(self._db.address)

    async def heartbeat(self, process: Process, *, leads: bool = True) -> HeartbeatResult:
        """Send a heartbeat, and acquire, renew or release the leader's lease."""
        values = (process.name, process.kind, process.code_version, process.code)
        [(is_new,)] = await self._db.write_host(_HEARTBEAT, (*values, process.executes))
        found = await self._db.write_host(
            _ACQUIRE_LEADERSHIP if leads else _RELEASE_LEADERSHIP, (process.name,)
        )
        return HeartbeatResult(is_new=is_new, leads=leads and bool(found))

    async def rescue(self, now: int) -> int:
        """Release the runs of processes without a heartbeat, and delete their queued jobs."""
        [(freed,)] = await self._db.write_host(_RESCUE, (now,))
        await self._db.write_host(_DROP_STALLED)
        return int(freed)

    async def queue_due(self, now: int) -> int:
        """Queue a wake-up for each held run that is due soon, and for each overdue run."""
        [(queued,)] = await self._db.write_host(_QUEUE_DUE, (now, _QUEUED_AT_ONCE))
        return int(queued)

    async def take_due(self, now: int, limit: int) -> list[tuple[str, str]]:
        """Take runs that are due and that no process holds, each for one caller."""
        rows = await self._db.write_host(_TAKE_DUE, (now, limit))
        return [(row[0], row[1]) for row in rows]

    async def take_runs(self, now: int, run_ids: Sequence[str]) -> list[tuple[str, str]]:
        """Take those of these runs that are due and that no process holds."""
        rows = await self._db.write_host(_TAKE, (now, list(run_ids)))
        return [(row[0], row[1]) for row in rows]

    async def queue_wakeup(self, tenant: str, run_id: str, delay_ms: int) -> None:
        """Queue a wake-up of one run."""
        await self._db.write_host(_QUEUE, (tenant, run_id, delay_ms))

    async def notify_holder(self, tenant: str, run_id: str, process: str) -> None:
        """Notify the process that holds a run that the run was woken."""
        await self._db.write_host(_NOTIFY_HOLDER, (tenant, run_id, process))

    async def processes(self) -> list[KnownProcess]:
        """List the live processes, oldest first."""
        return [
            KnownProcess(
                process=Process(
                    name=row[0],
                    kind=row[1],
                    code_version=row[2],
                    node_types=tuple(n for n in row[3] if not n.startswith(TOOL_PREFIX)),
                    tools=tuple(
                        n.removeprefix(TOOL_PREFIX) for n in row[3] if n.startswith(TOOL_PREFIX)
                    ),
                    executes=row[4],
                ),
                started_at=row[5],
                seen_at=row[6],
            )
            for row in await self._db.read_host(_PROCESSES)
        ]

    async def hand_over(self, tenant: str, run_id: str, process: str, needs: Sequence[str]) -> bool:
        """Wake a run at its holder, or at a process that has all the code of one of its nodes."""
        values = (tenant, run_id, process, list(needs))
        [(is_notified,)] = await self._db.write_host(_HAND_OVER, values)
        return bool(is_notified)

    async def waiting_for(self, code: Sequence[str], limit: int) -> list[tuple[str, str]]:
        """List runs that no process holds and that wait for this code, with their tenants."""
        rows = await self._db.read_host(_WAITING_FOR, (list(code), limit))
        return [(row[0], row[1]) for row in rows]

    async def notify_delivery(self, tenant: str, webhook_id: str) -> None:
        """Notify the process that delivers that a webhook has new deliveries."""
        await self._db.write_host(_NOTIFY_DELIVERY, (tenant, webhook_id))

    async def held_runs(self, process: str) -> list[tuple[str, str]]:
        """List the runs that this process holds, with their tenants."""
        return [(row[0], row[1]) for row in await self._db.read_host(_RUNS_HELD_BY, (process,))]

    async def leave(self, process: str, now: int) -> None:
        """Release all runs, so that other processes take them at once, and delete the process."""
        for tenant, run_id in await self._db.write_host(_RELEASE_RUNS, (process, now)):
            await self.queue_wakeup(tenant, run_id, 0)

    async def share_fact(self, name: str, value: str) -> str:
        """Store a value that all processes must share, and return the first stored value."""
        while True:
            # No row if another process inserted it after this statement took its snapshot.
            found = await self._db.write_host(_SHARE_FACT, (name, value, name))
            if found:
                return str(found[0][0])

    @asynccontextmanager
    async def exclusive(self, name: str) -> AsyncGenerator[None, None]:
        """Wait until no other process is in a block of the same name."""
        async with self._db.connection("alone") as connection, connection.transaction():
            await execute(connection, _LOCK, (name,))
            yield

    def create_worker(
        self, advance: Callable[[str, str], Awaitable[None]], at_once: int
    ) -> JobWorker:
        """Return a worker that calls `advance` with the tenant and the id of each due run."""
        return ProcrastinateWorker(self._db, advance, at_once)

    async def annotation(self, tenant: str, run_id: str, annotation_id: str) -> bytes | None:
        """Return the document of one annotation."""
        rows = await self._db.read(tenant, _ANNOTATION, (tenant, run_id, annotation_id))
        return rows[0][0] if rows else None

    async def facts(self) -> PeerFacts:
        """Return figures of the processes and their queue."""
        [(depth, age)] = await self._db.read_host(_QUEUE_FACTS)
        [(held,)] = await self._db.read_host(_HELD_RUNS)
        return PeerFacts(
            queue_depth=depth,
            queue_age_seconds=age,
            held_runs=held,
            lease_ages={row[0]: row[1] for row in await self._db.read_host(_LEASES)},
        )
