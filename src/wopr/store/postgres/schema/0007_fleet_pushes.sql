-- Retention of KAHN runs counts from the last push. Existing rows count from this migration on: the
-- default is evaluated once.

ALTER TABLE fleet_runs ADD COLUMN pushed_at bigint NOT NULL
DEFAULT (extract(epoch FROM now()) * 1000)::bigint;

ALTER TABLE fleet_runs ALTER COLUMN pushed_at DROP DEFAULT;
ALTER TABLE fleet_agent_runs ADD COLUMN totals text;
GRANT SELECT (source, pushed_at) ON fleet_runs TO wopr_clockwork;

CREATE FUNCTION host_fleet_aged(text, bigint, bigint)
RETURNS TABLE (tenant text, id text, pushed_at bigint, hidden_at bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT tenant, run_id, pushed_at, hidden_at FROM fleet_runs
    WHERE hidden_at IS NULL AND source = $1 AND pushed_at <= $2
    ORDER BY pushed_at LIMIT $3
$$;

-- A new owner of a function must have the right to create in its schema.
GRANT USAGE, CREATE ON SCHEMA wopr TO wopr_clockwork;
ALTER FUNCTION host_fleet_aged OWNER TO wopr_clockwork;
REVOKE CREATE ON SCHEMA wopr FROM wopr_clockwork;
REVOKE ALL ON FUNCTION host_fleet_aged FROM PUBLIC;
GRANT EXECUTE ON FUNCTION host_fleet_aged TO wopr_service;
