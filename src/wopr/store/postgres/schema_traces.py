"""The tables of traces on their way into the fleet."""

from __future__ import annotations

from wopr.store.postgres.schema_host import HostFunction
from wopr.store.postgres.security import clockwork_table, host_functions, tenant_table

TRACES_FUNCTIONS = (
    HostFunction(
        name="host_due_traces",
        takes=("bigint",),
        gives="TABLE (tenant text, id text, due_at bigint)",
        body="SELECT tenant, trace_id, due_at FROM otlp_traces ORDER BY due_at LIMIT $1",
    ),
)

TRACES = (
    """
    CREATE TABLE otlp_traces (
        tenant   word NOT NULL,
        trace_id word NOT NULL,
        last_at  bigint NOT NULL,
        due_at   bigint NOT NULL,
        spans    bigint NOT NULL,
        sealed   bigint NOT NULL,
        told     bigint NOT NULL,
        news     bigint NOT NULL,
        PRIMARY KEY (tenant, trace_id)
    ) WITH (fillfactor = 70)
    """,
    "CREATE INDEX otlp_traces_due ON otlp_traces (due_at)",
    # Parts of episode 0 are in none yet.
    """
    CREATE TABLE otlp_parts (
        tenant   word NOT NULL,
        trace_id word NOT NULL,
        digest   bytea NOT NULL,
        episode  bigint NOT NULL,
        body     bytea NOT NULL,
        PRIMARY KEY (tenant, trace_id, digest)
    )
    """,
    *tenant_table("otlp_traces", "SELECT, INSERT, UPDATE, DELETE"),
    *tenant_table("otlp_parts", "SELECT, INSERT, UPDATE, DELETE"),
    *clockwork_table("otlp_traces", "SELECT (tenant, trace_id, due_at)"),
    *host_functions(TRACES_FUNCTIONS),
)
