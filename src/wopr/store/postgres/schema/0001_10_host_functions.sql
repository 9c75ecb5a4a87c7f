-- The functions that cross tenants. Each returns only what the host needs. The service may call
-- them and has no other access across tenants. They run with the rights of wopr_clockwork.

CREATE FUNCTION host_due(bigint, bigint) RETURNS TABLE (tenant text, id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT tenant, run_id FROM runs WHERE wake_at <= $1 ORDER BY wake_at, run_id LIMIT $2
$$;

CREATE FUNCTION host_next_due(bigint) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT wake_at FROM runs WHERE wake_at > $1 ORDER BY wake_at LIMIT 1
$$;

CREATE FUNCTION host_unfinished(text, text, bigint) RETURNS TABLE (tenant text, id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT tenant, run_id FROM runs
    WHERE ended_at IS NULL AND (tenant, run_id) > ($1, $2)
    ORDER BY tenant, run_id LIMIT $3
$$;

CREATE FUNCTION host_counts() RETURNS TABLE (status text, runs bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT status, count(*) FROM runs GROUP BY status
$$;

CREATE FUNCTION host_totals() RETURNS TABLE (runs bigint, events bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT count(*), coalesce(sum(last_sequence + 1), 0)::bigint FROM runs
$$;

CREATE FUNCTION host_expirable(bigint, bigint) RETURNS TABLE (tenant text, id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT tenant, run_id FROM runs
    WHERE ended_at < $1 AND NOT starts_with(run_id, 'kahn-')
    ORDER BY ended_at, run_id LIMIT $2
$$;

CREATE FUNCTION host_forget_answers(bigint, bigint) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    WITH gone AS (
        DELETE FROM answers a USING (
            SELECT tenant, key_hash FROM answers
            WHERE created_at < $1 ORDER BY created_at LIMIT $2
        ) old WHERE a.tenant = old.tenant AND a.key_hash = old.key_hash RETURNING 1
    ) SELECT count(*) FROM gone
$$;

CREATE FUNCTION host_forget_invocations(bigint, bigint) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    WITH gone AS (
        DELETE FROM invocations i USING (
            SELECT tenant, invocation_id FROM invocations o
            WHERE claimed_at < $1 AND (
                SELECT r.ended_at IS NULL FROM runs r
                WHERE r.tenant = o.tenant AND r.run_id = o.run_id
            ) IS NOT TRUE ORDER BY claimed_at LIMIT $2
        ) old WHERE i.tenant = old.tenant AND i.invocation_id = old.invocation_id
        RETURNING 1
    ) SELECT count(*) FROM gone
$$;

CREATE FUNCTION host_expired_memories(bigint, bigint) RETURNS TABLE (tenant text, place bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT tenant, place FROM memories
    WHERE expires_at < $1 ORDER BY expires_at, place LIMIT $2
$$;

-- The tenant of a request is the tenant of its key.
CREATE FUNCTION host_key(bytea)
RETURNS TABLE (
    key_id text, tenant text, name text, role text, scopes bytea, key_hash bytea,
    created_at bigint, is_test boolean, expires_at bigint, revoked_at bigint, replaced_by text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT key_id, tenant, name, role, scopes, key_hash, created_at, is_test, expires_at,
        revoked_at, replaced_by
    FROM api_keys WHERE key_hash = $1
$$;

CREATE FUNCTION host_keys()
RETURNS TABLE (
    key_id text, tenant text, name text, role text, scopes bytea, key_hash bytea,
    created_at bigint, is_test boolean, expires_at bigint, revoked_at bigint, replaced_by text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT key_id, tenant, name, role, scopes, key_hash, created_at, is_test, expires_at,
        revoked_at, replaced_by
    FROM api_keys ORDER BY created_at DESC, key_id DESC
$$;

CREATE FUNCTION host_update_key(text, bigint, bigint, text) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    WITH changed AS (
        UPDATE api_keys SET expires_at = coalesce($2, expires_at),
            revoked_at = coalesce($3, revoked_at), replaced_by = coalesce($4, replaced_by)
        WHERE key_id = $1 RETURNING 1
    ) SELECT count(*) FROM changed
$$;

CREATE FUNCTION host_webhooks(text, bigint) RETURNS TABLE (tenant text, id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT tenant, webhook_id FROM webhooks
    WHERE webhook_id > $1 ORDER BY webhook_id LIMIT $2
$$;

-- Steps from one webhook to the next in the index, so the cost depends on the number of webhooks
-- and not on the number of delivery queues.
CREATE FUNCTION host_undelivered() RETURNS TABLE (tenant text, id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    WITH RECURSIVE owed (webhook_id) AS (
        (SELECT webhook_id FROM delivery_lanes ORDER BY webhook_id LIMIT 1)
        UNION ALL
        SELECT (
            SELECT l.webhook_id FROM delivery_lanes l
            WHERE l.webhook_id > owed.webhook_id ORDER BY l.webhook_id LIMIT 1
        ) FROM owed WHERE owed.webhook_id IS NOT NULL
    )
    SELECT w.tenant, w.webhook_id FROM owed JOIN webhooks w USING (webhook_id)
$$;

CREATE FUNCTION host_judges(bigint) RETURNS TABLE (tenant text, id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT tenant, judge_id FROM judges
    WHERE NOT is_done ORDER BY created_at, tenant, judge_id LIMIT $1
$$;

-- One hash chain covers the entries of all tenants, so the verification reads all of them.
CREATE FUNCTION host_audit_head() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT coalesce(max(sequence), -1) FROM audit_entries
$$;

CREATE FUNCTION host_audit_entries(bigint, bigint)
RETURNS TABLE (sequence bigint, tenant text, body bytea, digest bytea)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT sequence, tenant, body, digest FROM audit_entries
    WHERE sequence >= $1 ORDER BY sequence LIMIT $2
$$;

-- Takes the lock of the chain until the transaction ends, so that the entries have one order.
CREATE FUNCTION host_audit_last() RETURNS TABLE (sequence bigint, body bytea)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT pg_advisory_xact_lock(hashtext('wopr audit'));
    SELECT sequence, body FROM audit_entries
    WHERE sequence >= 0 ORDER BY sequence DESC LIMIT 1
$$;

CREATE FUNCTION host_audit_append(bigint, text, bytea, bytea) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    INSERT INTO audit_entries (sequence, tenant, body, digest) VALUES ($1, $2, $3, $4)
$$;

-- Several processes may call this at the same time: each releases runs that no other is releasing.
CREATE FUNCTION host_rescue(bigint) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    DELETE FROM processes p WHERE NOT (p.beat_at >= clock_timestamp() - interval '6.0 seconds');
    WITH orphans AS (
        SELECT run_id FROM runs r WHERE r.holder IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM processes p WHERE p.process_id = r.holder
        ) ORDER BY run_id FOR UPDATE SKIP LOCKED
    ), freed AS (
        UPDATE runs r SET holder = NULL, wakes = r.wakes + 1,
            wake_at = CASE WHEN r.ended_at IS NULL THEN least(r.wake_at, $1) END
        FROM orphans o WHERE r.run_id = o.run_id RETURNING 1
    ) SELECT count(*) FROM freed
$$;

CREATE FUNCTION host_hand_back(text, bigint) RETURNS TABLE (tenant text, id text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    DELETE FROM processes WHERE process_id = $1;
    DELETE FROM leases WHERE process_id = $1;
    WITH orphans AS (
        SELECT run_id FROM runs WHERE holder = $1 ORDER BY run_id FOR UPDATE
    )
    UPDATE runs r SET holder = NULL, wakes = r.wakes + 1,
        wake_at = CASE WHEN r.ended_at IS NULL THEN least(r.wake_at, $2) END
    FROM orphans o WHERE r.run_id = o.run_id RETURNING r.tenant, r.run_id
$$;

-- A job without a live worker blocks other jobs of its run. It is deleted and the run is queued
-- again, because the run's row determines the work.
CREATE FUNCTION host_drop_stalled() RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    WITH stalled AS (
        DELETE FROM procrastinate_jobs j WHERE j.status = 'doing' AND NOT EXISTS (
            SELECT 1 FROM procrastinate_workers w WHERE w.id = j.worker_id
                AND w.last_heartbeat
                    >= clock_timestamp() - interval '6.0 seconds'
        ) RETURNING 1
    ) SELECT count(*) FROM stalled
$$;

CREATE FUNCTION host_queue_due(bigint, bigint) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    WITH due AS (
        SELECT r.tenant, r.run_id, r.wake_at FROM runs r
        WHERE r.wake_at <= $1 + 20000 AND NOT EXISTS (
            SELECT 1 FROM procrastinate_jobs j
            WHERE j.queueing_lock = r.run_id::text COLLATE pg_catalog."default"
                AND j.status = 'todo'
        ) AND NOT EXISTS (
            SELECT 1 FROM procrastinate_jobs j
            WHERE j.lock = r.run_id::text COLLATE pg_catalog."default"
                AND j.status = 'doing'
        ) ORDER BY r.wake_at, r.run_id LIMIT $2
    ), queued AS (
        INSERT INTO procrastinate_jobs (
            queue_name, task_name, priority, lock, queueing_lock, args, scheduled_at
        )
        SELECT 'runs', 'wopr.advance', 0, d.run_id, d.run_id,
            jsonb_build_object('tenant', d.tenant, 'run_id', d.run_id),
            CASE WHEN d.wake_at > $1
            THEN clock_timestamp() + (d.wake_at - $1) * interval '1 millisecond' END
        FROM due d
        ON CONFLICT (queueing_lock) WHERE status = 'todo' DO NOTHING RETURNING 1
    ) SELECT count(*) FROM queued
$$;

CREATE FUNCTION host_held_by(text) RETURNS TABLE (tenant text, id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT tenant, run_id FROM runs WHERE holder = $1
$$;

CREATE FUNCTION host_held() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT count(*) FROM runs WHERE holder IS NOT NULL
$$;

-- A new owner of a function must have the right to create in its schema.
GRANT USAGE, CREATE ON SCHEMA wopr TO wopr_clockwork;
ALTER FUNCTION host_due OWNER TO wopr_clockwork;
ALTER FUNCTION host_next_due OWNER TO wopr_clockwork;
ALTER FUNCTION host_unfinished OWNER TO wopr_clockwork;
ALTER FUNCTION host_counts OWNER TO wopr_clockwork;
ALTER FUNCTION host_totals OWNER TO wopr_clockwork;
ALTER FUNCTION host_expirable OWNER TO wopr_clockwork;
ALTER FUNCTION host_forget_answers OWNER TO wopr_clockwork;
ALTER FUNCTION host_forget_invocations OWNER TO wopr_clockwork;
ALTER FUNCTION host_expired_memories OWNER TO wopr_clockwork;
ALTER FUNCTION host_key OWNER TO wopr_clockwork;
ALTER FUNCTION host_keys OWNER TO wopr_clockwork;
ALTER FUNCTION host_update_key OWNER TO wopr_clockwork;
ALTER FUNCTION host_webhooks OWNER TO wopr_clockwork;
ALTER FUNCTION host_undelivered OWNER TO wopr_clockwork;
ALTER FUNCTION host_judges OWNER TO wopr_clockwork;
ALTER FUNCTION host_audit_head OWNER TO wopr_clockwork;
ALTER FUNCTION host_audit_entries OWNER TO wopr_clockwork;
ALTER FUNCTION host_audit_last OWNER TO wopr_clockwork;
ALTER FUNCTION host_audit_append OWNER TO wopr_clockwork;
ALTER FUNCTION host_rescue OWNER TO wopr_clockwork;
ALTER FUNCTION host_hand_back OWNER TO wopr_clockwork;
ALTER FUNCTION host_drop_stalled OWNER TO wopr_clockwork;
ALTER FUNCTION host_queue_due OWNER TO wopr_clockwork;
ALTER FUNCTION host_held_by OWNER TO wopr_clockwork;
ALTER FUNCTION host_held OWNER TO wopr_clockwork;
REVOKE CREATE ON SCHEMA wopr FROM wopr_clockwork;
REVOKE ALL ON FUNCTION
    host_due, host_next_due, host_unfinished, host_counts, host_totals, host_expirable,
    host_forget_answers, host_forget_invocations, host_expired_memories, host_key, host_keys,
    host_update_key, host_webhooks, host_undelivered, host_judges, host_audit_head,
    host_audit_entries, host_audit_last, host_audit_append, host_rescue, host_hand_back,
    host_drop_stalled, host_queue_due, host_held_by, host_held
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    host_due, host_next_due, host_unfinished, host_counts, host_totals, host_expirable,
    host_forget_answers, host_forget_invocations, host_expired_memories, host_key, host_keys,
    host_update_key, host_webhooks, host_undelivered, host_judges, host_audit_head,
    host_audit_entries, host_audit_last, host_audit_append, host_rescue, host_hand_back,
    host_drop_stalled, host_queue_due, host_held_by, host_held
TO wopr_service;
