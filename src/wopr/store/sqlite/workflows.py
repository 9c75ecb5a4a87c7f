"""The part that keeps registered definitions."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from functools import partial

from wopr.store.port import WorkflowRow
from wopr.store.sql.definitions import require_same_workflow
from wopr.store.sql.rows import WORKFLOW_COLUMNS, workflow_row
from wopr.store.sqlite.fleet_runs import as_array
from wopr.store.sqlite.part import Part

_DIGEST = "SELECT digest FROM workflows WHERE tenant = ? AND workflow_id = ? AND version = ?"

_INSERT = """
INSERT INTO workflows (tenant, workflow_id, version, digest, body, registered_at)
VALUES (?, ?, ?, ?, ?, ?)
"""

_VERSION = f"""
SELECT {WORKFLOW_COLUMNS} FROM workflows w WHERE w.tenant = ? AND w.workflow_id = ? AND w.version = ?
"""

# Two versions of the same millisecond: the one that was stored later is the newer.
_VERSIONS = f"""
SELECT {WORKFLOW_COLUMNS} FROM workflows w WHERE w.tenant = ? AND w.workflow_id = ?
ORDER BY w.registered_at DESC, w.place DESC LIMIT ? OFFSET ?
"""

_NEWEST = f"""
SELECT {WORKFLOW_COLUMNS} FROM workflows w WHERE w.tenant = ? AND w.workflow_id = ?
ORDER BY w.registered_at DESC, w.place DESC LIMIT 1
"""

_NEWEST_OF_EACH = f"""
SELECT {WORKFLOW_COLUMNS}
FROM (
    SELECT DISTINCT workflow_id FROM workflows
    WHERE tenant = ? AND workflow_id > ? ORDER BY workflow_id LIMIT ?
) known CROSS JOIN workflows w ON w.place = (
    SELECT n.place FROM workflows n WHERE n.tenant = ? AND n.workflow_id = known.workflow_id
    ORDER BY n.registered_at DESC, n.place DESC LIMIT 1
)
ORDER BY known.workflow_id
"""

_IDS = """
SELECT DISTINCT workflow_id FROM workflows WHERE tenant = ? ORDER BY workflow_id LIMIT ?
"""

_KNOWN = """
SELECT value FROM json_each(?) AS known
WHERE EXISTS (SELECT 1 FROM workflows w WHERE w.tenant = ? AND w.workflow_id = known.value)
"""


class SqliteWorkflows(Part):
    """`Workflows` on SQLite."""

    async def put_workflow(self, tenant: str, row: WorkflowRow) -> bool:
        """Register; True when new, False when the same content is there already."""
        return await self._writer.submit(partial(_put, tenant=tenant, row=row))

    async def workflow(
        self, tenant: str, workflow_id: str, version: str | None
    ) -> WorkflowRow | None:
        """The definition of that version, or the newest."""
        if version is None:
            rows = self._reader.near(_NEWEST, (tenant, workflow_id))
        else:
            rows = self._reader.near(_VERSION, (tenant, workflow_id, version))
        return workflow_row(rows[0]) if rows else None

    async def workflows(self, tenant: str, after: str | None, limit: int) -> list[WorkflowRow]:
        """The newest version of each definition, by id."""
        rows = await self._reader.far(_NEWEST_OF_EACH, (tenant, after or "", limit, tenant))
        return [workflow_row(row) for row in rows]

    async def workflow_ids(self, tenant: str, limit: int) -> list[str]:
        """The first ids of definitions, in order."""
        return [row[0] for row in await self._reader.far(_IDS, (tenant, limit))]

    async def known_workflows(self, tenant: str, workflow_ids: Collection[str]) -> set[str]:
        """Those of these ids that have a definition."""
        rows = await self._reader.far(_KNOWN, (as_array(workflow_ids), tenant))
        return {row[0] for row in rows}

    async def workflow_versions(
        self, tenant: str, workflow_id: str, limit: int, offset: int
    ) -> list[WorkflowRow]:
        """A page of the versions of one definition, newest first."""
        rows = await self._reader.far(_VERSIONS, (tenant, workflow_id, limit, offset))
        return [workflow_row(row) for row in rows]


def _put(connection: sqlite3.Connection, tenant: str, row: WorkflowRow) -> bool:
    stored = connection.execute(_DIGEST, (tenant, row.workflow_id, row.version)).fetchone()
    if stored is not None:
        require_same_workflow(row, stored[0])
        return False
    connection.execute(
        _INSERT,
        (tenant, row.workflow_id, row.version, row.digest, row.body, row.registered_at),
    )
    return True
