-- The node types and tools that each process has, and the runs that wait for code that their last
-- writer lacks. The code of a node is its type and then the tools of its agent, one per line.

ALTER TABLE runs ADD COLUMN missing_types bytea;
ALTER TABLE processes ADD COLUMN code_version text NOT NULL DEFAULT '';
ALTER TABLE processes ADD COLUMN node_types text[] NOT NULL DEFAULT '{}';
ALTER TABLE processes ADD COLUMN executes boolean NOT NULL DEFAULT true;
GRANT SELECT (created_at, missing_types) ON runs TO wopr_clockwork;

CREATE FUNCTION host_waiting_for_code(text[], bigint) RETURNS TABLE (tenant text, id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT r.tenant, r.run_id FROM runs r
    WHERE r.missing_types IS NOT NULL AND r.holder IS NULL AND EXISTS (
        SELECT 1 FROM jsonb_each_text(convert_from(r.missing_types, 'UTF8')::jsonb) AS missing
        WHERE string_to_array(missing.value, chr(10)) <@ $1
    ) ORDER BY r.created_at, r.run_id LIMIT $2
$$;

CREATE FUNCTION host_count_waiting_for_code() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT count(*) FROM runs WHERE missing_types IS NOT NULL
$$;

-- Notify the holder of the run, else any live process that has all the code of one of the nodes.
CREATE FUNCTION host_hand_over(text, text, text, text[]) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    WITH able AS (
        SELECT p.process_id FROM processes p
        WHERE p.process_id <> $3 AND p.executes AND EXISTS (
            SELECT 1 FROM unnest($4) AS need
            WHERE string_to_array(need, chr(10)) <@ p.node_types
        ) AND p.beat_at >= clock_timestamp() - interval '6.0 seconds'
        ORDER BY random() LIMIT 1
    ), chosen AS (
        SELECT coalesce(r.holder, (SELECT process_id FROM able)) AS process_id
        FROM runs r WHERE r.run_id = $2 AND r.tenant = $1
    ), told AS (
        SELECT pg_notify(
            'wopr', jsonb_build_array($1, 'woken', $2, c.process_id::text)::text
        ) FROM chosen c WHERE c.process_id IS NOT NULL
    ) SELECT count(*) > 0 FROM told
$$;

-- A new owner of a function must have the right to create in its schema.
GRANT USAGE, CREATE ON SCHEMA wopr TO wopr_clockwork;
ALTER FUNCTION host_waiting_for_code OWNER TO wopr_clockwork;
ALTER FUNCTION host_count_waiting_for_code OWNER TO wopr_clockwork;
ALTER FUNCTION host_hand_over OWNER TO wopr_clockwork;
REVOKE CREATE ON SCHEMA wopr FROM wopr_clockwork;
REVOKE ALL ON FUNCTION
    host_waiting_for_code, host_count_waiting_for_code, host_hand_over
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    host_waiting_for_code, host_count_waiting_for_code, host_hand_over
TO wopr_service;

-- An older program may have left a run with a running node, without holder and wake-up: wake it.
ALTER TABLE runs NO FORCE ROW LEVEL SECURITY;

UPDATE runs SET wake_at = least(wake_at, (extract(epoch FROM now()) * 1000)::bigint)
WHERE ended_at IS NULL AND holder IS NULL AND status = 'running'
    AND NOT starts_with(run_id, 'kahn-');

ALTER TABLE runs FORCE ROW LEVEL SECURITY;
