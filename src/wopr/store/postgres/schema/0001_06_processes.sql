-- Processes, leases and the queue of wake-ups, which all processes share.
--
-- The tables of the queue are those of Procrastinate; the migration creates them first. A job only
-- makes a process read a run. The run's row and its log determine the work, so a job that is lost,
-- duplicated or deleted only costs time.

CREATE TABLE processes (
    process_id word NOT NULL PRIMARY KEY,
    kind       word NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    beat_at    timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

CREATE TABLE leases (
    name       word NOT NULL PRIMARY KEY,
    process_id word NOT NULL,
    renewed_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

CREATE TABLE shared_facts (name word NOT NULL PRIMARY KEY, value text NOT NULL);

-- A job names a tenant and a run and has no other content.
GRANT SELECT, INSERT, UPDATE, DELETE ON
    procrastinate_jobs, procrastinate_workers, procrastinate_events, procrastinate_periodic_defers
TO wopr_service, wopr_clockwork;
GRANT USAGE ON SEQUENCE
    procrastinate_jobs_id_seq, procrastinate_events_id_seq, procrastinate_periodic_defers_id_seq
TO wopr_service, wopr_clockwork;
GRANT SELECT, DELETE ON processes, leases TO wopr_clockwork;

-- Queue a job for a run. A job that is already queued is locked until this transaction ends, even if
-- it does not change, so that no worker takes it before the cause of the wake-up is visible.
CREATE FUNCTION queue_wake(owner text, run text, delay bigint, urgency integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    moment timestamptz;
    is_new boolean;
BEGIN
    IF delay > 0 THEN
        moment := clock_timestamp() + delay * interval '1 millisecond';
    END IF;
    INSERT INTO procrastinate_jobs AS j (
        queue_name, task_name, priority, lock, queueing_lock, args, scheduled_at
    ) VALUES (
        'runs', 'wopr.advance', urgency, run, run,
        jsonb_build_object('tenant', owner, 'run_id', run), moment
    )
    ON CONFLICT (queueing_lock) WHERE status = 'todo' DO UPDATE SET
        priority = greatest(j.priority, excluded.priority),
        scheduled_at = CASE
            WHEN j.scheduled_at IS NOT NULL AND excluded.scheduled_at IS NOT NULL
            THEN least(j.scheduled_at, excluded.scheduled_at)
        END
    WHERE excluded.priority > j.priority
        OR excluded.scheduled_at < j.scheduled_at
        OR (excluded.scheduled_at IS NULL AND j.scheduled_at IS NOT NULL)
    RETURNING xmax = 0 INTO is_new;
    IF NOT is_new AND moment IS NULL THEN
        PERFORM pg_notify(
            'procrastinate_queue_v1#runs', '{"type": "job_inserted", "job_id": 0}'
        );
    END IF;
END
$$;

-- Notify the process that holds the run. Queue a job for a run without a holder.
CREATE FUNCTION wake_run(owner text, run text, held_by text, urgency integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF held_by IS NULL THEN
        PERFORM queue_wake(owner, run, 0, urgency);
    ELSE
        PERFORM pg_notify('wopr', jsonb_build_array(owner, 'woken', run, held_by)::text);
    END IF;
END
$$;

-- Notify all processes of a changed definition, so that they drop their cached copy.
CREATE FUNCTION tell_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    whose text;
    which text := '';
BEGIN
    IF TG_OP = 'DELETE' THEN
        whose := OLD.tenant;
        IF TG_TABLE_NAME = 'webhooks' THEN
            which := OLD.webhook_id;
        END IF;
    ELSE
        whose := NEW.tenant;
        IF TG_TABLE_NAME = 'webhooks' THEN
            which := NEW.webhook_id;
        END IF;
    END IF;
    PERFORM pg_notify('wopr', jsonb_build_array(whose, 'changed', TG_TABLE_NAME, which)::text);
    RETURN NULL;
END
$$;

CREATE TRIGGER tell AFTER INSERT ON workflows FOR EACH ROW EXECUTE FUNCTION tell_change();
CREATE TRIGGER tell AFTER INSERT ON agents FOR EACH ROW EXECUTE FUNCTION tell_change();

CREATE TRIGGER tell AFTER INSERT OR UPDATE ON api_keys
FOR EACH ROW EXECUTE FUNCTION tell_change();

CREATE TRIGGER tell AFTER INSERT ON judges FOR EACH ROW EXECUTE FUNCTION tell_change();

CREATE TRIGGER tell AFTER INSERT OR DELETE ON webhooks
FOR EACH ROW EXECUTE FUNCTION tell_change();

-- Only the delivering process needs the receiver's health. All processes need the state, because it
-- decides whether they queue deliveries.
CREATE TRIGGER tell_of_update AFTER UPDATE ON webhooks
FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state OR OLD.secret <> NEW.secret)
EXECUTE FUNCTION tell_change();
