"""Who may see what: the service's role, the host's own, and row-level security by tenant.

Three roles. The owner makes the tables and is bound by row-level security like everybody else.
The service reads and writes one tenant's rows at a time: those of the tenant that its transaction
names in `wopr.tenant`. The clockwork owns the functions of `schema_host` and sees the columns that
they need.
"""

from __future__ import annotations

from collections.abc import Sequence

from wopr.store.postgres.schema_host import CLOCKWORK, HOST_FUNCTIONS, SERVICE, HostFunction
from wopr.store.postgres.schema_peers import PEER_FUNCTIONS

_OWN_ROWS = "tenant = nullif(current_setting('wopr.tenant', true), '')"

# What the service may do with a tenant's rows. Events and audit entries are never changed, and
# audit entries are written by a function that keeps their chain.
_TENANT_TABLES = {
    "runs": "SELECT, INSERT, UPDATE, DELETE",
    "run_tags": "SELECT, INSERT, DELETE",
    "events": "SELECT, INSERT, DELETE",
    "artifacts": "SELECT, INSERT, UPDATE, DELETE",
    "expired_runs": "SELECT, INSERT, UPDATE",
    "suspensions": "SELECT, INSERT, UPDATE, DELETE",
    "answers": "SELECT, INSERT",
    "invocations": "SELECT, INSERT, UPDATE",
    "workflows": "SELECT, INSERT",
    "agents": "SELECT, INSERT",
    "memories": "SELECT, INSERT, DELETE",
    "memory_tags": "SELECT, INSERT, DELETE",
    "api_keys": "SELECT, INSERT",
    "annotations": "SELECT, INSERT, DELETE",
    "feedback_hours": "SELECT, INSERT, UPDATE, DELETE",
    "feedback_days": "SELECT, INSERT, UPDATE, DELETE",
    "queues": "SELECT, INSERT, UPDATE",
    "queue_items": "SELECT, INSERT, UPDATE, DELETE",
    "queue_reviews": "SELECT, INSERT, UPDATE, DELETE",
    "judges": "SELECT, INSERT, UPDATE",
    "judged_runs": "SELECT, INSERT, UPDATE, DELETE",
    "webhooks": "SELECT, INSERT, UPDATE, DELETE",
    "delivery_lanes": "SELECT, INSERT, UPDATE, DELETE",
    "deliveries": "SELECT, INSERT, DELETE",
    "dead_letters": "SELECT, INSERT, UPDATE, DELETE",
    "audit_entries": "SELECT",
}

# Tables without a tenant: they hold nothing of anybody's.
_HOST_TABLES = {
    "audit_checkpoints": "SELECT, INSERT",
    "probes": "SELECT, INSERT, UPDATE",
    "processes": "SELECT, INSERT, UPDATE",
    "leases": "SELECT, INSERT, UPDATE",
    "shared_facts": "SELECT, INSERT",
    "migrations": "SELECT",
}

# The columns that the host's own functions are about.
_CLOCKWORK_GRANTS = {
    "runs": "SELECT (tenant, run_id, wake_at, ended_at, status, last_sequence, holder, wakes), "
    "UPDATE (wake_at, holder, wakes)",
    "answers": "SELECT (tenant, key_hash, created_at), DELETE",
    "invocations": "SELECT (tenant, invocation_id, run_id, claimed_at), DELETE",
    "memories": "SELECT (tenant, place, expires_at)",
    "api_keys": "SELECT, UPDATE (expires_at, revoked_at, replaced_by)",
    "webhooks": "SELECT (tenant, webhook_id)",
    "delivery_lanes": "SELECT (webhook_id)",
    "judges": "SELECT (tenant, judge_id, created_at, is_done)",
    "audit_entries": "SELECT, INSERT",
}


def tenant_table(name: str, rights: str) -> tuple[str, ...]:
    """Statements that open a table to the service, one tenant at a time."""
    return (
        f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY",
        f"ALTER TABLE {name} FORCE ROW LEVEL SECURITY",
        f"CREATE POLICY own_rows ON {name} USING ({_OWN_ROWS}) WITH CHECK ({_OWN_ROWS})",
        f"GRANT {rights} ON {name} TO {SERVICE}",
    )


def clockwork_table(name: str, rights: str) -> tuple[str, ...]:
    """Statements that show columns of all tenants' rows to the host's own functions."""
    # Not its members: the owner becomes one to hand functions over, and stays bound.
    itself = f"current_user = '{CLOCKWORK}'"
    return (
        f"CREATE POLICY host_rows ON {name} TO {CLOCKWORK} USING ({itself}) WITH CHECK ({itself})",
        f"GRANT {rights} ON {name} TO {CLOCKWORK}",
    )


def host_functions(functions: Sequence[HostFunction]) -> tuple[str, ...]:
    """Statements that make functions of the host's own."""
    # A function's owner must be able to create in its schema, at the moment it becomes that.
    return (
        f"GRANT USAGE, CREATE ON SCHEMA wopr TO {CLOCKWORK}",
        *(statement for function in functions for statement in function.statements),
        f"REVOKE CREATE ON SCHEMA wopr FROM {CLOCKWORK}",
    )


def _all() -> tuple[str, ...]:
    statements: list[str] = []
    for name, rights in _TENANT_TABLES.items():
        statements += tenant_table(name, rights)
    statements += [
        f"GRANT {rights} ON {name} TO {SERVICE}" for name, rights in _HOST_TABLES.items()
    ]
    for name, rights in _CLOCKWORK_GRANTS.items():
        statements += clockwork_table(name, rights)
    statements += host_functions((*HOST_FUNCTIONS, *PEER_FUNCTIONS))
    return tuple(statements)


SECURITY = _all()
