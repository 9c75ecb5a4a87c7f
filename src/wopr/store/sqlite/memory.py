"""The part that keeps long-term memory."""

from __future__ import annotations

import sqlite3
from functools import partial

from wopr.store.port import MemoryRow
from wopr.store.sql.dialect import SQLITE
from wopr.store.sql.memories import MemoryReads, check_memory, newest, tagged
from wopr.store.sql.rows import encoded, texts
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

_NEWEST = newest(SQLITE)
_TAGGED = tagged(SQLITE)

_EXPIRED = """
SELECT tenant, memory_ref, place, created_at, tags FROM memories
WHERE expires_at < ? ORDER BY expires_at, place LIMIT ?
"""

# Deleting shares the writer with live runs, so no transaction deletes more than this at once.
_CHUNK = 500


class SqliteMemories(Part, MemoryReads):
    """`Memories` on SQLite, and the clockwork that deletes what has expired."""

    _newest = _NEWEST
    _tagged = _TAGGED

    async def put_memory(self, tenant: str, row: MemoryRow) -> bool:
        """Keep an entry; False when its id is taken by one that has not expired."""
        check_memory(row)
        return await self._writer.submit(partial(_put, tenant=tenant, row=row))

    async def forget_memories(self, before: int) -> None:
        """Delete the entries that expired before then."""
        while await self._writer.submit(partial(_forget, before=before)):
            pass


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
