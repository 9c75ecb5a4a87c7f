-- Limits: the active runs of a tenant, and the descendants of a root run.
--
-- Each connection that creates or ends runs counts in its own row (`shard`), so two
-- transactions never wait for the same row. The number of active runs is the sum.
-- `host_add_up_active_runs` moves the sum to shard 0. `faults.py` maps the error codes WO004 and
-- WO005 to exceptions.

ALTER TABLE runs ADD COLUMN root_run_id word;
ALTER TABLE runs ADD COLUMN descendants bigint NOT NULL DEFAULT 0;

CREATE TABLE active_runs (
    tenant word NOT NULL,
    shard  bigint NOT NULL,
    runs   bigint NOT NULL,
    PRIMARY KEY (tenant, shard)
) WITH (fillfactor = 50);

ALTER TABLE active_runs ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_rows ON active_runs
USING (tenant = nullif(current_setting('wopr.tenant', true), ''))
WITH CHECK (tenant = nullif(current_setting('wopr.tenant', true), ''));
GRANT SELECT, INSERT, UPDATE ON active_runs TO wopr_service;

CREATE POLICY host_rows ON active_runs TO wopr_clockwork
USING (current_user = 'wopr_clockwork') WITH CHECK (current_user = 'wopr_clockwork');
GRANT SELECT, INSERT, UPDATE, DELETE ON active_runs TO wopr_clockwork;

CREATE FUNCTION count_active(owner text, change bigint) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO active_runs AS a (tenant, shard, runs) VALUES ($1, pg_backend_pid(), $2)
    ON CONFLICT (tenant, shard) DO UPDATE SET runs = a.runs + excluded.runs
$$;

CREATE FUNCTION count_ended() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM count_active(OLD.tenant, -1);
    RETURN NULL;
END
$$;

CREATE TRIGGER count_ended AFTER UPDATE OF ended_at ON runs FOR EACH ROW
WHEN (
    OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL
    AND NOT starts_with(OLD.run_id, 'kahn-')
) EXECUTE FUNCTION count_ended();

-- A run beyond a limit raises an error, which rolls the transaction back.
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
        CASE WHEN NOT is_over AND (step #> '{claim,keeps}')::boolean
            THEN step #>> '{claim,process}' END,
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
                ERRCODE = 'WO005',
                DETAIL = jsonb_build_array(run ->> 'root_run_id', most, found_runs - 1)::text;
        END IF;
    END IF;
    IF NOT is_over AND NOT starts_with(run ->> 'run_id', 'kahn-') THEN
        PERFORM count_active(owner, 1);
        most := (step -> 'most_active')::bigint;
        IF most IS NOT NULL THEN
            SELECT sum(runs)::bigint INTO found_runs FROM active_runs WHERE tenant = owner;
            IF found_runs > most THEN
                RAISE EXCEPTION 'too many active runs' USING
                    ERRCODE = 'WO004',
                    DETAIL = jsonb_build_array(owner, most, found_runs - 1)::text;
            END IF;
        END IF;
    END IF;
    RETURN true;
END
$$;

-- Rows that another transaction is changing are left for the next call.
CREATE FUNCTION host_add_up_active_runs() RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    WITH added AS (
        DELETE FROM active_runs WHERE (tenant, shard) IN (
            SELECT tenant, shard FROM active_runs WHERE shard <> 0 FOR UPDATE SKIP LOCKED
        ) RETURNING tenant, runs
    )
    INSERT INTO active_runs AS a (tenant, shard, runs)
    SELECT tenant, 0, sum(runs)::bigint FROM added GROUP BY tenant
    ON CONFLICT (tenant, shard) DO UPDATE SET runs = a.runs + excluded.runs
$$;

-- One statement reads the runs and the counters from one snapshot, so the difference is correct
-- during other transactions.
CREATE FUNCTION host_recount_active_runs() RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    INSERT INTO active_runs AS a (tenant, shard, runs)
    SELECT tenant, 0, sum(runs)::bigint FROM (
        SELECT tenant, count(*) AS runs FROM runs
        WHERE ended_at IS NULL AND NOT starts_with(run_id, 'kahn-')
        GROUP BY tenant
        UNION ALL SELECT tenant, -runs FROM active_runs
    ) counted GROUP BY tenant HAVING sum(runs) <> 0
    ON CONFLICT (tenant, shard) DO UPDATE SET runs = a.runs + excluded.runs
$$;

-- A new owner of a function must have the right to create in its schema.
GRANT USAGE, CREATE ON SCHEMA wopr TO wopr_clockwork;
ALTER FUNCTION host_add_up_active_runs OWNER TO wopr_clockwork;
ALTER FUNCTION host_recount_active_runs OWNER TO wopr_clockwork;
REVOKE CREATE ON SCHEMA wopr FROM wopr_clockwork;
REVOKE ALL ON FUNCTION host_add_up_active_runs, host_recount_active_runs FROM PUBLIC;
GRANT EXECUTE ON FUNCTION host_add_up_active_runs, host_recount_active_runs TO wopr_service;

SELECT host_recount_active_runs();
