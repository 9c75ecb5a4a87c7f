"""The part that keeps installed agent manifests."""

from __future__ import annotations

import sqlite3
from functools import partial

from wopr.store.port import AgentRow
from wopr.store.sql.definitions import require_same_agent
from wopr.store.sql.rows import AGENT_COLUMNS, agent_row
from wopr.store.sqlite.part import Part

_DIGEST = "SELECT digest FROM agents WHERE tenant = ? AND agent_id = ? AND version = ?"

_INSERT = """
INSERT INTO agents (tenant, agent_id, version, digest, body, registered_at)
VALUES (?, ?, ?, ?, ?, ?)
"""

_VERSION = f"""
SELECT {AGENT_COLUMNS} FROM agents a WHERE a.tenant = ? AND a.agent_id = ? AND a.version = ?
"""

# Two versions of the same millisecond: the one that was stored later is the newer.
_NEWEST = f"""
SELECT {AGENT_COLUMNS} FROM agents a WHERE a.tenant = ? AND a.agent_id = ?
ORDER BY a.registered_at DESC, a.place DESC LIMIT 1
"""

_NEWEST_OF_EACH = f"""
SELECT {AGENT_COLUMNS}
FROM (
    SELECT DISTINCT agent_id FROM agents
    WHERE tenant = ? AND agent_id > ? ORDER BY agent_id LIMIT ?
) known CROSS JOIN agents a ON a.place = (
    SELECT n.place FROM agents n WHERE n.tenant = ? AND n.agent_id = known.agent_id
    ORDER BY n.registered_at DESC, n.place DESC LIMIT 1
)
ORDER BY known.agent_id
"""

_SINCE = f"""
SELECT {AGENT_COLUMNS} FROM agents a INDEXED BY agents_in_order
WHERE a.tenant = ? AND a.place > ? ORDER BY a.place LIMIT ?
"""


class SqliteAgents(Part):
    """`AgentManifests` on SQLite."""

    async def put_agent(self, tenant: str, row: AgentRow) -> bool:
        """Install; True when new, False when the same content is there already."""
        return await self._writer.submit(partial(_put, tenant=tenant, row=row))

    async def agent(self, tenant: str, agent_id: str, version: str | None) -> AgentRow | None:
        """The manifest of that version, or the newest."""
        if version is None:
            rows = self._reader.near(_NEWEST, (tenant, agent_id))
        else:
            rows = self._reader.near(_VERSION, (tenant, agent_id, version))
        return agent_row(rows[0]) if rows else None

    async def agents(self, tenant: str, after: str | None, limit: int) -> list[AgentRow]:
        """The newest version of each manifest, by id."""
        rows = await self._reader.far(_NEWEST_OF_EACH, (tenant, after or "", limit, tenant))
        return [agent_row(row) for row in rows]

    async def agents_since(self, tenant: str, place: int, limit: int) -> list[AgentRow]:
        """What was installed after that place, in order."""
        # One writer gives the places, and in the order of its commits: none turns up late.
        return [agent_row(row) for row in self._reader.near(_SINCE, (tenant, place, limit))]


def _put(connection: sqlite3.Connection, tenant: str, row: AgentRow) -> bool:
    stored = connection.execute(_DIGEST, (tenant, row.agent_id, row.version)).fetchone()
    if stored is not None:
        require_same_agent(row, stored[0])
        return False
    connection.execute(
        _INSERT, (tenant, row.agent_id, row.version, row.digest, row.body, row.registered_at)
    )
    return True
