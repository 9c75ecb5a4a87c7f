-- Processes take due runs many at a time. A run without holder is taken from its row when it is
-- due. A job wakes a run that has a holder, and a run that no process has taken within 2 seconds.

-- A run that was taken is not due for 10 seconds. Its process then writes when the run is due next;
-- if the process dies before, another process takes the run. The run is locked before its job, in the order
-- of `append`. Rows are read by id, because the planner would read the
-- whole table for a join.
CREATE FUNCTION host_take_due(bigint, bigint) RETURNS TABLE (tenant text, id text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    WITH due AS (
        SELECT r.run_id FROM runs r
        WHERE r.wake_at <= $1 AND r.holder IS NULL AND NOT EXISTS (
            SELECT 1 FROM procrastinate_jobs j
            WHERE j.lock = r.run_id::text COLLATE pg_catalog."default" AND j.status = 'doing'
        ) ORDER BY r.wake_at, r.run_id LIMIT $2 FOR UPDATE OF r SKIP LOCKED
    ), taken AS (
        UPDATE runs r SET wake_at = $1 + 10000
        WHERE r.run_id = ANY (ARRAY (SELECT run_id FROM due)) RETURNING r.tenant, r.run_id
    ), unqueued AS (
        DELETE FROM procrastinate_jobs j
        WHERE j.queueing_lock = ANY (
            ARRAY (SELECT r.run_id::text COLLATE pg_catalog."default" FROM taken r)
        ) AND j.status = 'todo' RETURNING 1
    ) SELECT tenant, run_id FROM taken
$$;

-- A new owner of a function must have the right to create in its schema.
GRANT USAGE, CREATE ON SCHEMA wopr TO wopr_clockwork;
ALTER FUNCTION host_take_due OWNER TO wopr_clockwork;
REVOKE CREATE ON SCHEMA wopr FROM wopr_clockwork;
REVOKE ALL ON FUNCTION host_take_due FROM PUBLIC;
GRANT EXECUTE ON FUNCTION host_take_due TO wopr_service;

CREATE OR REPLACE FUNCTION host_queue_due(bigint, bigint) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    WITH due AS (
        SELECT r.tenant, r.run_id, r.wake_at FROM runs r
        WHERE r.wake_at <= $1 + 20000
        AND (r.holder IS NOT NULL OR r.wake_at <= $1 - 2000)
        AND NOT EXISTS (
            SELECT 1 FROM procrastinate_jobs j
            WHERE j.queueing_lock = r.run_id::text COLLATE pg_catalog."default"
                AND j.status = 'todo'
        ) AND NOT EXISTS (
            SELECT 1 FROM procrastinate_jobs j
            WHERE j.lock = r.run_id::text COLLATE pg_catalog."default" AND j.status = 'doing'
        ) ORDER BY r.wake_at, r.run_id LIMIT $2
    ), queued AS (
        INSERT INTO procrastinate_jobs (
            queue_name, task_name, priority, lock, queueing_lock, args, scheduled_at
        )
        SELECT 'runs', 'wopr.advance', 0, d.run_id, d.run_id,
            jsonb_build_object('tenant', d.tenant, 'run_id', d.run_id),
            CASE WHEN d.wake_at > $1
            THEN clock_timestamp() + (d.wake_at - $1) * interval '1 millisecond' END
        FROM due d
        ON CONFLICT (queueing_lock) WHERE status = 'todo' DO NOTHING RETURNING 1
    ) SELECT count(*) FROM queued
$$;
