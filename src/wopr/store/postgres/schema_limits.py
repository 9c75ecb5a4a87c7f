"""Counters of runs: the active runs of a tenant, and the descendants of a root run.

The active runs of a tenant are counted in several rows, one for each connection that creates or ends
runs: two transactions never wait for the same row. The number of active runs is their sum. Now and
then the rows are added up into the row of shard 0.
"""

from __future__ import annotations

from wopr.store.port.runs import OBSERVED_PREFIX
from wopr.store.postgres.schema_host import HostFunction
from wopr.store.postgres.security import clockwork_table, host_functions, tenant_table

# The codes of what is raised; `faults` turns them into the host's errors.
TOO_MANY_ACTIVE = "WO004"
TOO_MANY_DESCENDANTS = "WO005"

_TABLE = """
    CREATE TABLE active_runs (
        tenant word NOT NULL,
        shard  bigint NOT NULL,
        runs   bigint NOT NULL,
        PRIMARY KEY (tenant, shard)
    ) WITH (fillfactor = 50)
    """

_COUNT_ACTIVE = """
    CREATE FUNCTION count_active(owner text, change bigint) RETURNS void
    LANGUAGE sql AS $$
        INSERT INTO active_runs AS a (tenant, shard, runs) VALUES ($1, pg_backend_pid(), $2)
        ON CONFLICT (tenant, shard) DO UPDATE SET runs = a.runs + excluded.runs
    $$
    """

_COUNT_ENDED = """
    CREATE FUNCTION count_ended() RETURNS trigger
    LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM count_active(OLD.tenant, -1);
        RETURN NULL;
    END
    $$
    """

_ON_END = f"""
    CREATE TRIGGER count_ended AFTER UPDATE OF ended_at ON runs FOR EACH ROW
    WHEN (
        OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL
        AND NOT starts_with(OLD.run_id, '{OBSERVED_PREFIX}')
    ) EXECUTE FUNCTION count_ended()
    """

# A run beyond a limit is an error, so that all that the transaction has written is undone.
_CREATE_RUN = f"""
    CREATE OR REPLACE FUNCTION create_run(owner text, step jsonb, blobs bytea[]) RETURNS boolean
    LANGUAGE plpgsql AS $$
    DECLARE
        run jsonb := step -> 'run';
        is_over boolean := run ? 'ended_at';
        most bigint;
        found_runs bigint;
    BEGIN
        INSERT INTO runs (
            run_id, tenant, workflow_id, workflow_version, status, created_at, updated_at,
            last_sequence, ended_at, wake_at, parent_run_id, parent_node_id, tags, wish, sealed,
            snapshot, source_run_id, fork, has_suspended, holder, root_run_id
        ) VALUES (
            run ->> 'run_id', owner, run ->> 'workflow_id', run ->> 'workflow_version',
            run ->> 'status', (run -> 'created_at')::bigint, (run -> 'updated_at')::bigint,
            (run -> 'last_sequence')::bigint, (run -> 'ended_at')::bigint,
            CASE WHEN NOT is_over THEN (run -> 'wake_at')::bigint END,
            run ->> 'parent_run_id', run ->> 'parent_node_id', blobs[(run -> 'tags')::int],
            CASE WHEN NOT is_over THEN blobs[(run -> 'wish')::int] END,
            CASE WHEN NOT is_over THEN blobs[(run -> 'sealed')::int] END,
            blobs[(run -> 'snapshot')::int], run ->> 'source_run_id',
            blobs[(run -> 'fork')::int], step ? 'suspends',
            CASE WHEN NOT is_over AND (step #> '{{claim,keeps}}')::boolean
                THEN step #>> '{{claim,process}}' END,
            run ->> 'root_run_id'
        ) ON CONFLICT (run_id) DO NOTHING;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        IF step ? 'tag_names' THEN
            INSERT INTO run_tags (tenant, tag, created_at, run_id)
            SELECT owner, tag, (run -> 'created_at')::bigint, run ->> 'run_id'
            FROM jsonb_array_elements_text(step -> 'tag_names') AS tag
            ON CONFLICT DO NOTHING;
        END IF;
        IF run ? 'root_run_id' THEN
            UPDATE runs SET descendants = descendants + 1
            WHERE run_id = run ->> 'root_run_id' AND tenant = owner
            RETURNING descendants INTO found_runs;
            most := (step -> 'most_descendants')::bigint;
            IF found_runs > most THEN
                RAISE EXCEPTION 'too many descendants' USING
                    ERRCODE = '{TOO_MANY_DESCENDANTS}',
                    DETAIL = jsonb_build_array(run ->> 'root_run_id', most, found_runs - 1)::text;
            END IF;
        END IF;
        IF NOT is_over AND NOT starts_with(run ->> 'run_id', '{OBSERVED_PREFIX}') THEN
            PERFORM count_active(owner, 1);
            most := (step -> 'most_active')::bigint;
            IF most IS NOT NULL THEN
                SELECT sum(runs)::bigint INTO found_runs FROM active_runs WHERE tenant = owner;
                IF found_runs > most THEN
                    RAISE EXCEPTION 'too many active runs' USING
                        ERRCODE = '{TOO_MANY_ACTIVE}',
                        DETAIL = jsonb_build_array(owner, most, found_runs - 1)::text;
                END IF;
            END IF;
        END IF;
        RETURN true;
    END
    $$
    """

# Rows that a transaction is about to change are left for the next time, so nothing is waited for.
_FUNCTIONS = (
    HostFunction(
        name="host_add_up_active_runs",
        gives="void",
        changes=True,
        body="""
            WITH added AS (
                DELETE FROM active_runs WHERE (tenant, shard) IN (
                    SELECT tenant, shard FROM active_runs WHERE shard <> 0 FOR UPDATE SKIP LOCKED
                ) RETURNING tenant, runs
            )
            INSERT INTO active_runs AS a (tenant, shard, runs)
            SELECT tenant, 0, sum(runs)::bigint FROM added GROUP BY tenant
            ON CONFLICT (tenant, shard) DO UPDATE SET runs = a.runs + excluded.runs
        """,
    ),
    # One statement sees the runs and the counters as of one instant, so the difference is right
    # whatever other transactions do.
    HostFunction(
        name="host_recount_active_runs",
        gives="void",
        changes=True,
        body=f"""
            INSERT INTO active_runs AS a (tenant, shard, runs)
            SELECT tenant, 0, sum(runs)::bigint FROM (
                SELECT tenant, count(*) AS runs FROM runs
                WHERE ended_at IS NULL AND NOT starts_with(run_id, '{OBSERVED_PREFIX}')
                GROUP BY tenant
                UNION ALL SELECT tenant, -runs FROM active_runs
            ) counted GROUP BY tenant HAVING sum(runs) <> 0
            ON CONFLICT (tenant, shard) DO UPDATE SET runs = a.runs + excluded.runs
        """,
    ),
)

RUN_COUNTS = (
    "ALTER TABLE runs ADD COLUMN root_run_id word",
    "ALTER TABLE runs ADD COLUMN descendants bigint NOT NULL DEFAULT 0",
    _TABLE,
    *tenant_table("active_runs", "SELECT, INSERT, UPDATE"),
    *clockwork_table("active_runs", "SELECT, INSERT, UPDATE, DELETE"),
    _COUNT_ACTIVE,
    _COUNT_ENDED,
    _ON_END,
    _CREATE_RUN,
    *host_functions(_FUNCTIONS),
    "SELECT host_recount_active_runs()",
)
