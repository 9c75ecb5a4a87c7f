-- Signals of runs (1 flagged, 2 rated, 4 corrected, 8 intervened) and counters of runs by signals.
--
-- A counter has one row per server process (`shard`), so two transactions never wait for the same
-- counter. A single row may be negative; the sum over all shards is the number of runs.

ALTER TABLE annotations ADD COLUMN source word NOT NULL DEFAULT 'person';
ALTER TABLE runs ADD COLUMN signals bigint NOT NULL DEFAULT 0;

CREATE TABLE run_feedback (
    tenant      word NOT NULL,
    run_id      word NOT NULL,
    ratings     bigint NOT NULL,
    rating_sum  bigint NOT NULL,
    corrections bigint NOT NULL,
    labels      bigint NOT NULL,
    flags       bigint NOT NULL,
    PRIMARY KEY (tenant, run_id)
) WITH (fillfactor = 70);

CREATE TABLE run_labels (
    tenant     word NOT NULL,
    label      word NOT NULL,
    created_at bigint NOT NULL,
    run_id     word NOT NULL,
    PRIMARY KEY (tenant, label, created_at, run_id)
);
CREATE INDEX run_labels_by_run ON run_labels (tenant, run_id);

-- The agents that took part in a run, each with the signals that count for it.
CREATE TABLE run_agents (
    tenant      word NOT NULL,
    run_id      word NOT NULL,
    agent_id    word NOT NULL,
    workflow_id word NOT NULL,
    created_at  bigint NOT NULL,
    signals     bigint NOT NULL,
    PRIMARY KEY (tenant, run_id, agent_id)
) WITH (fillfactor = 80);

CREATE TABLE run_hours (
    tenant      word NOT NULL,
    bucket      bigint NOT NULL,
    workflow_id word NOT NULL,
    agent_id    word NOT NULL,
    signals     bigint NOT NULL,
    shard       bigint NOT NULL DEFAULT 0,
    runs        bigint NOT NULL,
    PRIMARY KEY (tenant, bucket, workflow_id, agent_id, signals, shard)
) WITH (fillfactor = 50);

CREATE TABLE run_days (
    tenant      word NOT NULL,
    bucket      bigint NOT NULL,
    workflow_id word NOT NULL,
    agent_id    word NOT NULL,
    signals     bigint NOT NULL,
    shard       bigint NOT NULL DEFAULT 0,
    runs        bigint NOT NULL,
    PRIMARY KEY (tenant, bucket, workflow_id, agent_id, signals, shard)
) WITH (fillfactor = 50);

-- The migration separates checks of KAHN producers from annotations of people, so it computes all
-- counters again, for all tenants. It omits labels with an escaped control character: PostgreSQL
-- cannot read these from JSON.
ALTER TABLE runs NO FORCE ROW LEVEL SECURITY;
ALTER TABLE events NO FORCE ROW LEVEL SECURITY;
ALTER TABLE annotations NO FORCE ROW LEVEL SECURITY;
ALTER TABLE feedback_hours NO FORCE ROW LEVEL SECURITY;
ALTER TABLE feedback_days NO FORCE ROW LEVEL SECURITY;

UPDATE annotations SET source = 'audit'
WHERE starts_with(run_id, 'kahn-')
    AND position(convert_to('"principalRef":"kahn:', 'UTF8') IN body) > 0;

INSERT INTO run_feedback SELECT tenant, run_id,
    count(*) FILTER (WHERE kind = 'rating'), coalesce(sum(rating), 0),
    count(*) FILTER (WHERE kind = 'correction'), count(*) FILTER (WHERE kind = 'label'),
    count(*) FILTER (WHERE kind = 'flag')
FROM annotations WHERE source <> 'audit' GROUP BY 1, 2;

INSERT INTO run_labels
SELECT DISTINCT a.tenant, convert_from(a.body, 'UTF8')::json #>> '{signal,label}',
    r.created_at, a.run_id
FROM annotations a JOIN runs r ON r.run_id = a.run_id
WHERE a.kind = 'label' AND a.source <> 'audit'
    AND position(decode('5c753030', 'hex') IN a.body) = 0
    AND length(convert_from(a.body, 'UTF8')::json #>> '{signal,label}') <= 200;

UPDATE runs r SET signals = a.signals FROM (
    SELECT tenant, run_id, bit_or(CASE kind
        WHEN 'flag' THEN 1 WHEN 'rating' THEN 2
        WHEN 'correction' THEN 12 ELSE 0
    END) AS signals FROM annotations WHERE source <> 'audit' GROUP BY tenant, run_id
) a WHERE r.tenant = a.tenant AND r.run_id = a.run_id AND a.signals <> 0;

UPDATE runs SET signals = signals | 8 WHERE has_suspended AND EXISTS (
    SELECT 1 FROM events e WHERE e.run_id = runs.run_id AND e.type = 'interrupt.resolved'
);

DELETE FROM feedback_hours;

INSERT INTO feedback_hours
SELECT tenant, created_at - created_at % 3600000, workflow_id, agent_id, node_id,
    count(*) FILTER (WHERE kind = 'rating'), coalesce(sum(rating), 0),
    count(*) FILTER (WHERE kind = 'correction'), count(*) FILTER (WHERE kind = 'label'),
    count(*) FILTER (WHERE kind = 'flag')
FROM annotations WHERE source <> 'audit' GROUP BY 1, 2, 3, 4, 5;

INSERT INTO run_hours (tenant, bucket, workflow_id, agent_id, signals, runs)
SELECT tenant, created_at - created_at % 3600000, workflow_id, '', signals, count(*)
FROM runs GROUP BY 1, 2, 3, 5;

DELETE FROM feedback_days;

INSERT INTO feedback_days
SELECT tenant, created_at - created_at % 86400000, workflow_id, agent_id, node_id,
    count(*) FILTER (WHERE kind = 'rating'), coalesce(sum(rating), 0),
    count(*) FILTER (WHERE kind = 'correction'), count(*) FILTER (WHERE kind = 'label'),
    count(*) FILTER (WHERE kind = 'flag')
FROM annotations WHERE source <> 'audit' GROUP BY 1, 2, 3, 4, 5;

INSERT INTO run_days (tenant, bucket, workflow_id, agent_id, signals, runs)
SELECT tenant, created_at - created_at % 86400000, workflow_id, '', signals, count(*)
FROM runs GROUP BY 1, 2, 3, 5;

ALTER TABLE runs FORCE ROW LEVEL SECURITY;
ALTER TABLE events FORCE ROW LEVEL SECURITY;
ALTER TABLE annotations FORCE ROW LEVEL SECURITY;
ALTER TABLE feedback_hours FORCE ROW LEVEL SECURITY;
ALTER TABLE feedback_days FORCE ROW LEVEL SECURITY;

CREATE FUNCTION count_run(
    owner text, run_at bigint, workflow text, agent text, marks bigint, change bigint
) RETURNS void LANGUAGE sql AS $$
    INSERT INTO wopr.run_hours AS c (
        tenant, bucket, workflow_id, agent_id, signals, shard, runs
    ) VALUES (
        owner, run_at - run_at % 3600000, workflow, agent, marks, pg_backend_pid(), change
    ) ON CONFLICT (tenant, bucket, workflow_id, agent_id, signals, shard)
    DO UPDATE SET runs = c.runs + excluded.runs;

    INSERT INTO wopr.run_days AS c (
        tenant, bucket, workflow_id, agent_id, signals, shard, runs
    ) VALUES (
        owner, run_at - run_at % 86400000, workflow, agent, marks, pg_backend_pid(), change
    ) ON CONFLICT (tenant, bucket, workflow_id, agent_id, signals, shard)
    DO UPDATE SET runs = c.runs + excluded.runs;
$$;

CREATE FUNCTION count_runs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM wopr.count_run(OLD.tenant, OLD.created_at, OLD.workflow_id, '', OLD.signals, -1);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM wopr.count_run(NEW.tenant, NEW.created_at, NEW.workflow_id, '', NEW.signals, 1);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER runs_counted AFTER INSERT OR DELETE OR UPDATE OF signals ON runs
FOR EACH ROW EXECUTE FUNCTION count_runs();

CREATE FUNCTION count_run_agents() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM wopr.count_run(
            OLD.tenant, OLD.created_at, OLD.workflow_id, OLD.agent_id, OLD.signals, -1
        );
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM wopr.count_run(
            NEW.tenant, NEW.created_at, NEW.workflow_id, NEW.agent_id, NEW.signals, 1
        );
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER run_agents_counted AFTER INSERT OR DELETE OR UPDATE OF signals ON run_agents
FOR EACH ROW EXECUTE FUNCTION count_run_agents();

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY '{
        run_feedback, run_labels, run_agents, run_hours, run_days
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
GRANT SELECT, INSERT, UPDATE, DELETE ON run_feedback, run_agents TO wopr_service;
GRANT SELECT, INSERT, DELETE ON run_labels TO wopr_service;
GRANT SELECT, INSERT, UPDATE ON run_hours, run_days TO wopr_service;
