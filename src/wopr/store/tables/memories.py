"""Memory entries of agents."""

from __future__ import annotations

from functools import partial
from itertools import groupby

from wopr.protocol.errors import Refused
from wopr.protocol.resources.memory import is_encodable, is_memory_id, is_memory_ref, is_memory_tag
from wopr.store.port import MemoryRow
from wopr.store.tables.database import Table
from wopr.store.tables.dialect import (
    LARGEST_INTEGER,
    Parameter,
    Row,
    Value,
    Variants,
    decode_names,
    encode_names,
    variants,
)
from wopr.store.tables.statements import Operation, execute_many, query

_COLUMNS = (
    "m.memory_ref, m.memory_id, m.content, m.tags, m.created_at, m.expires_at, m.run_id, m.place"
)

_ALIVE = "(m.expires_at IS NULL OR m.expires_at > ?)"

# The completed descendants of a run.
_COMPLETED_DESCENDANTS = """
WITH RECURSIVE below (run_id) AS (
    SELECT run_id FROM runs WHERE tenant = ? AND parent_run_id = ? AND status = 'completed'
    UNION ALL
    SELECT r.run_id FROM below JOIN runs r ON r.parent_run_id = below.run_id
    WHERE r.tenant = ? AND r.status = 'completed'
) SELECT run_id FROM below
"""

# Without a run the time is the largest integer, so that every entry is visible.
_VISIBLE = f"(m.created_at <= ? OR m.run_id = ? OR m.run_id IN ({_COMPLETED_DESCENDANTS}))"

_ENTRY = f"""
SELECT {_COLUMNS} FROM memories m
WHERE m.tenant = ? AND m.memory_ref = ? AND m.memory_id = ? AND {_ALIVE} AND {_VISIBLE}
"""

_NEWEST = variants(
    lambda dialect: (
        f"""
SELECT {_COLUMNS} FROM memories m{dialect.indexed_by("memories_newest")}
WHERE m.tenant = ? AND m.memory_ref = ? AND {_ALIVE} AND {_VISIBLE}
ORDER BY m.created_at DESC, m.place DESC LIMIT ?
"""
    )
)

_TAGGED = variants(
    lambda dialect: (
        f"""
SELECT {_COLUMNS} FROM memory_tags t {dialect.ordered_join} memories m ON m.place = t.place
WHERE t.tenant = ? AND t.memory_ref = ? AND t.tag = ? AND {_ALIVE} AND {_VISIBLE}
ORDER BY t.created_at DESC, t.place DESC LIMIT ?
"""
    )
)

_INSERT = """
INSERT INTO memories (
    tenant, memory_ref, memory_id, content, tags, created_at, expires_at, run_id
) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, memory_ref, memory_id) DO NOTHING RETURNING place
"""

_INSERT_TAG = """
INSERT INTO memory_tags (tenant, memory_ref, tag, created_at, place) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""

# A new entry may have the id of an entry that has expired.
_DELETE_EXPIRED = """
DELETE FROM memories
WHERE tenant = ? AND memory_ref = ? AND memory_id = ? AND expires_at <= ?
RETURNING memory_ref, created_at, place, tags
"""

# SQLite may reuse the place of a deleted entry for a new one, so the expiry is checked again.
_DELETE = variants(
    lambda dialect: (
        f"""
DELETE FROM memories{dialect.without_index()}
WHERE {dialect.in_array("place", "bigint")} AND tenant = ? AND expires_at < ?
RETURNING memory_ref, created_at, place, tags
"""
    )
)

_DELETE_TAG = """
DELETE FROM memory_tags
WHERE tenant = ? AND memory_ref = ? AND tag = ? AND created_at = ? AND place = ?
"""

_EXPIRED = Variants(
    sqlite="SELECT tenant, place FROM memories WHERE expires_at < ? ORDER BY expires_at LIMIT ?",
    postgres="SELECT tenant, place FROM host_expired_memories(?, ?)",
)

# The largest number of entries that one transaction deletes. On SQLite live runs wait for it.
_CHUNK = 500


class MemoryTable(Table):
    """`Memories` in SQL."""

    async def put_memory(self, tenant: str, row: MemoryRow) -> bool:
        """Store an entry; False when an entry that has not expired has its id."""
        check_memory(row)
        return await self._sql.transact(tenant, partial(_put, tenant, row))

    async def delete_expired_memories(self, before: int) -> None:
        """Delete the entries that expired before that time."""
        while found := sorted(await self._sql.read_host_many(_EXPIRED, (before, _CHUNK))):
            for tenant, entries in groupby(found, lambda row: str(row[0])):
                places = self._sql.dialect.array([int(row[1]) for row in entries])
                await self._sql.transact(tenant, partial(_delete, tenant, places, before))
            if len(found) < _CHUNK:
                break

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
        """List the entries under a reference, newest first."""
        if not is_memory_ref(memory_ref) or not (tag is None or is_memory_tag(tag)):
            return []
        view = _view(tenant, now, visible_to_run, run_started_at)
        if tag is None:
            rows = await self._sql.read_many(tenant, _NEWEST, (tenant, memory_ref, *view, limit))
        else:
            rows = await self._sql.read_many(
                tenant, _TAGGED, (tenant, memory_ref, tag, *view, limit)
            )
        return [_row(row) for row in rows]

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
        """Return one entry."""
        if not is_memory_ref(memory_ref) or not is_memory_id(memory_id):
            return None
        view = _view(tenant, now, visible_to_run, run_started_at)
        rows = await self._sql.read_few(tenant, _ENTRY, (tenant, memory_ref, memory_id, *view))
        return _row(rows[0]) if rows else None


def _put(tenant: str, row: MemoryRow) -> Operation[bool]:
    key = (tenant, row.memory_ref, row.memory_id)
    yield from _delete_tags(tenant, (yield query(_DELETE_EXPIRED, (*key, row.created_at))))
    entry = (row.content, encode_names(row.tags), row.created_at, row.expires_at, row.run_id)
    stored = yield query(_INSERT, (*key, *entry))
    if not stored:
        return False
    if row.tags:
        place = stored[0][0]
        tags = [(*key[:2], tag, row.created_at, place) for tag in row.tags]
        yield execute_many(_INSERT_TAG, tags)
    return True


def _delete(tenant: str, places: Value, before: int) -> Operation[None]:
    yield from _delete_tags(tenant, (yield query(_DELETE, (places, tenant, before))))


def _delete_tags(tenant: str, deleted: list[Row]) -> Operation[None]:
    for memory_ref, created_at, place, tags in deleted:
        if tags is not None:
            rows = [(tenant, memory_ref, tag, created_at, place) for tag in decode_names(tags)]
            yield execute_many(_DELETE_TAG, rows)


def _row(row: Row) -> MemoryRow:
    return MemoryRow(
        memory_ref=row[0],
        memory_id=row[1],
        content=row[2],
        tags=decode_names(row[3]),
        created_at=row[4],
        expires_at=row[5],
        run_id=row[6],
    )


def _view(
    tenant: str, now: int, run_id: str | None, started_at: int | None
) -> tuple[Parameter, ...]:
    """Return the parameters of `_ALIVE` and `_VISIBLE`."""
    bound = LARGEST_INTEGER if run_id is None or started_at is None else started_at
    return (now, bound, run_id, tenant, run_id, tenant)


def check_memory(row: MemoryRow) -> None:
    """Refuse an entry with a value that reads would not accept."""
    for name, is_valid in (
        ("memoryRef", is_memory_ref(row.memory_ref)),
        ("id", is_memory_id(row.memory_id)),
        ("tags", all(is_memory_tag(tag) for tag in row.tags)),
        ("content", is_encodable(row.content)),
    ):
        if not is_valid:
            raise Refused(f"{name} is not valid for a memory entry", field=name)
