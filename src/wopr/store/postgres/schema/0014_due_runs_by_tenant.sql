-- Steps from one tenant with a timer to the next in the index, so the cost depends on the number of
-- tenants and not on the number of runs.
CREATE FUNCTION host_due_of_each(bigint, bigint) RETURNS TABLE (tenant text, id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    WITH RECURSIVE owners (tenant) AS (
        (
            SELECT r.tenant FROM runs r WHERE r.wake_at IS NOT NULL AND r.holder IS NULL
            ORDER BY r.tenant LIMIT 1
        )
        UNION ALL
        SELECT (
            SELECT r.tenant FROM runs r
            WHERE r.tenant > o.tenant AND r.wake_at IS NOT NULL AND r.holder IS NULL
            ORDER BY r.tenant LIMIT 1
        ) FROM owners o WHERE o.tenant IS NOT NULL
    )
    SELECT o.tenant, d.run_id FROM owners o CROSS JOIN LATERAL (
        SELECT r.run_id FROM runs r
        WHERE r.tenant = o.tenant AND r.wake_at <= $1 AND r.wake_at IS NOT NULL
            AND r.holder IS NULL
        ORDER BY r.wake_at, r.run_id LIMIT $2
    ) d
$$;

-- As `host_take_due`, for the runs with these ids.
CREATE FUNCTION host_take(bigint, text[]) RETURNS TABLE (tenant text, id text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    WITH due AS (
        SELECT r.run_id FROM runs r
        WHERE r.run_id = ANY ($2) AND r.wake_at <= $1 AND r.holder IS NULL AND NOT EXISTS (
            SELECT 1 FROM procrastinate_jobs j
            WHERE j.lock = r.run_id::text COLLATE pg_catalog."default" AND j.status = 'doing'
        ) FOR UPDATE OF r SKIP LOCKED
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
ALTER FUNCTION host_due_of_each OWNER TO wopr_clockwork;
ALTER FUNCTION host_take OWNER TO wopr_clockwork;
REVOKE CREATE ON SCHEMA wopr FROM wopr_clockwork;
REVOKE ALL ON FUNCTION host_due_of_each, host_take FROM PUBLIC;
GRANT EXECUTE ON FUNCTION host_due_of_each, host_take TO wopr_service;
