-- The rights of the three roles, and row-level security by tenant.
--
-- The owner creates the tables; row-level security applies to it too. wopr_service reads and writes
-- the rows of one tenant at a time. wopr_clockwork owns the functions that cross tenants and sees
-- the columns that they need. No login can use wopr_clockwork directly.
--
-- The service never changes events and audit entries; a function appends audit entries, because it
-- keeps their chain.

-- The service sees the rows of the tenant that its transaction names in `wopr.tenant`.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY '{
        runs, run_tags, events, artifacts, expired_runs, suspensions, answers, invocations,
        workflows, agents, memories, memory_tags, api_keys, annotations, feedback_hours,
        feedback_days, queues, queue_items, queue_reviews, judges, judged_runs, webhooks,
        delivery_lanes, deliveries, dead_letters, audit_entries
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
GRANT SELECT, INSERT, UPDATE, DELETE ON
    runs, artifacts, suspensions, feedback_hours, feedback_days, queue_items, queue_reviews,
    judged_runs, webhooks, delivery_lanes, dead_letters
TO wopr_service;
GRANT SELECT, INSERT, DELETE ON
    run_tags, events, memories, memory_tags, annotations, deliveries
TO wopr_service;
GRANT SELECT, INSERT, UPDATE ON expired_runs, invocations, queues, judges TO wopr_service;
GRANT SELECT, INSERT ON answers, workflows, agents, api_keys TO wopr_service;
GRANT SELECT ON audit_entries TO wopr_service;

-- Tables without a tenant have no content of tenants.
GRANT SELECT, INSERT ON audit_checkpoints TO wopr_service;
GRANT SELECT, INSERT, UPDATE ON probes TO wopr_service;
GRANT SELECT, INSERT, UPDATE ON processes TO wopr_service;
GRANT SELECT, INSERT, UPDATE ON leases TO wopr_service;
GRANT SELECT, INSERT ON shared_facts TO wopr_service;
GRANT SELECT ON migrations TO wopr_service;

-- The condition excludes members of the role: the owner becomes a member to change the owner of
-- functions, and must not see all rows.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY '{
        runs, answers, invocations, memories, api_keys, webhooks, delivery_lanes, judges,
        audit_entries
    }'::text[] LOOP
        EXECUTE format($policy$
            CREATE POLICY host_rows ON %I TO wopr_clockwork
            USING (current_user = 'wopr_clockwork') WITH CHECK (current_user = 'wopr_clockwork')
        $policy$, name);
    END LOOP;
END
$$;
GRANT SELECT (tenant, run_id, wake_at, ended_at, status, last_sequence, holder, wakes),
    UPDATE (wake_at, holder, wakes)
ON runs TO wopr_clockwork;
GRANT SELECT (tenant, key_hash, created_at), DELETE ON answers TO wopr_clockwork;
GRANT SELECT (tenant, invocation_id, run_id, claimed_at), DELETE ON invocations TO wopr_clockwork;
GRANT SELECT (tenant, place, expires_at) ON memories TO wopr_clockwork;
GRANT SELECT, UPDATE (expires_at, revoked_at, replaced_by) ON api_keys TO wopr_clockwork;
GRANT SELECT (tenant, webhook_id) ON webhooks TO wopr_clockwork;
GRANT SELECT (webhook_id) ON delivery_lanes TO wopr_clockwork;
GRANT SELECT (tenant, judge_id, created_at, is_done) ON judges TO wopr_clockwork;
GRANT SELECT, INSERT ON audit_entries TO wopr_clockwork;
