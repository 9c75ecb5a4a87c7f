"""The reads that every request makes, as functions that name their tenant themselves.

A call of one is one statement instead of two, which is what a read costs the caller's process. Each
exists twice. The form that takes a tenant's name runs with the rights of its caller; only processes
of an older version call it. The form that takes a signed token (`schema_tokens`) runs as the role
of the checked functions. Row-level security holds inside both.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRead:
    """A read for one tenant, who is its first argument."""

    name: str
    takes: tuple[str, ...]
    gives: str
    body: str
    settings: str = ""

    @property
    def statement(self) -> str:
        """What makes it."""
        return (
            f"CREATE FUNCTION {self.name} (text, {', '.join(self.takes)}) RETURNS {self.gives} "
            f"LANGUAGE plpgsql {self.settings} AS $$ BEGIN PERFORM set_config('wopr.tenant', $1, true); "
            f"RETURN QUERY {self.body}; END $$"
        )

    @property
    def signed_signature(self) -> str:
        """The name and the arguments of the function that takes a token in place of the tenant."""
        return f"{self.name.replace('tenant_', 'signed_')} (text, {', '.join(self.takes)})"

    def signed_statement(self, settings: str) -> str:
        """What makes the function that takes a token in place of the tenant."""
        return (
            f"CREATE FUNCTION {self.signed_signature} RETURNS {self.gives} LANGUAGE plpgsql "
            f"{settings} {self.settings} AS $$ DECLARE owner text := token_tenant($1); "
            f"BEGIN PERFORM set_config('wopr.tenant', owner, true); "
            f"RETURN QUERY {self.body.replace('$1', 'owner')}; END $$"
        )


_READS = (
    TenantRead(
        name="tenant_run",
        takes=("text",),
        gives="SETOF runs",
        body="SELECT * FROM runs r WHERE r.run_id = $2 AND r.tenant = $1",
    ),
    TenantRead(
        name="tenant_events",
        takes=("text", "bigint", "bigint"),
        gives="SETOF events",
        body="""
            SELECT * FROM events e WHERE e.run_id = $2 AND e.tenant = $1 AND e.sequence >= $3
            ORDER BY e.sequence LIMIT $4
        """,
    ),
    TenantRead(
        name="tenant_answer",
        takes=("bytea",),
        gives="SETOF answers",
        body="SELECT * FROM answers a WHERE a.tenant = $1 AND a.key_hash = $2",
    ),
    TenantRead(
        name="tenant_workflow",
        takes=("text", "text"),
        gives="SETOF workflows",
        body="""
            SELECT * FROM workflows w
            WHERE w.tenant = $1 AND w.workflow_id = $2 AND w.version = $3
        """,
    ),
    # Two versions of the same millisecond: the one that was stored later is the newer.
    TenantRead(
        name="tenant_newest_workflow",
        takes=("text",),
        gives="SETOF workflows",
        body="""
            SELECT * FROM workflows w WHERE w.tenant = $1 AND w.workflow_id = $2
            ORDER BY w.registered_at DESC, w.place DESC LIMIT 1
        """,
    ),
)

# Several runs, each with the first events of its log, as of one instant. A session keeps the plan
# that it made while the tables were small, so the plan must not read whole tables.
_LOGS = TenantRead(
    name="tenant_logs",
    takes=("text[]", "bigint"),
    gives="TABLE (run runs, types text[], bodies bytea[])",
    settings="SET enable_seqscan = off",
    body="""
        SELECT r, l.types, l.bodies FROM runs r CROSS JOIN LATERAL (
            SELECT array_agg(e.type::text ORDER BY e.sequence) AS types,
                array_agg(e.body ORDER BY e.sequence) AS bodies
            FROM events e WHERE e.run_id = r.run_id AND e.tenant = $1 AND e.sequence < $3
        ) l WHERE r.run_id = ANY ($2) AND r.tenant = $1
    """,
)

TENANT_READS = (*_READS, _LOGS)

READS = tuple(read.statement for read in _READS)
LOG_READS = (_LOGS.statement,)
