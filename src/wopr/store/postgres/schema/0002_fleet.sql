-- KAHN runs: their lines, the totals, and the queue of runs to project.

CREATE TABLE fleet_tenants (
    tenant word NOT NULL PRIMARY KEY,
    runs   bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE fleet_runs (
    tenant     word NOT NULL,
    run_id     word NOT NULL,
    kind       word NOT NULL,
    source     word NOT NULL,
    lines      bigint NOT NULL,
    started_at bigint NOT NULL,
    last_event bigint NOT NULL,
    ended_at   bigint,
    outcome    word,
    hidden_at  bigint,
    PRIMARY KEY (tenant, run_id)
) WITH (fillfactor = 80);

CREATE INDEX fleet_runs_newest ON fleet_runs (tenant, last_event, run_id)
WHERE hidden_at IS NULL;
CREATE INDEX fleet_runs_aging ON fleet_runs (started_at) WHERE hidden_at IS NULL;
CREATE INDEX fleet_runs_hidden ON fleet_runs (hidden_at) WHERE hidden_at IS NOT NULL;

-- One row has the lines of one push.
CREATE TABLE fleet_chunks (
    tenant word NOT NULL,
    run_id word NOT NULL,
    first  bigint NOT NULL,
    lines  bigint NOT NULL,
    hashes bytea NOT NULL,
    body   bytea NOT NULL,
    PRIMARY KEY (tenant, run_id, first)
);

CREATE TABLE fleet_agent_runs (
    tenant        word NOT NULL,
    run_id        word NOT NULL,
    agent_id      word NOT NULL,
    started_at    bigint NOT NULL,
    last_event    bigint NOT NULL,
    status        word NOT NULL,
    task          text NOT NULL,
    model         text,
    step          bigint NOT NULL,
    tool_calls    bigint NOT NULL,
    audits_passed bigint NOT NULL,
    audits_failed bigint NOT NULL,
    audits_warned bigint NOT NULL,
    blocked_at    bigint,
    ended_at      bigint,
    outcome       word,
    duration_s    double precision,
    score         double precision,
    duration_bin  bigint,
    score_units   bigint,
    PRIMARY KEY (tenant, run_id, agent_id)
) WITH (fillfactor = 80);

CREATE INDEX fleet_agent_runs_newest
ON fleet_agent_runs (tenant, agent_id, last_event, run_id);
CREATE INDEX fleet_agent_runs_by_time ON fleet_agent_runs (tenant, last_event);

CREATE INDEX fleet_agent_runs_by_duration
ON fleet_agent_runs (tenant, agent_id, duration_bin, last_event)
WHERE duration_bin IS NOT NULL;

CREATE INDEX fleet_agent_runs_ended
ON fleet_agent_runs (tenant, agent_id, ended_at, run_id) WHERE ended_at IS NOT NULL;

CREATE INDEX fleet_agent_runs_scored
ON fleet_agent_runs (tenant, agent_id, ended_at, run_id) WHERE score IS NOT NULL;

CREATE INDEX fleet_agent_runs_waiting
ON fleet_agent_runs (tenant, blocked_at, run_id, agent_id) WHERE blocked_at IS NOT NULL;

-- Runs whose audits after the end keep them in a time span that their end has left.
CREATE INDEX fleet_agent_runs_touched
ON fleet_agent_runs (tenant, agent_id, last_event, ended_at)
WHERE score IS NOT NULL AND last_event > ended_at;

CREATE TABLE fleet_audits (
    tenant        word NOT NULL,
    run_id        word NOT NULL,
    line          bigint NOT NULL,
    at            bigint NOT NULL,
    checkpoint_id word NOT NULL,
    result        word NOT NULL,
    PRIMARY KEY (tenant, run_id, line)
);
CREATE INDEX fleet_audits_by_time ON fleet_audits (tenant, at, checkpoint_id, result);

CREATE INDEX fleet_audits_failed ON fleet_audits (tenant, checkpoint_id, at, run_id)
WHERE result = 'fail';

-- The totals of a rolling time span count the runs since `since`. A transaction that counts
-- locks the row shared; one that moves the span locks it exclusively.
CREATE TABLE fleet_spans (
    tenant word NOT NULL,
    span   word NOT NULL,
    since  bigint NOT NULL,
    PRIMARY KEY (tenant, span)
);
CREATE INDEX fleet_spans_behind ON fleet_spans (span, since);

CREATE TABLE fleet_agents (
    tenant      word NOT NULL,
    span        word NOT NULL,
    agent_id    word NOT NULL,
    runs        bigint NOT NULL,
    converged   bigint NOT NULL,
    partial     bigint NOT NULL,
    escaped     bigint NOT NULL,
    aborted     bigint NOT NULL,
    scored      bigint NOT NULL,
    score_units bigint NOT NULL,
    PRIMARY KEY (tenant, span, agent_id)
) WITH (fillfactor = 50);

-- Histogram of durations: bins, and stretches of adjacent bins. A rank is looked up first in the
-- stretches, then in the bins.
CREATE TABLE fleet_stretches (
    tenant   word NOT NULL,
    span     word NOT NULL,
    agent_id word NOT NULL,
    stretch  bigint NOT NULL,
    runs     bigint NOT NULL,
    PRIMARY KEY (tenant, span, agent_id, stretch)
) WITH (fillfactor = 50);

CREATE TABLE fleet_bins (
    tenant       word NOT NULL,
    span         word NOT NULL,
    agent_id     word NOT NULL,
    duration_bin bigint NOT NULL,
    runs         bigint NOT NULL,
    PRIMARY KEY (tenant, span, agent_id, duration_bin)
) WITH (fillfactor = 70);

CREATE TABLE fleet_checkpoints (
    tenant        word NOT NULL,
    span          word NOT NULL,
    checkpoint_id word NOT NULL,
    passed        bigint NOT NULL,
    failed        bigint NOT NULL,
    warned        bigint NOT NULL,
    PRIMARY KEY (tenant, span, checkpoint_id)
) WITH (fillfactor = 50);

-- The queue of runs to project. `place` is never reused: it separates projected entries from later
-- ones. Observed runs (prefix `kahn-`) and runs of this host are two queues in one
-- table.
CREATE TABLE projections (
    place  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant word NOT NULL,
    run_id word NOT NULL,
    UNIQUE (tenant, run_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX projections_observed
ON projections (starts_with(run_id, 'kahn-'), place);

CREATE INDEX projections_by_tenant ON projections (tenant, place)
WHERE starts_with(run_id, 'kahn-');

CREATE FUNCTION put_projections(owner text, run_ids text[]) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO projections (tenant, run_id)
    SELECT DISTINCT owner, run FROM unnest(run_ids) AS run ORDER BY run
    ON CONFLICT (tenant, run_id) DO UPDATE SET place = DEFAULT
$$;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY '{
        fleet_tenants, fleet_runs, fleet_chunks, fleet_agent_runs, fleet_audits,
        fleet_spans, fleet_agents, fleet_stretches, fleet_bins, fleet_checkpoints,
        projections
    }'::text[] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
        EXECUTE format($policy$
            CREATE POLICY own_rows ON %I
            USING (tenant = nullif(current_setting('wopr.tenant', true), ''))
            WITH CHECK (tenant = nullif(current_setting('wopr.tenant', true), ''))
        $policy$, name);
    END LOOP;
END
$$;
GRANT SELECT, INSERT, UPDATE ON fleet_tenants, fleet_spans, projections TO wopr_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON
    fleet_runs, fleet_agent_runs, fleet_agents, fleet_stretches, fleet_bins, fleet_checkpoints
TO wopr_service;
GRANT SELECT, INSERT, DELETE ON fleet_chunks, fleet_audits TO wopr_service;

CREATE POLICY host_rows ON fleet_runs TO wopr_clockwork
USING (current_user = 'wopr_clockwork') WITH CHECK (current_user = 'wopr_clockwork');
GRANT SELECT (tenant, run_id, started_at, hidden_at) ON fleet_runs TO wopr_clockwork;

CREATE POLICY host_rows ON fleet_spans TO wopr_clockwork
USING (current_user = 'wopr_clockwork') WITH CHECK (current_user = 'wopr_clockwork');
GRANT SELECT (tenant, span, since) ON fleet_spans TO wopr_clockwork;

CREATE POLICY host_rows ON projections TO wopr_clockwork
USING (current_user = 'wopr_clockwork') WITH CHECK (current_user = 'wopr_clockwork');
GRANT SELECT, UPDATE (place), DELETE ON projections TO wopr_clockwork;

CREATE FUNCTION host_unprojected(boolean, bigint, bigint)
RETURNS TABLE (place bigint, tenant text, id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT place, tenant, run_id FROM projections
    WHERE starts_with(run_id, 'kahn-') = $1 AND place > $2 ORDER BY place LIMIT $3
$$;

-- A row that another transaction is changing is queued again, so it is skipped and stays.
CREATE FUNCTION host_projected(bigint[], text[]) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    WITH done AS (
        SELECT p.place FROM unnest($1::bigint[], $2::text[]) AS given (place, tenant)
        JOIN projections p ON p.place = given.place AND p.tenant = given.tenant
        FOR UPDATE OF p SKIP LOCKED
    ) DELETE FROM projections p USING done WHERE p.place = done.place
$$;

CREATE FUNCTION host_fleet_behind(text, bigint) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT tenant FROM fleet_spans WHERE span = $1 AND since < $2 ORDER BY since LIMIT 1
$$;

CREATE FUNCTION host_fleet_begun(bigint, bigint)
RETURNS TABLE (tenant text, id text, started_at bigint, hidden_at bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT tenant, run_id, started_at, hidden_at FROM fleet_runs
    WHERE hidden_at IS NULL AND started_at <= $1 ORDER BY started_at LIMIT $2
$$;

CREATE FUNCTION host_fleet_hidden(bigint, bigint)
RETURNS TABLE (tenant text, id text, started_at bigint, hidden_at bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT tenant, run_id, started_at, hidden_at FROM fleet_runs
    WHERE hidden_at <= $1 ORDER BY hidden_at LIMIT $2
$$;

-- A new owner of a function must have the right to create in its schema.
GRANT USAGE, CREATE ON SCHEMA wopr TO wopr_clockwork;
ALTER FUNCTION host_unprojected OWNER TO wopr_clockwork;
ALTER FUNCTION host_projected OWNER TO wopr_clockwork;
ALTER FUNCTION host_fleet_behind OWNER TO wopr_clockwork;
ALTER FUNCTION host_fleet_begun OWNER TO wopr_clockwork;
ALTER FUNCTION host_fleet_hidden OWNER TO wopr_clockwork;
REVOKE CREATE ON SCHEMA wopr FROM wopr_clockwork;
REVOKE ALL ON FUNCTION
    host_unprojected, host_projected, host_fleet_behind, host_fleet_begun, host_fleet_hidden
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    host_unprojected, host_projected, host_fleet_behind, host_fleet_begun, host_fleet_hidden
TO wopr_service;
