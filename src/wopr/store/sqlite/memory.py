"""The part that keeps long-term memory."""

from __future__ import annotations

import sqlite3
from functools import partial

from wopr.protocol.memory import is_memory_id, is_memory_ref, is_memory_tag
from wopr.store.port import MemoryRow
from wopr.store.sql.dialect import Parameter
from wopr.store.sql.memories import check_memory
from wopr.store.sql.rows import MEMORY_COLUMNS, encoded, memory_row, texts
from wopr.store.sqlite.part import Part

_STORED = """
SELECT place, created_at, expires_at, tags FROM memories
WHERE tenant = ? AND memory_ref = ? AND memory_id = ?
"""

_INSERT = """
INSERT INTO memories (
    tenant, memory_ref, memory_id, content, tags, created_at, expires_at, run_id
) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""

_INSERT_TAG = """
INSERT OR IGNORE INTO memory_tags (tenant, memory_ref, tag, created_at, place)
VALUES (?, ?, ?, ?, ?)
"""

_DELETE = "DELETE FROM memories WHERE place = ?"

_DELETE_TAG = """
DELETE FROM memory_tags
WHERE tenant = ? AND memory_ref = ? AND tag = ? AND created_at = ? AND place = ?
"""

_ALIVE = "(m.expires_at IS NULL OR m.expires_at > ?)"

# The runs that a run started, and those that they started, as far as they have completed.
_COMPLETED_BELOW = """
WITH RECURSIVE below (run_id) AS (
    SELECT run_id FROM runs WHERE tenant = ? AND parent_run_id = ? AND status = 'completed'
    UNION ALL
    SELECT r.run_id FROM below JOIN runs r ON r.parent_run_id = below.run_id
    WHERE r.tenant = ? AND r.status = 'completed'
) SELECT run_id FROM below
"""

# Without a run to be visible to, the bound is the end of time and every entry is below it.
_SEEN = f"(m.created_at <= ? OR m.run_id = ? OR m.run_id IN ({_COMPLETED_BELOW}))"

_ENTRY = f"""
SELECT {MEMORY_COLUMNS} FROM memories m
WHERE m.tenant = ? AND m.memory_ref = ? AND m.memory_id = ? AND {_ALIVE} AND {_SEEN}
"""

_NEWEST = f"""
SELECT {MEMORY_COLUMNS} FROM memories m INDEXED BY memories_newest
WHERE m.tenant = ? AND m.memory_ref = ? AND {_ALIVE} AND {_SEEN}
ORDER BY m.created_at DESC, m.place DESC LIMIT ?
"""

_TAGGED = f"""
SELECT {MEMORY_COLUMNS} FROM memory_tags t CROSS JOIN memories m ON m.place = t.place
WHERE t.tenant = ? AND t.memory_ref = ? AND t.tag = ? AND {_ALIVE} AND {_SEEN}
ORDER BY t.created_at DESC, t.place DESC LIMIT ?
"""

_EXPIRED = """
SELECT tenant, memory_ref, place, created_at, tags FROM memories
WHERE expires_at < ? ORDER BY expires_at, place LIMIT ?
"""

_END_OF_TIME = 2**63 - 1
# Deleting shares the writer with live runs, so no transaction deletes more than this at once.
_CHUNK = 500


class SqliteMemories(Part):
    """`Memories` on SQLite, and the clockwork that deletes what has expired."""

    async def put_memory(self, tenant: str, row: MemoryRow) -> bool:
        """Keep an entry; False when its id is taken by one that has not expired."""
        check_memory(row)
        return await self._writer.submit(partial(_put, tenant=tenant, row=row))

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
            rows = await self._reader.far(_NEWEST, (tenant, memory_ref, *view, limit))
        else:
            rows = await self._reader.far(_TAGGED, (tenant, memory_ref, tag, *view, limit))
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
        rows = self._reader.near(_ENTRY, (tenant, memory_ref, memory_id, *view))
        return memory_row(rows[0]) if rows else None

    async def forget_memories(self, before: int) -> None:
        """Delete the entries that expired before then."""
        while await self._writer.submit(partial(_forget, before=before)):
            pass


def _view(
    tenant: str, now: int, run_id: str | None, started_at: int | None
) -> tuple[Parameter, ...]:
    """The parameters of `_ALIVE` and `_SEEN`."""
    bound = _END_OF_TIME if run_id is None or started_at is None else started_at
    return (now, bound, run_id, tenant, run_id, tenant)


def _put(connection: sqlite3.Connection, tenant: str, row: MemoryRow) -> bool:
    key = (tenant, row.memory_ref, row.memory_id)
    stored = connection.execute(_STORED, key).fetchone()
    if stored is not None:
        place, created_at, expires_at, tags = stored
        if expires_at is None or expires_at > row.created_at:
            return False
        _delete(connection, tenant, row.memory_ref, place, created_at, tags)
    inserted = connection.execute(
        _INSERT,
        (
            *key,
            row.content,
            encoded(row.tags),
            row.created_at,
            row.expires_at,
            row.run_id,
        ),
    )
    if row.tags:
        connection.executemany(
            _INSERT_TAG,
            [(tenant, row.memory_ref, tag, row.created_at, inserted.lastrowid) for tag in row.tags],
        )
    return True


def _forget(connection: sqlite3.Connection, before: int) -> bool:
    """Delete some entries; answer whether there may be more."""
    rows = connection.execute(_EXPIRED, (before, _CHUNK)).fetchall()
    for row in rows:
        _delete(connection, *row)
    return len(rows) == _CHUNK


def _delete(
    connection: sqlite3.Connection,
    tenant: str,
    memory_ref: str,
    place: int,
    created_at: int,
    tags: bytes | None,
) -> None:
    connection.executemany(
        _DELETE_TAG, [(tenant, memory_ref, tag, created_at, place) for tag in texts(tags)]
    )
    connection.execute(_DELETE, (place,))
