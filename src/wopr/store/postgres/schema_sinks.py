"""Positions of audit sinks, and checkpoints. Only a host writes them.

A login could make a sink skip entries, or put a checkpoint of its own before those of the host.
"""

from __future__ import annotations

from wopr.store.postgres.schema_host import CLOCKWORK, SERVICE, HostFunction
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
    f"REVOKE INSERT ON audit_checkpoints FROM {SERVICE}",
    f"GRANT SELECT, INSERT ON audit_checkpoints TO {CLOCKWORK}",
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
            HostFunction(
                name="host_put_checkpoint",
                takes=("bigint", "text", "text", "text", "bytea"),
                gives="SETOF integer",
                changes=True,
                body="""
                    INSERT INTO audit_checkpoints
                        (at_sequence, merkle_root, signature, public_key, peaks)
                    VALUES ($1, $2, $3, $4, $5)
                    ON CONFLICT (at_sequence) DO NOTHING RETURNING 1
                """,
            ),
        )
    ),
)
