"""What several processes share: who lives, who has which run, and the queue of wake-ups.

The queue's tables are Procrastinate's own. A job says only that somebody should look at a run: what
is to be done is in the run's row and its log, so a job that is lost, done twice or thrown away costs
time and nothing else.
"""

from __future__ import annotations

from procrastinate.schema import SchemaManager

from wopr.store.postgres.schema_host import CLOCKWORK, SERVICE, HostFunction

QUEUE = "runs"
TASK = "wopr.advance"
# A run that waits longer than this has no job: its row says when, and it is queued in time.
HORIZON_MS = 20_000
# After so long without a sign of life a process is taken for dead.
DEAD_AFTER_SECONDS = 6.0

_TABLES = (
    """
    CREATE TABLE processes (
        process_id word NOT NULL PRIMARY KEY,
        kind       word NOT NULL,
        started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        beat_at    timestamptz NOT NULL DEFAULT clock_timestamp()
    ) WITH (fillfactor = 50)
    """,
    """
    CREATE TABLE leases (
        name       word NOT NULL PRIMARY KEY,
        process_id word NOT NULL,
        renewed_at timestamptz NOT NULL DEFAULT clock_timestamp()
    ) WITH (fillfactor = 50)
    """,
    "CREATE TABLE shared_facts (name word NOT NULL PRIMARY KEY, value text NOT NULL)",
)

# A job that is queued already is held until this transaction ends, also when nothing about it
# changes: nobody takes it before what woke the run can be seen.
_QUEUE_WAKE = f"""
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
            '{QUEUE}', '{TASK}', urgency, run, run,
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
                'procrastinate_queue_v1#{QUEUE}', '{{"type": "job_inserted", "job_id": 0}}'
            );
        END IF;
    END
    $$
    """

# Whoever has a run is told; for one that nobody has, somebody is sent.
_WAKE_RUN = """
    CREATE FUNCTION wake_run(owner text, run text, held_by text, urgency integer) RETURNS void
    LANGUAGE plpgsql AS $$
    BEGIN
        IF held_by IS NULL THEN
            PERFORM queue_wake(owner, run, 0, urgency);
        ELSE
            PERFORM pg_notify('wopr', jsonb_build_array(owner, 'woken', run, held_by)::text);
        END IF;
    END
    $$
    """

_TELL_CHANGE = """
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
    $$
    """

_TRIGGERS = (
    "CREATE TRIGGER tell AFTER INSERT ON workflows FOR EACH ROW EXECUTE FUNCTION tell_change()",
    "CREATE TRIGGER tell AFTER INSERT ON agents FOR EACH ROW EXECUTE FUNCTION tell_change()",
    """
    CREATE TRIGGER tell AFTER INSERT OR UPDATE ON api_keys
    FOR EACH ROW EXECUTE FUNCTION tell_change()
    """,
    "CREATE TRIGGER tell AFTER INSERT ON judges FOR EACH ROW EXECUTE FUNCTION tell_change()",
    """
    CREATE TRIGGER tell AFTER INSERT OR DELETE ON webhooks
    FOR EACH ROW EXECUTE FUNCTION tell_change()
    """,
    # What a delivery notes about the receiver's health concerns whoever delivers, unless it
    # decides whether there is anything to queue.
    """
    CREATE TRIGGER tell_of_update AFTER UPDATE ON webhooks
    FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state OR OLD.secret <> NEW.secret)
    EXECUTE FUNCTION tell_change()
    """,
)

# The database's own collation on one side, its bytes on the other.
SAME_RUN = 'r.run_id::text COLLATE pg_catalog."default"'
_ALIVE = f"p.beat_at >= clock_timestamp() - interval '{DEAD_AFTER_SECONDS} seconds'"

PEER_FUNCTIONS = (
    # Several processes look at the same time: each frees what no other is just freeing.
    HostFunction(
        name="host_rescue",
        takes=("bigint",),
        gives="bigint",
        changes=True,
        body=f"""
            DELETE FROM processes p WHERE NOT ({_ALIVE});
            WITH orphans AS (
                SELECT run_id FROM runs r WHERE r.holder IS NOT NULL AND NOT EXISTS (
                    SELECT 1 FROM processes p WHERE p.process_id = r.holder
                ) ORDER BY run_id FOR UPDATE SKIP LOCKED
            ), freed AS (
                UPDATE runs r SET holder = NULL, wakes = r.wakes + 1,
                    wake_at = CASE WHEN r.ended_at IS NULL THEN least(r.wake_at, $1) END
                FROM orphans o WHERE r.run_id = o.run_id RETURNING 1
            ) SELECT count(*) FROM freed
        """,
    ),
    HostFunction(
        name="host_hand_back",
        takes=("text", "bigint"),
        gives="TABLE (tenant text, id text)",
        changes=True,
        body="""
            DELETE FROM processes WHERE process_id = $1;
            DELETE FROM leases WHERE process_id = $1;
            WITH orphans AS (
                SELECT run_id FROM runs WHERE holder = $1 ORDER BY run_id FOR UPDATE
            )
            UPDATE runs r SET holder = NULL, wakes = r.wakes + 1,
                wake_at = CASE WHEN r.ended_at IS NULL THEN least(r.wake_at, $2) END
            FROM orphans o WHERE r.run_id = o.run_id RETURNING r.tenant, r.run_id
        """,
    ),
    # A job whose worker is gone keeps others of its run from being taken. What it was about is in
    # the run's row, so it is thrown away and the run is queued anew.
    HostFunction(
        name="host_drop_stalled",
        gives="bigint",
        changes=True,
        body=f"""
            WITH stalled AS (
                DELETE FROM procrastinate_jobs j WHERE j.status = 'doing' AND NOT EXISTS (
                    SELECT 1 FROM procrastinate_workers w WHERE w.id = j.worker_id
                        AND w.last_heartbeat
                            >= clock_timestamp() - interval '{DEAD_AFTER_SECONDS} seconds'
                ) RETURNING 1
            ) SELECT count(*) FROM stalled
        """,
    ),
    HostFunction(
        name="host_queue_due",
        takes=("bigint", "bigint"),
        gives="bigint",
        changes=True,
        body=f"""
            WITH due AS (
                SELECT r.tenant, r.run_id, r.wake_at FROM runs r
                WHERE r.wake_at <= $1 + {HORIZON_MS} AND NOT EXISTS (
                    SELECT 1 FROM procrastinate_jobs j
                    WHERE j.queueing_lock = {SAME_RUN} AND j.status = 'todo'
                ) AND NOT EXISTS (
                    SELECT 1 FROM procrastinate_jobs j
                    WHERE j.lock = {SAME_RUN} AND j.status = 'doing'
                ) ORDER BY r.wake_at, r.run_id LIMIT $2
            ), queued AS (
                INSERT INTO procrastinate_jobs (
                    queue_name, task_name, priority, lock, queueing_lock, args, scheduled_at
                )
                SELECT '{QUEUE}', '{TASK}', 0, d.run_id, d.run_id,
                    jsonb_build_object('tenant', d.tenant, 'run_id', d.run_id),
                    CASE WHEN d.wake_at > $1
                    THEN clock_timestamp() + (d.wake_at - $1) * interval '1 millisecond' END
                FROM due d
                ON CONFLICT (queueing_lock) WHERE status = 'todo' DO NOTHING RETURNING 1
            ) SELECT count(*) FROM queued
        """,
    ),
    HostFunction(
        name="host_held_by",
        takes=("text",),
        gives="TABLE (tenant text, id text)",
        body="SELECT tenant, run_id FROM runs WHERE holder = $1",
    ),
    HostFunction(
        name="host_held",
        gives="bigint",
        body="SELECT count(*) FROM runs WHERE holder IS NOT NULL",
    ),
)

# Jobs name tenants and runs and hold nothing else of anybody's.
_QUEUE_RIGHTS = (
    "GRANT SELECT, INSERT, UPDATE, DELETE ON procrastinate_jobs, procrastinate_workers, "
    f"procrastinate_events, procrastinate_periodic_defers TO {SERVICE}, {CLOCKWORK}",
    "GRANT USAGE ON SEQUENCE procrastinate_jobs_id_seq, procrastinate_events_id_seq, "
    f"procrastinate_periodic_defers_id_seq TO {SERVICE}, {CLOCKWORK}",
    f"GRANT SELECT, DELETE ON processes, leases TO {CLOCKWORK}",
)

PEERS = (
    *_TABLES,
    SchemaManager.get_schema(),
    *_QUEUE_RIGHTS,
    _QUEUE_WAKE,
    _WAKE_RUN,
    _TELL_CHANGE,
    *_TRIGGERS,
)
