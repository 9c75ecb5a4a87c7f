"""The part that keeps long-term memory."""

from __future__ import annotations

from functools import partial
from itertools import groupby

from wopr.protocol.memory import is_memory_id, is_memory_ref, is_memory_tag
from wopr.store.port import MemoryRow
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.part import Part
from wopr.store.sql.dialect import Parameter
from wopr.store.sql.memories import check_memory
from wopr.store.sql.rows import MEMORY_COLUMNS, encoded, memory_row, texts

_INSERT = """
INSERT INTO memories (
    tenant, memory_ref, memory_id, content, tags, created_at, expires_at, run_id
) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (tenant, memory_ref, memory_id) DO NOTHING RETURNING place
"""

_INSERT_TAGS = """
INSERT INTO memory_tags (tenant, memory_ref, tag, created_at, place)
SELECT %s, %s, tag, %s, %s FROM unnest(%s::text[]) AS tag ON CONFLICT DO NOTHING
"""

# One that has expired makes room for a new one with the same id.
_MAKE_ROOM = """
DELETE FROM memories
WHERE tenant = %s AND memory_ref = %s AND memory_id = %s AND expires_at <= %s
RETURNING memory_ref, created_at, place, tags
"""

_DELETE = """
DELETE FROM memories WHERE place = ANY (%s::bigint[]) AND tenant = %s
RETURNING memory_ref, created_at, place, tags
"""

_DELETE_TAGS = """
DELETE FROM memory_tags
WHERE tenant = %s AND memory_ref = %s AND tag = ANY (%s::text[]) AND created_at = %s AND place = %s
"""

_ALIVE = "(m.expires_at IS NULL OR m.expires_at > %s)"

# The runs that a run started, and those that they started, as far as they have completed.
_COMPLETED_BELOW = """
WITH RECURSIVE below (run_id) AS (
    SELECT run_id FROM runs WHERE tenant = %s AND parent_run_id = %s AND status = 'completed'
    UNION ALL
    SELECT r.run_id FROM below JOIN runs r ON r.parent_run_id = below.run_id
    WHERE r.tenant = %s AND r.status = 'completed'
) SELECT run_id FROM below
"""

# Without a run to be visible to, the bound is the end of time and every entry is below it.
_SEEN = f"(m.created_at <= %s OR m.run_id = %s OR m.run_id IN ({_COMPLETED_BELOW}))"

_ENTRY = f"""
SELECT {MEMORY_COLUMNS} FROM memories m
WHERE m.tenant = %s AND m.memory_ref = %s AND m.memory_id = %s AND {_ALIVE} AND {_SEEN}
"""

_NEWEST = f"""
SELECT {MEMORY_COLUMNS} FROM memories m
WHERE m.tenant = %s AND m.memory_ref = %s AND {_ALIVE} AND {_SEEN}
ORDER BY m.created_at DESC, m.place DESC LIMIT %s
"""

_TAGGED = f"""
SELECT {MEMORY_COLUMNS} FROM memory_tags t JOIN memories m ON m.place = t.place
WHERE t.tenant = %s AND t.memory_ref = %s AND t.tag = %s AND {_ALIVE} AND {_SEEN}
ORDER BY t.created_at DESC, t.place DESC LIMIT %s
"""

_EXPIRED = "SELECT tenant, place FROM host_expired_memories(%s, %s)"

_END_OF_TIME = 2**63 - 1
_CHUNK = 500


class PostgresMemories(Part):
    """`Memories` on PostgreSQL, and the clockwork that deletes what has expired."""

    async def put_memory(self, tenant: str, row: MemoryRow) -> bool:
        """Keep an entry; False when its id is taken by one that has not expired."""
        check_memory(row)
        return await self._db.run(tenant, partial(_put, row=row))

    async def memories(
        self,
        tenant: str,
        memory_ref: str,
        *,
        now: int,
        visible_to_run: str | None = None,
        run_started_at: int | None = None,
        tag: str | None = None,
        limit: int = 100,
    ) -> list[MemoryRow]:
        """The entries under a reference, newest first."""
        if not is_memory_ref(memory_ref) or not (tag is None or is_memory_tag(tag)):
            return []
        view = _view(tenant, now, visible_to_run, run_started_at)
        if tag is None:
            rows = await self._db.read(tenant, _NEWEST, (tenant, memory_ref, *view, limit))
        else:
            rows = await self._db.read(tenant, _TAGGED, (tenant, memory_ref, tag, *view, limit))
        return [memory_row(row) for row in rows]

    async def memory(
        self,
        tenant: str,
        memory_ref: str,
        memory_id: str,
        now: int,
        *,
        visible_to_run: str | None = None,
        run_started_at: int | None = None,
    ) -> MemoryRow | None:
        """One entry, or None."""
        if not is_memory_ref(memory_ref) or not is_memory_id(memory_id):
            return None
        view = _view(tenant, now, visible_to_run, run_started_at)
        rows = await self._db.read(tenant, _ENTRY, (tenant, memory_ref, memory_id, *view))
        return memory_row(rows[0]) if rows else None

    async def forget_memories(self, before: int) -> None:
        """Delete the entries that expired before then."""
        while found := sorted(await self._db.ask(_EXPIRED, (before, _CHUNK))):
            for tenant, entries in groupby(found, lambda row: str(row[0])):
                places = [int(row[1]) for row in entries]
                await self._db.run(tenant, partial(_forget, places=places))
            if len(found) < _CHUNK:
                break


def _view(
    tenant: str, now: int, run_id: str | None, started_at: int | None
) -> tuple[Parameter, ...]:
    """The parameters of `_ALIVE` and `_SEEN`."""
    bound = _END_OF_TIME if run_id is None or started_at is None else started_at
    return (now, bound, run_id, tenant, run_id, tenant)


async def _put(transaction: Transaction, row: MemoryRow) -> bool:
    key = (transaction.tenant, row.memory_ref, row.memory_id)
    await _drop_tags(transaction, await transaction.rows(_MAKE_ROOM, (*key, row.created_at)))
    entry = (row.content, encoded(row.tags), row.created_at, row.expires_at, row.run_id)
    kept = await transaction.row(_INSERT, (*key, *entry))
    if kept is None:
        return False
    if row.tags:
        values = (*key[:2], row.created_at, int(kept[0]), list(row.tags))
        await transaction.queue(_INSERT_TAGS, values)
    return True


async def _forget(transaction: Transaction, places: list[int]) -> None:
    await _drop_tags(transaction, await transaction.rows(_DELETE, (places, transaction.tenant)))


async def _drop_tags(
    transaction: Transaction, gone: list[tuple[str, int, int, bytes | None]]
) -> None:
    for memory_ref, created_at, place, tags in gone:
        if tags is not None:
            values = (transaction.tenant, memory_ref, list(texts(tags)), created_at, place)
            await transaction.queue(_DELETE_TAGS, values)
