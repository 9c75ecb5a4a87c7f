"""The part that keeps long-term memory."""

from __future__ import annotations

from functools import partial
from itertools import groupby

from wopr.store.port import MemoryRow
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.part import Part
from wopr.store.sql.dialect import POSTGRES
from wopr.store.sql.memories import MemoryReads, check_memory, newest, tagged
from wopr.store.sql.rows import encoded, texts

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

_NEWEST = newest(POSTGRES)
_TAGGED = tagged(POSTGRES)

_EXPIRED = "SELECT tenant, place FROM host_expired_memories(%s, %s)"

_CHUNK = 500


class PostgresMemories(Part, MemoryReads):
    """`Memories` on PostgreSQL, and the clockwork that deletes what has expired."""

    _newest = _NEWEST
    _tagged = _TAGGED

    async def put_memory(self, tenant: str, row: MemoryRow) -> bool:
        """Keep an entry; False when its id is taken by one that has not expired."""
        check_memory(row)
        return await self._db.run(tenant, partial(_put, row=row))

    async def forget_memories(self, before: int) -> None:
        """Delete the entries that expired before then."""
        while found := sorted(await self._db.ask(_EXPIRED, (before, _CHUNK))):
            for tenant, entries in groupby(found, lambda row: str(row[0])):
                places = [int(row[1]) for row in entries]
                await self._db.run(tenant, partial(_forget, places=places))
            if len(found) < _CHUNK:
                break


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
