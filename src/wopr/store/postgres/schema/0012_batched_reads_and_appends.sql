-- Several runs, each with the first events of its log, from one snapshot. A session keeps the plan
-- that it made when the tables were small, so the plan must not read whole tables.
CREATE FUNCTION tenant_logs(text, text[], bigint)
RETURNS TABLE (run runs, types text[], bodies bytea[])
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    PERFORM set_config('wopr.tenant', $1, true);
    RETURN QUERY
        SELECT r, l.types, l.bodies FROM runs r CROSS JOIN LATERAL (
            SELECT array_agg(e.type::text ORDER BY e.sequence) AS types,
                array_agg(e.body ORDER BY e.sequence) AS bodies
            FROM events e WHERE e.run_id = r.run_id AND e.tenant = $1 AND e.sequence < $3
        ) l WHERE r.run_id = ANY ($2) AND r.tenant = $1;
END
$$;

-- Several calls of `append` in one transaction. Each call takes `counts[n]` of the byte strings.
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
$$;
