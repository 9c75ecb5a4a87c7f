-- Crashes per run, and quarantine after three. A run row names the process that executes its nodes.
-- When a process dies, the process that releases its runs counts a crash for each of them.

ALTER TABLE runs ADD COLUMN crashes bigint NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN quarantined_at bigint;
GRANT SELECT (crashes, quarantined_at), UPDATE (crashes, quarantined_at)
ON runs TO wopr_clockwork;

CREATE OR REPLACE FUNCTION host_rescue(bigint) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    DELETE FROM processes p
    WHERE p.beat_at < clock_timestamp() - interval '6.0 seconds';
    WITH orphans AS (
        SELECT run_id FROM runs r WHERE r.holder IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM processes p WHERE p.process_id = r.holder
        ) ORDER BY run_id FOR UPDATE SKIP LOCKED
    ), freed AS (
        UPDATE runs r SET holder = NULL, wakes = r.wakes + 1, crashes = r.crashes + 1,
            quarantined_at = CASE
                WHEN r.ended_at IS NULL AND r.crashes + 1 >= 3
                THEN coalesce(r.quarantined_at, $1) END,
            wake_at = CASE WHEN r.ended_at IS NULL AND r.crashes + 1 < 3
                THEN least(r.wake_at, $1) END
        FROM orphans o WHERE r.run_id = o.run_id RETURNING 1
    ) SELECT count(*) FROM freed
$$;

CREATE FUNCTION host_count_freeze(text, text, bigint, bigint) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    UPDATE runs r SET crashes = greatest(r.crashes + $3, 0),
        quarantined_at = CASE WHEN r.crashes + $3 >= 3
            THEN coalesce(r.quarantined_at, $4) END,
        wake_at = CASE
            WHEN r.crashes + $3 >= 3 THEN NULL
            WHEN r.quarantined_at IS NOT NULL THEN $4
            ELSE r.wake_at END
    WHERE r.run_id = $2 AND r.tenant = $1 AND r.ended_at IS NULL
$$;

-- A new owner of a function must have the right to create in its schema.
GRANT USAGE, CREATE ON SCHEMA wopr TO wopr_clockwork;
ALTER FUNCTION host_count_freeze OWNER TO wopr_clockwork;
REVOKE CREATE ON SCHEMA wopr FROM wopr_clockwork;
REVOKE ALL ON FUNCTION host_count_freeze FROM PUBLIC;
GRANT EXECUTE ON FUNCTION host_count_freeze TO wopr_service;
