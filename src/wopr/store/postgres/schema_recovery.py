"""Crashes per run, and quarantine.

The runs whose nodes a process executes have its name in their rows. When a
process dies, the process that frees these runs counts a crash for each.
"""

from __future__ import annotations

from wopr.store.postgres.schema_host import CLOCKWORK, HostFunction
from wopr.store.postgres.schema_peers import DEAD_AFTER_SECONDS
from wopr.store.postgres.security import host_functions

# A run that was in flight when its process died has one crash before it was ever recovered.
MOST_CRASHES = 3

_RESCUE = HostFunction(
    name="host_rescue",
    takes=("bigint",),
    gives="bigint",
    changes=True,
    body=f"""
        DELETE FROM processes p
        WHERE p.beat_at < clock_timestamp() - interval '{DEAD_AFTER_SECONDS} seconds';
        WITH orphans AS (
            SELECT run_id FROM runs r WHERE r.holder IS NOT NULL AND NOT EXISTS (
                SELECT 1 FROM processes p WHERE p.process_id = r.holder
            ) ORDER BY run_id FOR UPDATE SKIP LOCKED
        ), freed AS (
            UPDATE runs r SET holder = NULL, wakes = r.wakes + 1, crashes = r.crashes + 1,
                quarantined_at = CASE
                    WHEN r.ended_at IS NULL AND r.crashes + 1 >= {MOST_CRASHES}
                    THEN coalesce(r.quarantined_at, $1) END,
                wake_at = CASE WHEN r.ended_at IS NULL AND r.crashes + 1 < {MOST_CRASHES}
                    THEN least(r.wake_at, $1) END
            FROM orphans o WHERE r.run_id = o.run_id RETURNING 1
        ) SELECT count(*) FROM freed
    """,
)

_COUNT_FREEZE = HostFunction(
    name="host_count_freeze",
    takes=("text", "text", "bigint", "bigint"),
    gives="void",
    changes=True,
    body=f"""
        UPDATE runs r SET crashes = greatest(r.crashes + $3, 0),
            quarantined_at = CASE WHEN r.crashes + $3 >= {MOST_CRASHES}
                THEN coalesce(r.quarantined_at, $4) END,
            wake_at = CASE
                WHEN r.crashes + $3 >= {MOST_CRASHES} THEN NULL
                WHEN r.quarantined_at IS NOT NULL THEN $4
                ELSE r.wake_at END
        WHERE r.run_id = $2 AND r.tenant = $1 AND r.ended_at IS NULL
    """,
)

QUARANTINE = (
    "ALTER TABLE runs ADD COLUMN crashes bigint NOT NULL DEFAULT 0",
    "ALTER TABLE runs ADD COLUMN quarantined_at bigint",
    f"GRANT SELECT (crashes, quarantined_at), UPDATE (crashes, quarantined_at) ON runs TO {CLOCKWORK}",
    _RESCUE.replacement,
    *host_functions((_COUNT_FREEZE,)),
)

QUARANTINE_INDEX = (
    """
    CREATE INDEX CONCURRENTLY IF NOT EXISTS runs_in_quarantine
    ON runs (tenant, created_at, run_id) WHERE quarantined_at IS NOT NULL AND ended_at IS NULL
    """,
)
