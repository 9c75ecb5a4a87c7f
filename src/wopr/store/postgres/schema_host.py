"""What the host itself asks across tenants, as functions that answer no more than it needs.

They run with the rights of a role of their own, which nobody can log in as: it may read the few
columns that they are about and nothing else. The service may call them and has no other way
across tenants.
"""

from __future__ import annotations

from dataclasses import dataclass

from wopr.store.port.runs import OBSERVED_PREFIX
from wopr.store.sql.rows import KEY_COLUMNS
from wopr.store.sql.side_rows import ENTRY_COLUMNS

SERVICE = "wopr_service"
CLOCKWORK = "wopr_clockwork"

_KEY_TYPES = (
    "key_id text, tenant text, name text, role text, scopes bytea, key_hash bytea, "
    "created_at bigint, is_test boolean, expires_at bigint, revoked_at bigint, replaced_by text"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFunction:
    """A function of the host's: what it is called with, answers with and does."""

    name: str
    takes: tuple[str, ...] = ()
    gives: str
    body: str
    changes: bool = False

    @property
    def signature(self) -> str:
        """Its name and what it is called with."""
        return f"{self.name} ({', '.join(self.takes)})"

    @property
    def definition(self) -> str:
        """All of its definition but the verb."""
        return (
            f"FUNCTION {self.signature} RETURNS {self.gives} LANGUAGE sql "
            f"{'VOLATILE' if self.changes else 'STABLE'} SECURITY DEFINER "
            f"SET search_path = wopr, pg_temp AS $$ {self.body} $$"
        )

    @property
    def statements(self) -> tuple[str, ...]:
        """What makes it: defined, handed to its role, and callable by the service only."""
        signature = self.signature
        return (
            f"CREATE {self.definition}",
            f"ALTER FUNCTION {signature} OWNER TO {CLOCKWORK}",
            f"REVOKE ALL ON FUNCTION {signature} FROM PUBLIC",
            f"GRANT EXECUTE ON FUNCTION {signature} TO {SERVICE}",
        )

    @property
    def replacement(self) -> str:
        """What gives one that is there another body; its role and its callers stay."""
        return f"CREATE OR REPLACE {self.definition}"


_OWNED = "TABLE (tenant text, id text)"

HOST_FUNCTIONS = (
    HostFunction(
        name="host_due",
        takes=("bigint", "bigint"),
        gives=_OWNED,
        body="SELECT tenant, run_id FROM runs WHERE wake_at <= $1 ORDER BY wake_at, run_id LIMIT $2",
    ),
    HostFunction(
        name="host_next_due",
        takes=("bigint",),
        gives="bigint",
        body="SELECT wake_at FROM runs WHERE wake_at > $1 ORDER BY wake_at LIMIT 1",
    ),
    HostFunction(
        name="host_unfinished",
        takes=("text", "text", "bigint"),
        gives=_OWNED,
        body="""
            SELECT tenant, run_id FROM runs
            WHERE ended_at IS NULL AND (tenant, run_id) > ($1, $2)
            ORDER BY tenant, run_id LIMIT $3
        """,
    ),
    HostFunction(
        name="host_counts",
        gives="TABLE (status text, runs bigint)",
        body="SELECT status, count(*) FROM runs GROUP BY status",
    ),
    HostFunction(
        name="host_totals",
        gives="TABLE (runs bigint, events bigint)",
        body="SELECT count(*), coalesce(sum(last_sequence + 1), 0)::bigint FROM runs",
    ),
    HostFunction(
        name="host_expirable",
        takes=("bigint", "bigint"),
        gives=_OWNED,
        body=f"""
            SELECT tenant, run_id FROM runs
            WHERE ended_at < $1 AND NOT starts_with(run_id, '{OBSERVED_PREFIX}')
            ORDER BY ended_at, run_id LIMIT $2
        """,
    ),
    HostFunction(
        name="host_forget_answers",
        takes=("bigint", "bigint"),
        gives="bigint",
        changes=True,
        body="""
            WITH gone AS (
                DELETE FROM answers a USING (
                    SELECT tenant, key_hash FROM answers
                    WHERE created_at < $1 ORDER BY created_at LIMIT $2
                ) old WHERE a.tenant = old.tenant AND a.key_hash = old.key_hash RETURNING 1
            ) SELECT count(*) FROM gone
        """,
    ),
    HostFunction(
        name="host_forget_invocations",
        takes=("bigint", "bigint"),
        gives="bigint",
        changes=True,
        body="""
            WITH gone AS (
                DELETE FROM invocations i USING (
                    SELECT tenant, invocation_id FROM invocations o
                    WHERE claimed_at < $1 AND (
                        SELECT r.ended_at IS NULL FROM runs r
                        WHERE r.tenant = o.tenant AND r.run_id = o.run_id
                    ) IS NOT TRUE ORDER BY claimed_at LIMIT $2
                ) old WHERE i.tenant = old.tenant AND i.invocation_id = old.invocation_id
                RETURNING 1
            ) SELECT count(*) FROM gone
        """,
    ),
    HostFunction(
        name="host_expired_memories",
        takes=("bigint", "bigint"),
        gives="TABLE (tenant text, place bigint)",
        body="""
            SELECT tenant, place FROM memories
            WHERE expires_at < $1 ORDER BY expires_at, place LIMIT $2
        """,
    ),
    # Who shows a key is whom it belongs to: this is how a tenant is found.
    HostFunction(
        name="host_key",
        takes=("bytea",),
        gives=f"TABLE ({_KEY_TYPES})",
        body=f"SELECT {KEY_COLUMNS} FROM api_keys WHERE key_hash = $1",
    ),
    HostFunction(
        name="host_keys",
        gives=f"TABLE ({_KEY_TYPES})",
        body=f"SELECT {KEY_COLUMNS} FROM api_keys ORDER BY created_at DESC, key_id DESC",
    ),
    HostFunction(
        name="host_update_key",
        takes=("text", "bigint", "bigint", "text"),
        gives="bigint",
        changes=True,
        body="""
            WITH changed AS (
                UPDATE api_keys SET expires_at = coalesce($2, expires_at),
                    revoked_at = coalesce($3, revoked_at), replaced_by = coalesce($4, replaced_by)
                WHERE key_id = $1 RETURNING 1
            ) SELECT count(*) FROM changed
        """,
    ),
    HostFunction(
        name="host_webhooks",
        takes=("text", "bigint"),
        gives=_OWNED,
        body="""
            SELECT tenant, webhook_id FROM webhooks
            WHERE webhook_id > $1 ORDER BY webhook_id LIMIT $2
        """,
    ),
    # From one webhook's lanes to the next one's, so that it costs the webhooks and not their lanes.
    HostFunction(
        name="host_undelivered",
        gives=_OWNED,
        body="""
            WITH RECURSIVE owed (webhook_id) AS (
                (SELECT webhook_id FROM delivery_lanes ORDER BY webhook_id LIMIT 1)
                UNION ALL
                SELECT (
                    SELECT l.webhook_id FROM delivery_lanes l
                    WHERE l.webhook_id > owed.webhook_id ORDER BY l.webhook_id LIMIT 1
                ) FROM owed WHERE owed.webhook_id IS NOT NULL
            )
            SELECT w.tenant, w.webhook_id FROM owed JOIN webhooks w USING (webhook_id)
        """,
    ),
    HostFunction(
        name="host_judges",
        takes=("bigint",),
        gives=_OWNED,
        body="""
            SELECT tenant, judge_id FROM judges
            WHERE NOT is_done ORDER BY created_at, tenant, judge_id LIMIT $1
        """,
    ),
    # The chain runs through all tenants, so verifying it does too.
    HostFunction(
        name="host_audit_head",
        gives="bigint",
        body="SELECT coalesce(max(sequence), -1) FROM audit_entries",
    ),
    HostFunction(
        name="host_audit_entries",
        takes=("bigint", "bigint"),
        gives="TABLE (sequence bigint, tenant text, body bytea, digest bytea)",
        body=f"""
            SELECT {ENTRY_COLUMNS} FROM audit_entries
            WHERE sequence >= $1 ORDER BY sequence LIMIT $2
        """,
    ),
    # Takes the chain's lock, which holds until the transaction ends: entries have one order.
    HostFunction(
        name="host_audit_last",
        gives="TABLE (sequence bigint, body bytea)",
        changes=True,
        body="""
            SELECT pg_advisory_xact_lock(hashtext('wopr audit'));
            SELECT sequence, body FROM audit_entries
            WHERE sequence >= 0 ORDER BY sequence DESC LIMIT 1
        """,
    ),
    HostFunction(
        name="host_audit_append",
        takes=("bigint", "text", "bytea", "bytea"),
        gives="void",
        changes=True,
        body=f"INSERT INTO audit_entries ({ENTRY_COLUMNS}) VALUES ($1, $2, $3, $4)",
    ),
)
