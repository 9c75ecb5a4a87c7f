-- `append`: the hot path of the host, in one statement.
--
-- It runs with the rights of its caller, so row-level security applies inside it too. A call is a
-- list of batches and the byte strings that they refer to by number. The result is `ok` or the
-- reason of the refusal. After a first write it raises an error instead, which rolls the transaction back.
-- `faults.py` maps the error codes WO001 to WO003 to exceptions.

CREATE FUNCTION refuse(reason text, has_written boolean) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    IF has_written THEN
        RAISE EXCEPTION '%', reason USING ERRCODE = CASE reason
            WHEN 'answered' THEN 'WO002'
            WHEN 'lost' THEN 'WO003'
            ELSE 'WO001'
        END;
    END IF;
    RETURN reason;
END
$$;

CREATE FUNCTION create_run(owner text, step jsonb, blobs bytea[]) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    run jsonb := step -> 'run';
    is_over boolean := run ? 'ended_at';
BEGIN
    INSERT INTO runs (
        run_id, tenant, workflow_id, workflow_version, status, created_at, updated_at,
        last_sequence, ended_at, wake_at, parent_run_id, parent_node_id, tags, wish, sealed,
        snapshot, source_run_id, fork, has_suspended, holder
    ) VALUES (
        run ->> 'run_id', owner, run ->> 'workflow_id', run ->> 'workflow_version',
        run ->> 'status', (run -> 'created_at')::bigint, (run -> 'updated_at')::bigint,
        (run -> 'last_sequence')::bigint, (run -> 'ended_at')::bigint,
        CASE WHEN NOT is_over THEN (run -> 'wake_at')::bigint END,
        run ->> 'parent_run_id', run ->> 'parent_node_id', blobs[(run -> 'tags')::int],
        CASE WHEN NOT is_over THEN blobs[(run -> 'wish')::int] END,
        CASE WHEN NOT is_over THEN blobs[(run -> 'sealed')::int] END,
        blobs[(run -> 'snapshot')::int], run ->> 'source_run_id',
        blobs[(run -> 'fork')::int], step ? 'suspends',
        CASE WHEN NOT is_over AND (step #> '{claim,keeps}')::boolean
            THEN step #>> '{claim,process}' END
    ) ON CONFLICT (run_id) DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF step ? 'tag_names' THEN
        INSERT INTO run_tags (tenant, tag, created_at, run_id)
        SELECT owner, tag, (run -> 'created_at')::bigint, run ->> 'run_id'
        FROM jsonb_array_elements_text(step -> 'tag_names') AS tag
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN true;
END
$$;

-- Update the row of a run. A command or another wake-up that arrived after the writer had loaded the
-- run must not get lost: it stays in the row, with its wake-up time. A run that another process holds
-- stays with that process, which is notified. The results are whether the run was ever suspended
-- (NULL if the log has newer events) and which process holds the run.
CREATE FUNCTION move_run(
    owner text, step jsonb, blobs bytea[], OUT suspended boolean, OUT held_by text
)
LANGUAGE plpgsql AS $$
DECLARE
    run jsonb := step -> 'run';
    is_over boolean := run ? 'ended_at';
    known bytea := blobs[(run -> 'wish')::int];
    wake bigint := (run -> 'wake_at')::bigint;
    heard bigint := coalesce((run -> 'wakes')::bigint, 0);
    claimer text := step #>> '{claim,process}';
    keeps boolean := (step #> '{claim,keeps}')::boolean;
    is_fence boolean := coalesce((step #> '{claim,is_fence}')::boolean, false);
BEGIN
    UPDATE runs SET
        updated_at = (run -> 'updated_at')::bigint,
        last_sequence = (run -> 'last_sequence')::bigint,
        status = run ->> 'status',
        ended_at = (run -> 'ended_at')::bigint,
        sealed = CASE WHEN NOT is_over THEN blobs[(run -> 'sealed')::int] END,
        snapshot = blobs[(run -> 'snapshot')::int],
        wake_at = CASE
            WHEN is_over THEN NULL
            WHEN keeps AND holder <> claimer THEN (run -> 'updated_at')::bigint
            WHEN wakes = heard AND (wish IS NULL OR wish IS NOT DISTINCT FROM known) THEN wake
            ELSE least(wake_at, wake)
        END,
        wakes = CASE WHEN keeps AND holder <> claimer THEN wakes + 1 ELSE wakes END,
        holder = CASE
            WHEN is_over THEN NULL
            WHEN claimer IS NULL OR holder <> claimer THEN holder
            WHEN keeps THEN claimer
        END,
        wish = CASE
            WHEN is_over THEN NULL
            WHEN step ? 'grants' AND wish IS NOT DISTINCT FROM known THEN NULL
            ELSE wish
        END,
        has_suspended = has_suspended OR step ? 'suspends'
    WHERE run_id = run ->> 'run_id' AND tenant = owner
        AND last_sequence = (step -> 'first')::bigint - 1
        AND (NOT is_fence OR holder = claimer)
    RETURNING has_suspended, holder INTO suspended, held_by;
    IF keeps AND held_by <> claimer THEN
        PERFORM wake_run(owner, run ->> 'run_id', held_by, 0);
    END IF;
END
$$;

CREATE FUNCTION lost_hold(step jsonb) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT coalesce((step #> '{claim,is_fence}')::boolean, false) AND NOT EXISTS (
        SELECT 1 FROM runs
        WHERE run_id = step #>> '{run,run_id}' AND holder = step #>> '{claim,process}'
    )
$$;

-- First open, then end: an interrupt that one batch opens and ends is not pending.
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
$$;

-- The subscription and its delivery queue (`delivery_lanes`) are locked. A delivery attempt whose
-- result is being recorded either sees the new deliveries, or has deleted the queue before this
-- function creates it again.
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
$$;

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
$$;

-- Other runs are woken last, so that no row of this call overwrites a wake-up of this call.
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
$$;

-- Several runs are locked in the order of their ids, so that two calls cannot deadlock. A
-- notification has no content: its receivers read the log.
CREATE FUNCTION append(owner text, steps jsonb, blobs bytea[], locks text[]) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    step jsonb;
    this_run text;
    is_new boolean;
    is_over boolean;
    suspended boolean;
    held_by text;
    has_written boolean := false;
    verdict text := 'ok';
BEGIN
    PERFORM set_config('wopr.tenant', owner, true);
    IF locks IS NOT NULL THEN
        PERFORM 1 FROM runs WHERE run_id = ANY (locks) AND tenant = owner
        ORDER BY run_id FOR UPDATE;
    END IF;
    FOR step IN SELECT jsonb_array_elements(steps) LOOP
        IF step ? 'answer' AND EXISTS (
            SELECT 1 FROM answers WHERE tenant = owner
                AND key_hash = blobs[(step #> '{answer,key_hash}')::int]
        ) THEN
            RETURN refuse('answered', has_written);
        END IF;
        this_run := step #>> '{run,run_id}';
        is_new := (step -> 'first')::bigint = 0;
        is_over := step -> 'run' ? 'ended_at';
        IF is_new THEN
            suspended := CASE WHEN create_run(owner, step, blobs) THEN step ? 'suspends' END;
        ELSE
            SELECT m.suspended, m.held_by INTO suspended, held_by
            FROM move_run(owner, step, blobs) m;
            IF (step #> '{claim,keeps}')::boolean AND held_by <> step #>> '{claim,process}' THEN
                verdict := 'held';
            END IF;
        END IF;
        IF suspended IS NULL THEN
            RETURN refuse(CASE
                WHEN is_new THEN 'exists'
                WHEN lost_hold(step) THEN 'lost'
                ELSE 'moved on'
            END, has_written);
        END IF;
        has_written := true;
        IF step ? 'types' THEN
            INSERT INTO events (run_id, sequence, tenant, type, body)
            SELECT this_run, (step -> 'first')::bigint + e.n - 1, owner, e.type, e.body
            FROM ROWS FROM (
                jsonb_array_elements_text(step -> 'types'),
                unnest(blobs[
                    (step -> 'bodies')::int
                    : (step -> 'bodies')::int + jsonb_array_length(step -> 'types') - 1
                ])
            ) WITH ORDINALITY AS e (type, body, n);
            -- A run that is created and ended in one call has no readers yet.
            IF NOT (is_new AND is_over) THEN
                PERFORM pg_notify('wopr', jsonb_build_array(
                    owner, this_run, step #> '{run,last_sequence}'
                )::text);
            END IF;
        END IF;
        IF suspended THEN
            PERFORM write_suspensions(owner, step, blobs);
        END IF;
        IF step ?| '{answer,artifacts,notices}' THEN
            PERFORM write_beside(owner, step, blobs);
        END IF;
        IF step ? 'projects' THEN
            PERFORM put_projections(owner, ARRAY[this_run]);
        END IF;
        IF step ? 'delay' THEN
            PERFORM queue_wake(
                owner, this_run, (step -> 'delay')::bigint,
                coalesce((step -> 'urgency')::integer, 0)
            );
        ELSIF is_over AND NOT is_new THEN
            DELETE FROM procrastinate_jobs WHERE queueing_lock = this_run AND status = 'todo';
        END IF;
    END LOOP;
    FOR step IN SELECT s FROM jsonb_array_elements(steps) s WHERE s ?| '{wakes,wishes}' LOOP
        PERFORM wake_others(owner, step, blobs);
    END LOOP;
    RETURN verdict;
END
$$;
