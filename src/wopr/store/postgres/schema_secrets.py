"""The table of tenants' sealed credentials."""

from __future__ import annotations

from wopr.store.postgres.security import tenant_table

SECRETS = (
    """
    CREATE TABLE secrets (
        tenant     word NOT NULL,
        name       word NOT NULL,
        sealed     bytea NOT NULL,
        audience   bytea NOT NULL,
        updated_at bigint NOT NULL,
        PRIMARY KEY (tenant, name)
    )
    """,
    *tenant_table("secrets", "SELECT, INSERT, UPDATE, DELETE"),
)
