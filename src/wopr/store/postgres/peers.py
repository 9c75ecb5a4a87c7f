"""The part that several processes on one database find each other by."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from wopr.store.port.peers import Beat, JobWorker, KnownProcess, News, PeerFacts, Process
from wopr.store.port.runs import TOOL_PREFIX
from wopr.store.postgres.database import Database, execute
from wopr.store.postgres.jobs import ProcrastinateWorker
from wopr.store.postgres.notify import listen
from wopr.store.postgres.schema_peers import DEAD_AFTER_SECONDS

# Signs of life go by the database's clock, so that no two machines need agree on the time.
_BEAT = """
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
_LEAD = f"""
INSERT INTO leases AS l (name, process_id) VALUES ('duties', %s)
ON CONFLICT (name) DO UPDATE
SET process_id = excluded.process_id, renewed_at = clock_timestamp()
WHERE l.process_id = excluded.process_id
    OR l.renewed_at < clock_timestamp() - interval '{DEAD_AFTER_SECONDS} seconds'
RETURNING 1
"""
_RESIGN = """
UPDATE leases SET renewed_at = '-infinity' WHERE name = 'duties' AND process_id = %s RETURNING 1
"""
_RESCUE = "SELECT host_rescue(%s)"
_DROP_STALLED = "SELECT host_drop_stalled()"
_QUEUE_DUE = "SELECT host_queue_due(%s, %s)"
_TAKE_DUE = "SELECT tenant, id FROM host_take_due(%s, %s)"
_TAKE = "SELECT tenant, id FROM host_take(%s, %s::text[])"
_QUEUE = "SELECT queue_wake(%s, %s, %s, 0)"
_TELL = "SELECT pg_notify('wopr', jsonb_build_array(%s::text, 'woken', %s::text, %s::text)::text)"
_OWE = "SELECT pg_notify('wopr', jsonb_build_array(%s::text, 'owed', %s::text, '')::text)"
_HELD = "SELECT tenant, id FROM host_held_by(%s)"
_HAND_BACK = "SELECT tenant, id FROM host_hand_back(%s, %s)"
_AGREE = """
WITH mine AS (
    INSERT INTO shared_facts (name, value) VALUES (%s, %s) ON CONFLICT (name) DO NOTHING
    RETURNING value
)
SELECT value FROM mine UNION ALL SELECT value FROM shared_facts WHERE name = %s
"""
_ANNOTATION = """
SELECT body FROM annotations WHERE tenant = %s AND run_id = %s AND annotation_id = %s
"""
# The transaction's lock, so that it ends with the connection too, however that ends.
_ALONE = "SELECT pg_advisory_xact_lock(hashtext('wopr alone'), hashtext(%s))"
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

    def news(self) -> AsyncGenerator[News, None]:
        """Hear of what any process writes, on a connection of its own."""
        return listen(self._db.address)

    async def beat(self, process: Process, *, leads: bool = True) -> Beat:
        """Give a sign of life, and take or keep the lead where nobody else has it, or give it up."""
        values = (process.name, process.kind, process.code_version, process.code)
        [(is_new,)] = await self._db.tell(_BEAT, (*values, process.executes))
        found = await self._db.tell(_LEAD if leads else _RESIGN, (process.name,))
        return Beat(is_new=is_new, leads=leads and bool(found))

    async def rescue(self, now: int) -> int:
        """Free the runs of processes that gave no sign of life, and drop what they had queued."""
        [(freed,)] = await self._db.tell(_RESCUE, (now,))
        await self._db.tell(_DROP_STALLED)
        return int(freed)

    async def queue_due(self, now: int) -> int:
        """Queue a wake-up for each held run that is due soon, and each overdue run, without one."""
        [(queued,)] = await self._db.tell(_QUEUE_DUE, (now, _QUEUED_AT_ONCE))
        return int(queued)

    async def take_due(self, now: int, limit: int) -> list[tuple[str, str]]:
        """Take runs that are due and that no process holds, each for one caller."""
        rows = await self._db.tell(_TAKE_DUE, (now, limit))
        return [(row[0], row[1]) for row in rows]

    async def take(self, now: int, run_ids: Sequence[str]) -> list[tuple[str, str]]:
        """Take those of these runs that are due and that no process holds."""
        rows = await self._db.tell(_TAKE, (now, list(run_ids)))
        return [(row[0], row[1]) for row in rows]

    async def queue(self, tenant: str, run_id: str, delay_ms: int) -> None:
        """Queue a wake-up of one run."""
        await self._db.tell(_QUEUE, (tenant, run_id, delay_ms))

    async def tell(self, tenant: str, run_id: str, process: str) -> None:
        """Tell the process that has a run that it was woken."""
        await self._db.tell(_TELL, (tenant, run_id, process))

    async def processes(self) -> list[KnownProcess]:
        """The processes that are alive, the oldest first."""
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
            for row in await self._db.ask(_PROCESSES)
        ]

    async def hand_over(self, tenant: str, run_id: str, process: str, needs: Sequence[str]) -> bool:
        """Wake a run at its holder, or at a process that executes one of these node types."""
        values = (tenant, run_id, process, list(needs))
        [(is_told,)] = await self._db.tell(_HAND_OVER, values)
        return bool(is_told)

    async def waiting_for(self, code: Sequence[str], limit: int) -> list[tuple[str, str]]:
        """Runs that no process holds and that wait for one of these types, with their tenants."""
        rows = await self._db.ask(_WAITING_FOR, (list(code), limit))
        return [(row[0], row[1]) for row in rows]

    async def owe(self, tenant: str, webhook_id: str) -> None:
        """Tell whoever delivers that a webhook has something new to be told."""
        await self._db.tell(_OWE, (tenant, webhook_id))

    async def held(self, process: str) -> list[tuple[str, str]]:
        """The runs that this process has, with their tenants."""
        return [(row[0], row[1]) for row in await self._db.ask(_HELD, (process,))]

    async def leave(self, process: str, now: int) -> None:
        """Give all runs back, to be taken up elsewhere at once, and be known no longer."""
        for tenant, run_id in await self._db.tell(_HAND_BACK, (process, now)):
            await self.queue(tenant, run_id, 0)

    async def agree(self, name: str, value: str) -> str:
        """Record a fact that all processes must share; answers with the one that came first."""
        while True:
            # Nothing when another process recorded it after this statement began to look.
            found = await self._db.tell(_AGREE, (name, value, name))
            if found:
                return str(found[0][0])

    @asynccontextmanager
    async def alone(self, name: str) -> AsyncGenerator[None, None]:
        """Wait until no other process is in a block of the same name."""
        async with self._db.connection("alone") as connection, connection.transaction():
            await execute(connection, _ALONE, (name,))
            yield

    def worker(self, advance: Callable[[str, str], Awaitable[None]], at_once: int) -> JobWorker:
        """Something that calls `advance` with the tenant and the id of each run that is due."""
        return ProcrastinateWorker(self._db, advance, at_once)

    async def annotation(self, tenant: str, run_id: str, annotation_id: str) -> bytes | None:
        """The document of one annotation that was told of."""
        rows = await self._db.read(tenant, _ANNOTATION, (tenant, run_id, annotation_id))
        return rows[0][0] if rows else None

    async def facts(self) -> PeerFacts:
        """How the processes and their queue are doing."""
        [(depth, age)] = await self._db.ask(_QUEUE_FACTS)
        [(held,)] = await self._db.ask(_HELD_RUNS)
        return PeerFacts(
            queue_depth=depth,
            queue_age_seconds=age,
            held_runs=held,
            lease_ages={row[0]: row[1] for row in await self._db.ask(_LEASES)},
        )
