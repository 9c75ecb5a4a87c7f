-- The reads of every request, as functions that set their tenant themselves: one round trip instead
-- of two. They run with the rights of their caller. Only processes without tokens call them; 0016
-- adds the functions that take a signed token.

CREATE FUNCTION tenant_run(text, text) RETURNS SETOF runs
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('wopr.tenant', $1, true);
    RETURN QUERY SELECT * FROM runs r WHERE r.run_id = $2 AND r.tenant = $1;
END
$$;

CREATE FUNCTION tenant_events(text, text, bigint, bigint) RETURNS SETOF events
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('wopr.tenant', $1, true);
    RETURN QUERY
        SELECT * FROM events e WHERE e.run_id = $2 AND e.tenant = $1 AND e.sequence >= $3
        ORDER BY e.sequence LIMIT $4;
END
$$;

CREATE FUNCTION tenant_answer(text, bytea) RETURNS SETOF answers
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('wopr.tenant', $1, true);
    RETURN QUERY SELECT * FROM answers a WHERE a.tenant = $1 AND a.key_hash = $2;
END
$$;

CREATE FUNCTION tenant_workflow(text, text, text) RETURNS SETOF workflows
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('wopr.tenant', $1, true);
    RETURN QUERY
        SELECT * FROM workflows w
        WHERE w.tenant = $1 AND w.workflow_id = $2 AND w.version = $3;
END
$$;

-- Of two versions of the same millisecond, the newer was stored later.
CREATE FUNCTION tenant_newest_workflow(text, text) RETURNS SETOF workflows
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('wopr.tenant', $1, true);
    RETURN QUERY
        SELECT * FROM workflows w WHERE w.tenant = $1 AND w.workflow_id = $2
        ORDER BY w.registered_at DESC, w.place DESC LIMIT 1;
END
$$;
