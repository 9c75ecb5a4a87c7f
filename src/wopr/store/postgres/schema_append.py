"""The function that appends: the hot path of the whole host, in one statement.

It runs with the rights of its caller, so row-level security holds inside it as outside. A call is
a list of batches and the bytes that they refer to by number. It answers `ok`, or why it refused;
where it had written already it raises instead, so that the transaction is undone.
"""

from __future__ import annotations

from wopr.store.postgres.schema_beside import BESIDE

# The codes of what is raised; `faults` turns them into the host's errors.
SEQUENCE_TAKEN = "WO001"
ANSWERED = "WO002"
HOLD_LOST = "WO003"

_REFUSE = f"""
    CREATE FUNCTION refuse(reason text, has_written boolean) RETURNS text
    LANGUAGE plpgsql AS $$
    BEGIN
        IF has_written THEN
            RAISE EXCEPTION '%', reason USING ERRCODE = CASE reason
                WHEN 'answered' THEN '{ANSWERED}'
                WHEN 'lost' THEN '{HOLD_LOST}'
                ELSE '{SEQUENCE_TAKEN}'
            END;
        END IF;
        RETURN reason;
    END
    $$
    """

_CREATE_RUN = """
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
    $$
    """

# Whoever left a wish since the writer loaded the run must find it kept, and its wake-up with it;
# the same goes for any other wake-up that the writer has not heard of. A run that another process
# has stays with it, and is woken there. The answers are whether the run ever suspended, NULL when
# the log has moved on, and who has the run.
_MOVE_RUN = """
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
    $$
    """

_LOST_HOLD = """
    CREATE FUNCTION lost_hold(step jsonb) RETURNS boolean
    LANGUAGE sql STABLE AS $$
        SELECT coalesce((step #> '{claim,is_fence}')::boolean, false) AND NOT EXISTS (
            SELECT 1 FROM runs
            WHERE run_id = step #>> '{run,run_id}' AND holder = step #>> '{claim,process}'
        )
    $$
    """

# Runs are locked in the order of their ids when there are several, so that no two calls wait for
# each other. A notification carries no content: who hears it reads the log.
_APPEND = """
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
                -- Nobody can read a run yet that is told of for the first time when it is over.
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
    $$
    """

APPEND = (
    _REFUSE,
    _CREATE_RUN,
    _MOVE_RUN,
    _LOST_HOLD,
    *BESIDE,
    _APPEND,
)

# Several calls in one transaction. Each takes as many of the bytes as its number in `counts` says.
APPEND_EACH = (
    """
    CREATE FUNCTION append_each(owners text[], calls text[], blobs bytea[], counts bigint[])
    RETURNS SETOF text LANGUAGE plpgsql AS $$
    DECLARE
        taken bigint := 0;
    BEGIN
        FOR n IN 1 .. cardinality(owners) LOOP
            RETURN NEXT append(
                owners[n], calls[n]::jsonb, blobs[taken + 1 : taken + counts[n]], NULL
            );
            taken := taken + counts[n];
        END LOOP;
    END
    $$
    """,
)
