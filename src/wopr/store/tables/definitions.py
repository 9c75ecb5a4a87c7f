"""Workflow definitions and agent manifests. Both are stored by id and version, and never change."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from wopr.protocol.errors import Conflict
from wopr.store.port import AgentRow, WorkflowRow
from wopr.store.tables.database import Table
from wopr.store.tables.dialect import Row, Variants, variants
from wopr.store.tables.statements import Operation, execute, query


def _insert(table: str, id_column: str) -> str:
    return f"""
INSERT INTO {table} (tenant, {id_column}, version, digest, body, registered_at)
VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (tenant, {id_column}, version) DO NOTHING RETURNING 1
"""


def _ids_in_order(table: str, id_column: str) -> str:
    """Return a common table expression `known` with one page of ids.

    It goes from one id to the next, so that the cost grows with the page and not with all versions.
    """
    return f"""
WITH RECURSIVE known (id, n) AS (
    SELECT min({id_column}), 1 FROM {table} WHERE tenant = ? AND {id_column} > ?
    UNION ALL
    SELECT (
        SELECT min(f.{id_column}) FROM {table} f WHERE f.tenant = ? AND f.{id_column} > known.id
    ), known.n + 1
    FROM known WHERE known.id IS NOT NULL AND known.n < ?
)
"""


def _newest_of_each(table: str, id_column: str, columns: str) -> Variants:
    return variants(
        lambda dialect: (
            f"""{_ids_in_order(table, id_column)}
SELECT {columns} FROM known {dialect.ordered_join} {table} d ON d.place = (
    SELECT n.place FROM {table} n WHERE n.tenant = ? AND n.{id_column} = known.id
    ORDER BY n.registered_at DESC, n.place DESC LIMIT 1
)
ORDER BY known.n
"""
        )
    )


_WORKFLOW = "d.workflow_id, d.version, d.digest, d.body, d.registered_at"
_INSERT_WORKFLOW = _insert("workflows", "workflow_id")
_WORKFLOW_DIGEST = """
SELECT digest FROM workflows WHERE tenant = ? AND workflow_id = ? AND version = ?
"""
# PostgreSQL has functions for the two reads that every new run needs.
_WORKFLOW_VERSION = Variants(
    sqlite=f"""
SELECT {_WORKFLOW} FROM workflows d WHERE d.tenant = ? AND d.workflow_id = ? AND d.version = ?
""",
    postgres=f"SELECT {_WORKFLOW} FROM signed_workflow(?, ?, ?) d",
)
# Of two versions of the same millisecond, the newer has the higher place.
_NEWEST_WORKFLOW = Variants(
    sqlite=f"""
SELECT {_WORKFLOW} FROM workflows d WHERE d.tenant = ? AND d.workflow_id = ?
ORDER BY d.registered_at DESC, d.place DESC LIMIT 1
""",
    postgres=f"SELECT {_WORKFLOW} FROM signed_newest_workflow(?, ?) d",
)
_WORKFLOW_VERSIONS = f"""
SELECT {_WORKFLOW} FROM workflows d WHERE d.tenant = ? AND d.workflow_id = ?
ORDER BY d.registered_at DESC, d.place DESC LIMIT ? OFFSET ?
"""
_NEWEST_WORKFLOWS = _newest_of_each("workflows", "workflow_id", _WORKFLOW)
_WORKFLOW_IDS = f"""{_ids_in_order("workflows", "workflow_id")}
SELECT id FROM known WHERE id IS NOT NULL
"""
_KNOWN_WORKFLOWS = variants(
    lambda dialect: (
        f"""
SELECT known.value FROM {dialect.elements("known")}
WHERE EXISTS (SELECT 1 FROM workflows w WHERE w.tenant = ? AND w.workflow_id = known.value)
"""
    )
)

_AGENT = "d.agent_id, d.version, d.digest, d.body, d.registered_at, d.place"
# Readers follow the places, so they must be assigned in the order of the commits. SQLite has one
# writer; on PostgreSQL the lock lasts to the end of the transaction.
_LOCK_AGENTS = Variants(
    sqlite="", postgres="SELECT pg_advisory_xact_lock(hashtext('wopr agents'), hashtext(?))"
)
_INSERT_AGENT = _insert("agents", "agent_id")
_AGENT_DIGEST = "SELECT digest FROM agents WHERE tenant = ? AND agent_id = ? AND version = ?"
_AGENT_VERSION = f"""
SELECT {_AGENT} FROM agents d WHERE d.tenant = ? AND d.agent_id = ? AND d.version = ?
"""
_NEWEST_AGENT = f"""
SELECT {_AGENT} FROM agents d WHERE d.tenant = ? AND d.agent_id = ?
ORDER BY d.registered_at DESC, d.place DESC LIMIT 1
"""
_NEWEST_AGENTS = _newest_of_each("agents", "agent_id", _AGENT)
_AGENTS_SINCE = variants(
    lambda dialect: (
        f"""
SELECT {_AGENT} FROM agents d{dialect.indexed_by("agents_in_order")}
WHERE d.tenant = ? AND d.place > ? ORDER BY d.place LIMIT ?
"""
    )
)


class WorkflowTable(Table):
    """`Workflows` in SQL."""

    async def put_workflow(self, tenant: str, row: WorkflowRow) -> bool:
        """Register a definition; False when the same content is already stored."""
        return await self._sql.transact(tenant, partial(_put_workflow, tenant, row))

    async def workflow(
        self, tenant: str, workflow_id: str, version: str | None
    ) -> WorkflowRow | None:
        """Return the definition of that version, or the newest."""
        if version is None:
            rows = await self._sql.read_signed(tenant, _NEWEST_WORKFLOW, (workflow_id,))
        else:
            rows = await self._sql.read_signed(tenant, _WORKFLOW_VERSION, (workflow_id, version))
        return _workflow(rows[0]) if rows else None

    async def workflows(self, tenant: str, after: str | None, limit: int) -> list[WorkflowRow]:
        """List the newest version of each definition, by id."""
        if limit <= 0:
            return []
        values = (tenant, after or "", tenant, limit, tenant)
        rows = await self._sql.read_many(tenant, _NEWEST_WORKFLOWS, values)
        return [_workflow(row) for row in rows]

    async def workflow_ids(self, tenant: str, limit: int) -> list[str]:
        """List the first ids of definitions, in order."""
        rows = await self._sql.read_many(tenant, _WORKFLOW_IDS, (tenant, "", tenant, limit))
        return sorted(row[0] for row in rows)

    async def known_workflows(self, tenant: str, workflow_ids: Collection[str]) -> set[str]:
        """Return those of these ids that have a definition."""
        values = (self._sql.dialect.array(workflow_ids), tenant)
        return {row[0] for row in await self._sql.read_many(tenant, _KNOWN_WORKFLOWS, values)}

    async def workflow_versions(
        self, tenant: str, workflow_id: str, limit: int, offset: int
    ) -> list[WorkflowRow]:
        """List a page of the versions of one definition, newest first."""
        values = (tenant, workflow_id, limit, offset)
        rows = await self._sql.read_many(tenant, _WORKFLOW_VERSIONS, values)
        return [_workflow(row) for row in rows]


class AgentTable(Table):
    """`AgentManifests` in SQL."""

    async def put_agent(self, tenant: str, row: AgentRow) -> bool:
        """Install a manifest; False when the same content is already stored."""
        return await self._sql.transact(tenant, partial(_put_agent, tenant, row))

    async def agent(self, tenant: str, agent_id: str, version: str | None) -> AgentRow | None:
        """Return the manifest of that version, or the newest."""
        if version is None:
            rows = await self._sql.read_few(tenant, _NEWEST_AGENT, (tenant, agent_id))
        else:
            rows = await self._sql.read_few(tenant, _AGENT_VERSION, (tenant, agent_id, version))
        return _agent(rows[0]) if rows else None

    async def agents(self, tenant: str, after: str | None, limit: int) -> list[AgentRow]:
        """List the newest version of each manifest, by id."""
        if limit <= 0:
            return []
        values = (tenant, after or "", tenant, limit, tenant)
        return [_agent(row) for row in await self._sql.read_many(tenant, _NEWEST_AGENTS, values)]

    async def agents_since(self, tenant: str, place: int, limit: int) -> list[AgentRow]:
        """List the manifests that were installed after that place, in order."""
        rows = await self._sql.read_few(tenant, _AGENTS_SINCE, (tenant, place, limit))
        return [_agent(row) for row in rows]


def _put_workflow(tenant: str, row: WorkflowRow) -> Operation[bool]:
    key = (tenant, row.workflow_id, row.version)
    if (yield query(_INSERT_WORKFLOW, (*key, row.digest, row.body, row.registered_at))):
        return True
    [(digest,)] = yield query(_WORKFLOW_DIGEST, key)
    if digest != row.digest:
        raise Conflict(
            f"workflow {row.workflow_id} has other content under version {row.version}: "
            "register the change under a new version",
            code="workflow_exists",
            workflowId=row.workflow_id,
            version=row.version,
        )
    return False


def _put_agent(tenant: str, row: AgentRow) -> Operation[bool]:
    key = (tenant, row.agent_id, row.version)
    yield execute(_LOCK_AGENTS, (tenant,))
    if (yield query(_INSERT_AGENT, (*key, row.digest, row.body, row.registered_at))):
        return True
    [(digest,)] = yield query(_AGENT_DIGEST, key)
    if digest != row.digest:
        raise Conflict(
            f"agent {row.agent_id} has other content under version {row.version}: "
            "register the change under a new version",
            code="agent_exists",
            agentId=row.agent_id,
            version=row.version,
        )
    return False


def _workflow(row: Row) -> WorkflowRow:
    return WorkflowRow(
        workflow_id=row[0], version=row[1], digest=row[2], body=row[3], registered_at=row[4]
    )


def _agent(row: Row) -> AgentRow:
    return AgentRow(
        agent_id=row[0],
        version=row[1],
        digest=row[2],
        body=row[3],
        registered_at=row[4],
        place=row[5],
    )
