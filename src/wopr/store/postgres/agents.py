"""The part that keeps installed agent manifests."""

from __future__ import annotations

from functools import partial

from wopr.store.port import AgentRow
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.part import Part
from wopr.store.sql.definitions import require_same_agent
from wopr.store.sql.rows import AGENT_COLUMNS, agent_row

# Held to the end of the transaction: places are given in the order of the commits, so that none
# turns up late for who reads them in order.
_IN_TURN = "SELECT pg_advisory_xact_lock(hashtext('wopr agents'), hashtext(%s))"

_INSERT = """
INSERT INTO agents (tenant, agent_id, version, digest, body, registered_at)
VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (tenant, agent_id, version) DO NOTHING RETURNING 1
"""

_DIGEST = "SELECT digest FROM agents WHERE tenant = %s AND agent_id = %s AND version = %s"

_VERSION = f"""
SELECT {AGENT_COLUMNS} FROM agents a WHERE a.tenant = %s AND a.agent_id = %s AND a.version = %s
"""

# Two versions of the same millisecond: the one that was stored later is the newer.
_NEWEST = f"""
SELECT {AGENT_COLUMNS} FROM agents a WHERE a.tenant = %s AND a.agent_id = %s
ORDER BY a.registered_at DESC, a.place DESC LIMIT 1
"""

# From one id to the next, so that a page costs its length and not all versions.
_NEWEST_OF_EACH = f"""
WITH RECURSIVE known (agent_id, n) AS (
    (SELECT agent_id, 1 FROM agents
    WHERE tenant = %s AND agent_id > %s ORDER BY agent_id LIMIT 1)
    UNION ALL
    SELECT following.agent_id, known.n + 1 FROM known, LATERAL (
        SELECT f.agent_id FROM agents f
        WHERE f.tenant = %s AND f.agent_id > known.agent_id ORDER BY f.agent_id LIMIT 1
    ) following WHERE known.n < %s
)
SELECT {AGENT_COLUMNS} FROM known, LATERAL (
    SELECT * FROM agents n WHERE n.tenant = %s AND n.agent_id = known.agent_id
    ORDER BY n.registered_at DESC, n.place DESC LIMIT 1
) a ORDER BY known.n
"""

_SINCE = f"""
SELECT {AGENT_COLUMNS} FROM agents a
WHERE a.tenant = %s AND a.place > %s ORDER BY a.place LIMIT %s
"""


class PostgresAgents(Part):
    """`AgentManifests` on PostgreSQL."""

    async def put_agent(self, tenant: str, row: AgentRow) -> bool:
        """Install; True when new, False when the same content is there already."""
        return await self._db.run(tenant, partial(_put, row=row))

    async def agent(self, tenant: str, agent_id: str, version: str | None) -> AgentRow | None:
        """The manifest of that version, or the newest."""
        if version is None:
            rows = await self._db.read(tenant, _NEWEST, (tenant, agent_id))
        else:
            rows = await self._db.read(tenant, _VERSION, (tenant, agent_id, version))
        return agent_row(rows[0]) if rows else None

    async def agents(self, tenant: str, after: str | None, limit: int) -> list[AgentRow]:
        """The newest version of each manifest, by id."""
        values = (tenant, after or "", tenant, limit, tenant)
        rows = await self._db.read(tenant, _NEWEST_OF_EACH, values) if limit > 0 else []
        return [agent_row(row) for row in rows]

    async def agents_since(self, tenant: str, place: int, limit: int) -> list[AgentRow]:
        """What was installed after that place, in order."""
        rows = await self._db.read(tenant, _SINCE, (tenant, place, limit))
        return [agent_row(row) for row in rows]


async def _put(transaction: Transaction, row: AgentRow) -> bool:
    key = (transaction.tenant, row.agent_id, row.version)
    await transaction.queue(_IN_TURN, (transaction.tenant,))
    if await transaction.row(_INSERT, (*key, row.digest, row.body, row.registered_at)):
        return True
    [(stored,)] = await transaction.rows(_DIGEST, key)
    require_same_agent(row, stored)
    return False
