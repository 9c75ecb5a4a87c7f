"""The functions that an append calls for what is written beside a run: waits, notices, other runs."""

from __future__ import annotations

# What is opened first and ended second is not pending.
_SUSPEND = """
    CREATE FUNCTION write_suspensions(owner text, step jsonb, blobs bytea[]) RETURNS void
    LANGUAGE plpgsql AS $$
    DECLARE
        run jsonb := step -> 'run';
    BEGIN
        IF step ? 'suspends' THEN
            INSERT INTO suspensions (
                run_id, interrupt_id, tenant, place, node_id, workflow_id, kind, created_at,
                expires_at, body
            )
            SELECT run ->> 'run_id', s.interrupt_id, owner, s.place, s.node_id, s.workflow_id,
                s.kind, s.created_at, s.expires_at, blobs[s.body]
            FROM jsonb_to_recordset(step -> 'suspends') AS s (
                interrupt_id text, place text, node_id text, workflow_id text, kind text,
                created_at bigint, expires_at bigint, body int
            )
            ON CONFLICT (run_id, interrupt_id) DO UPDATE SET
                place = excluded.place, node_id = excluded.node_id,
                workflow_id = excluded.workflow_id, kind = excluded.kind,
                created_at = excluded.created_at, expires_at = excluded.expires_at,
                body = excluded.body;
        END IF;
        IF run ? 'ended_at' THEN
            DELETE FROM suspensions WHERE run_id = run ->> 'run_id';
        ELSIF step ? 'resumes' THEN
            DELETE FROM suspensions WHERE run_id = run ->> 'run_id' AND interrupt_id = ANY (
                ARRAY (SELECT jsonb_array_elements_text(step -> 'resumes'))
            );
        END IF;
    END
    $$
    """

# The subscription is held while its lane grows, and the lane too: a turn that is being settled
# either sees the new deliveries, or has closed the lane before it is opened again.
_NOTICES = """
    CREATE FUNCTION queue_notices(owner text, step jsonb) RETURNS void
    LANGUAGE plpgsql AS $$
    DECLARE
        told text[];
    BEGIN
        told := ARRAY (
            SELECT w.webhook_id FROM webhooks w
            WHERE w.webhook_id = ANY (
                ARRAY (SELECT n ->> 'webhook_id' FROM jsonb_array_elements(step -> 'notices') n)
            ) AND w.tenant = owner AND w.state <> 'failed'
            ORDER BY w.webhook_id FOR SHARE
        );
        INSERT INTO delivery_lanes (run_id, webhook_id, tenant, due_at, attempts)
        SELECT step #>> '{run,run_id}', w, owner, (step #> '{run,updated_at}')::bigint, 0
        FROM unnest(told) AS w
        ON CONFLICT (run_id, webhook_id) DO UPDATE SET due_at = delivery_lanes.due_at;
        PERFORM pg_notify('wopr', jsonb_build_array(owner, 'owed', w, '')::text)
        FROM unnest(told) AS w;
        INSERT INTO deliveries (run_id, webhook_id, sequence, tenant)
        SELECT step #>> '{run,run_id}', n ->> 'webhook_id', each::bigint, owner
        FROM jsonb_array_elements(step -> 'notices') AS n,
            jsonb_array_elements(n -> 'sequences') AS each
        WHERE n ->> 'webhook_id' = ANY (told)
        ON CONFLICT DO NOTHING;
    END
    $$
    """

_WRITE_SIDE = """
    CREATE FUNCTION write_beside(owner text, step jsonb, blobs bytea[]) RETURNS void
    LANGUAGE plpgsql AS $$
    DECLARE
        this_run text := step #>> '{run,run_id}';
        answer jsonb := step -> 'answer';
    BEGIN
        IF answer IS NOT NULL THEN
            INSERT INTO answers (tenant, key_hash, request_digest, status, body, created_at)
            VALUES (
                owner, blobs[(answer -> 'key_hash')::int], blobs[(answer -> 'request_digest')::int],
                (answer -> 'status')::bigint, blobs[(answer -> 'body')::int],
                (answer -> 'created_at')::bigint
            );
        END IF;
        IF step ? 'artifacts' THEN
            INSERT INTO artifacts (
                run_id, artifact_id, tenant, node_id, artifact_type, created_at, body
            )
            SELECT this_run, a.artifact_id, owner, a.node_id, a.artifact_type, a.created_at,
                blobs[a.body]
            FROM jsonb_to_recordset(step -> 'artifacts') AS a (
                artifact_id text, node_id text, artifact_type text, created_at bigint, body int
            )
            ON CONFLICT ON CONSTRAINT artifacts_pkey DO UPDATE SET
                node_id = excluded.node_id, artifact_type = excluded.artifact_type,
                created_at = excluded.created_at, body = excluded.body;
        END IF;
        IF step ? 'notices' THEN
            PERFORM queue_notices(owner, step);
        END IF;
    END
    $$
    """

# Other runs are woken last, so that no row of this call overwrites a wake-up of this call.
_WAKE = """
    CREATE FUNCTION wake_others(owner text, step jsonb, blobs bytea[]) RETURNS void
    LANGUAGE plpgsql AS $$
    DECLARE
        moment bigint := (step #> '{run,updated_at}')::bigint;
        urgency integer := coalesce((step -> 'urgency')::integer, 0);
        woken record;
    BEGIN
        FOR woken IN
            UPDATE runs SET wake_at = moment, wakes = wakes + 1
            WHERE run_id = ANY (ARRAY (SELECT jsonb_array_elements_text(step -> 'wakes')))
                AND tenant = owner AND ended_at IS NULL
            RETURNING run_id, holder
        LOOP
            PERFORM wake_run(owner, woken.run_id, woken.holder, urgency);
        END LOOP;
        FOR woken IN
            UPDATE runs r SET wake_at = moment, wish = blobs[w.body]
            FROM jsonb_to_recordset(coalesce(step -> 'wishes', '[]')) AS w (run_id text, body int)
            WHERE r.run_id = w.run_id AND r.tenant = owner AND r.ended_at IS NULL
            RETURNING r.run_id, r.holder
        LOOP
            PERFORM wake_run(owner, woken.run_id, woken.holder, urgency);
        END LOOP;
    END
    $$
    """

BESIDE = (_SUSPEND, _NOTICES, _WRITE_SIDE, _WAKE)
