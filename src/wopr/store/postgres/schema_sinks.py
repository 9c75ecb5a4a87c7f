"""How far audit sinks have come. Only a host may say so: a login could make a sink skip entries."""

from __future__ import annotations

from wopr.store.postgres.schema_host import CLOCKWORK, HostFunction
from wopr.store.postgres.security import host_functions

AUDIT_SINKS = (
    """
    CREATE TABLE audit_sinks (
        sink       word NOT NULL PRIMARY KEY,
        sequence   bigint NOT NULL,
        checkpoint bigint NOT NULL
    )
    """,
    f"GRANT SELECT, INSERT, UPDATE ON audit_sinks TO {CLOCKWORK}",
    *host_functions(
        (
            HostFunction(
                name="host_sink_position",
                takes=("text",),
                gives="TABLE (sequence bigint, checkpoint bigint)",
                body="SELECT sequence, checkpoint FROM audit_sinks WHERE sink = $1",
            ),
            HostFunction(
                name="host_put_sink_position",
                takes=("text", "bigint", "bigint"),
                gives="void",
                changes=True,
                body="""
                    INSERT INTO audit_sinks AS held (sink, sequence, checkpoint)
                    VALUES ($1, $2, $3)
                    ON CONFLICT (sink) DO UPDATE SET
                        sequence = greatest(held.sequence, excluded.sequence),
                        checkpoint = greatest(held.checkpoint, excluded.checkpoint)
                """,
            ),
        )
    ),
)
