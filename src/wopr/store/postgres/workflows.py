"""The part that keeps registered definitions."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from wopr.store.port import WorkflowRow
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.part import Part
from wopr.store.sql.definitions import require_same_workflow
from wopr.store.sql.rows import WORKFLOW_COLUMNS, workflow_row

_INSERT = """
INSERT INTO workflows (tenant, workflow_id, version, digest, body, registered_at)
VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (tenant, workflow_id, version) DO NOTHING RETURNING 1
"""

_DIGEST = "SELECT digest FROM workflows WHERE tenant = %s AND workflow_id = %s AND version = %s"

_VERSION = f"SELECT {WORKFLOW_COLUMNS} FROM signed_workflow(%s, %s, %s) w"
_NEWEST = f"SELECT {WORKFLOW_COLUMNS} FROM signed_newest_workflow(%s, %s) w"

# Two versions of the same millisecond: the one that was stored later is the newer.
_VERSIONS = f"""
SELECT {WORKFLOW_COLUMNS} FROM workflows w WHERE w.tenant = %s AND w.workflow_id = %s
ORDER BY w.registered_at DESC, w.place DESC LIMIT %s OFFSET %s
"""

# From one id to the next, so that a page costs its length and not all versions.
_FROM_ID_TO_ID = """
known (workflow_id, n) AS (
    (SELECT workflow_id, 1 FROM workflows
    WHERE tenant = %s AND workflow_id > %s ORDER BY workflow_id LIMIT 1)
    UNION ALL
    SELECT following.workflow_id, known.n + 1 FROM known, LATERAL (
        SELECT f.workflow_id FROM workflows f
        WHERE f.tenant = %s AND f.workflow_id > known.workflow_id ORDER BY f.workflow_id LIMIT 1
    ) following WHERE known.n < %s
)
"""
_IDS = f"WITH RECURSIVE {_FROM_ID_TO_ID} SELECT workflow_id FROM known"
_NEWEST_OF_EACH = f"""
WITH RECURSIVE {_FROM_ID_TO_ID}
SELECT {WORKFLOW_COLUMNS} FROM known, LATERAL (
    SELECT * FROM workflows n WHERE n.tenant = %s AND n.workflow_id = known.workflow_id
    ORDER BY n.registered_at DESC, n.place DESC LIMIT 1
) w ORDER BY known.n
"""

_KNOWN = """
SELECT asked.id FROM unnest(%s::text[]) AS asked (id)
WHERE EXISTS (SELECT 1 FROM workflows w WHERE w.tenant = %s AND w.workflow_id = asked.id)
"""


class PostgresWorkflows(Part):
    """`Workflows` on PostgreSQL."""

    async def put_workflow(self, tenant: str, row: WorkflowRow) -> bool:
        """Register; True when new, False when the same content is there already."""
        return await self._db.run(tenant, partial(_put, row=row))

    async def workflow(
        self, tenant: str, workflow_id: str, version: str | None
    ) -> WorkflowRow | None:
        """The definition of that version, or the newest."""
        if version is None:
            rows = await self._db.call(tenant, _NEWEST, (workflow_id,))
        else:
            rows = await self._db.call(tenant, _VERSION, (workflow_id, version))
        return workflow_row(rows[0]) if rows else None

    async def workflows(self, tenant: str, after: str | None, limit: int) -> list[WorkflowRow]:
        """The newest version of each definition, by id."""
        values = (tenant, after or "", tenant, limit, tenant)
        rows = await self._db.read(tenant, _NEWEST_OF_EACH, values) if limit > 0 else []
        return [workflow_row(row) for row in rows]

    async def workflow_ids(self, tenant: str, limit: int) -> list[str]:
        """The first ids of definitions, in order."""
        rows = await self._db.read(tenant, _IDS, (tenant, "", tenant, limit))
        return sorted(row[0] for row in rows)

    async def known_workflows(self, tenant: str, workflow_ids: Collection[str]) -> set[str]:
        """Those of these ids that have a definition."""
        rows = await self._db.read(tenant, _KNOWN, (list(workflow_ids), tenant))
        return {row[0] for row in rows}

    async def workflow_versions(
        self, tenant: str, workflow_id: str, limit: int, offset: int
    ) -> list[WorkflowRow]:
        """A page of the versions of one definition, newest first."""
        rows = await self._db.read(tenant, _VERSIONS, (tenant, workflow_id, limit, offset))
        return [workflow_row(row) for row in rows]


async def _put(transaction: Transaction, row: WorkflowRow) -> bool:
    key = (transaction.tenant, row.workflow_id, row.version)
    if await transaction.row(_INSERT, (*key, row.digest, row.body, row.registered_at)):
        return True
    [(stored,)] = await transaction.rows(_DIGEST, key)
    require_same_workflow(row, stored)
    return False
