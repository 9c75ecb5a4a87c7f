"""Which code each process has, and which runs wait for code that their last writer lacks."""

from __future__ import annotations

from wopr.store.port.runs import OBSERVED_PREFIX
from wopr.store.postgres.schema_host import CLOCKWORK, HostFunction
from wopr.store.postgres.schema_peers import DEAD_AFTER_SECONDS
from wopr.store.postgres.security import host_functions

_MISSING = "convert_from(r.missing_types, 'UTF8')::jsonb"

# The code of a node is its type, then the tools of its agent, a line each.
_FUNCTIONS = (
    HostFunction(
        name="host_waiting_for_code",
        takes=("text[]", "bigint"),
        gives="TABLE (tenant text, id text)",
        body=f"""
            SELECT r.tenant, r.run_id FROM runs r
            WHERE r.missing_types IS NOT NULL AND r.holder IS NULL AND EXISTS (
                SELECT 1 FROM jsonb_each_text({_MISSING}) AS missing
                WHERE string_to_array(missing.value, chr(10)) <@ $1
            ) ORDER BY r.created_at, r.run_id LIMIT $2
        """,
    ),
    HostFunction(
        name="host_count_waiting_for_code",
        gives="bigint",
        body="SELECT count(*) FROM runs WHERE missing_types IS NOT NULL",
    ),
    # The holder of the run, or else any live process that has all the code of one of the nodes.
    HostFunction(
        name="host_hand_over",
        takes=("text", "text", "text", "text[]"),
        gives="boolean",
        changes=True,
        body=f"""
            WITH able AS (
                SELECT p.process_id FROM processes p
                WHERE p.process_id <> $3 AND p.executes AND EXISTS (
                    SELECT 1 FROM unnest($4) AS need
                    WHERE string_to_array(need, chr(10)) <@ p.node_types
                ) AND p.beat_at >= clock_timestamp() - interval '{DEAD_AFTER_SECONDS} seconds'
                ORDER BY random() LIMIT 1
            ), chosen AS (
                SELECT coalesce(r.holder, (SELECT process_id FROM able)) AS process_id
                FROM runs r WHERE r.run_id = $2 AND r.tenant = $1
            ), told AS (
                SELECT pg_notify(
                    'wopr', jsonb_build_array($1, 'woken', $2, c.process_id::text)::text
                ) FROM chosen c WHERE c.process_id IS NOT NULL
            ) SELECT count(*) > 0 FROM told
        """,
    ),
)

# A run that an older program left with a running node, no holder and no wake-up is looked at again.
_REQUEUE = f"""
    UPDATE runs SET wake_at = least(wake_at, (extract(epoch FROM now()) * 1000)::bigint)
    WHERE ended_at IS NULL AND holder IS NULL AND status = 'running'
        AND NOT starts_with(run_id, '{OBSERVED_PREFIX}')
"""

CODE = (
    "ALTER TABLE runs ADD COLUMN missing_types bytea",
    "ALTER TABLE processes ADD COLUMN code_version text NOT NULL DEFAULT ''",
    "ALTER TABLE processes ADD COLUMN node_types text[] NOT NULL DEFAULT '{}'",
    "ALTER TABLE processes ADD COLUMN executes boolean NOT NULL DEFAULT true",
    f"GRANT SELECT (created_at, missing_types) ON runs TO {CLOCKWORK}",
    *host_functions(_FUNCTIONS),
    "ALTER TABLE runs NO FORCE ROW LEVEL SECURITY",
    _REQUEUE,
    "ALTER TABLE runs FORCE ROW LEVEL SECURITY",
)

CODE_INDEX = (
    """
    CREATE INDEX CONCURRENTLY IF NOT EXISTS runs_waiting_for_code
    ON runs (tenant, created_at, run_id) WHERE missing_types IS NOT NULL
    """,
)
