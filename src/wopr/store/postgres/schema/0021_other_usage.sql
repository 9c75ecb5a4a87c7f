-- Usage of definitions, feedback, memories and other content that does not belong to runs.

ALTER TABLE stored_bytes ADD COLUMN other_bytes bigint NOT NULL DEFAULT 0;
ALTER TABLE stored_bytes ADD COLUMN workflow_versions bigint NOT NULL DEFAULT 0;
ALTER TABLE stored_bytes ADD COLUMN agents bigint NOT NULL DEFAULT 0;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY '{
        workflows, agents, annotations, queues, dead_letters, fleet_chunks, otlp_parts
    }'::text[] LOOP
        EXECUTE format($policy$
            CREATE POLICY host_rows ON %I TO wopr_clockwork
            USING (current_user = 'wopr_clockwork') WITH CHECK (current_user = 'wopr_clockwork')
        $policy$, name);
    END LOOP;
END
$$;
GRANT SELECT (tenant, body) ON workflows TO wopr_clockwork;
GRANT SELECT (tenant, body) ON agents TO wopr_clockwork;
GRANT SELECT (tenant, body) ON annotations TO wopr_clockwork;
GRANT SELECT (tenant, body) ON answers TO wopr_clockwork;
GRANT SELECT (tenant, content, tags) ON memories TO wopr_clockwork;
GRANT SELECT (tenant, body) ON queues TO wopr_clockwork;
GRANT SELECT (tenant, body) ON judges TO wopr_clockwork;
GRANT SELECT (tenant, type, reason, place) ON dead_letters TO wopr_clockwork;
GRANT SELECT (tenant, hashes, body) ON fleet_chunks TO wopr_clockwork;
GRANT SELECT (tenant, body) ON otlp_parts TO wopr_clockwork;

-- Three triggers for each table count the bytes of these columns. The rows of workflows and agents
-- are counted too.
DO $do$
DECLARE
    counted record;
    verb text;
    added text;
    removed text;
    amounts text;
    transitions text;
BEGIN
    FOR counted IN SELECT * FROM (VALUES
        ('workflows', '{body}', 'sum(c.rows), 0'),
        ('agents', '{body}', '0, sum(c.rows)'),
        ('annotations', '{body}', '0, 0'),
        ('answers', '{body}', '0, 0'),
        ('memories', '{content,tags}', '0, 0'),
        ('queues', '{body}', '0, 0'),
        ('judges', '{body}', '0, 0'),
        ('dead_letters', '{type,reason,place}', '0, 0'),
        ('fleet_chunks', '{hashes,body}', '0, 0'),
        ('otlp_parts', '{body}', '0, 0')
    ) AS c (name, columns, row_counts) LOOP
        SELECT string_agg(format('coalesce(octet_length(%I), 0)', size), ' + ') INTO added
        FROM unnest(counted.columns::text[]) AS size;
        removed := format('SELECT tenant, -(%s) AS bytes, -1 AS rows FROM former', added);
        added := format('SELECT tenant, %s AS bytes, 1 AS rows FROM changed', added);
        FOREACH verb IN ARRAY '{INSERT,UPDATE,DELETE}'::text[] LOOP
            amounts := CASE verb
                WHEN 'INSERT' THEN added
                WHEN 'DELETE' THEN removed
                ELSE added || ' UNION ALL ' || removed
            END;
            transitions := CASE verb
                WHEN 'INSERT' THEN 'NEW TABLE AS changed'
                WHEN 'DELETE' THEN 'OLD TABLE AS former'
                ELSE 'OLD TABLE AS former NEW TABLE AS changed'
            END;
            EXECUTE format($function$
                CREATE FUNCTION count_%1$s_%2$s() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    INSERT INTO stored_bytes AS s (
                        tenant, shard, event_bytes, artifact_bytes, other_bytes,
                        workflow_versions, agents
                    )
                    SELECT c.tenant, pg_backend_pid(), 0, 0, sum(c.bytes), %3$s
                    FROM (%4$s) c GROUP BY c.tenant
                    ON CONFLICT (tenant, shard) DO UPDATE SET
                        other_bytes = s.other_bytes + excluded.other_bytes,
                        workflow_versions = s.workflow_versions + excluded.workflow_versions,
                        agents = s.agents + excluded.agents;
                    RETURN NULL;
                END
                $$
            $function$, counted.name, lower(verb), counted.row_counts, amounts);
            EXECUTE format(
                'CREATE TRIGGER count_%1$s_%2$s AFTER %3$s ON %1$s REFERENCING %4$s '
                'FOR EACH STATEMENT EXECUTE FUNCTION count_%1$s_%2$s()',
                counted.name, lower(verb), verb, transitions
            );
        END LOOP;
    END LOOP;
END
$do$;

CREATE OR REPLACE FUNCTION host_add_up_stored_bytes() RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    WITH added AS (
        DELETE FROM stored_bytes WHERE (tenant, shard) IN (
            SELECT tenant, shard FROM stored_bytes
            WHERE shard <> 0 FOR UPDATE SKIP LOCKED
        ) RETURNING tenant, event_bytes, artifact_bytes, other_bytes, workflow_versions, agents
    )
    INSERT INTO stored_bytes AS s (
        tenant, shard, event_bytes, artifact_bytes, other_bytes, workflow_versions, agents
    )
    SELECT tenant, 0, sum(event_bytes)::bigint, sum(artifact_bytes)::bigint,
        sum(other_bytes)::bigint, sum(workflow_versions)::bigint, sum(agents)::bigint
    FROM added GROUP BY tenant
    ON CONFLICT (tenant, shard) DO UPDATE SET
        event_bytes = s.event_bytes + excluded.event_bytes,
        artifact_bytes = s.artifact_bytes + excluded.artifact_bytes,
        other_bytes = s.other_bytes + excluded.other_bytes,
        workflow_versions = s.workflow_versions + excluded.workflow_versions,
        agents = s.agents + excluded.agents
$$;

CREATE OR REPLACE FUNCTION host_recount_stored_bytes() RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    INSERT INTO stored_bytes AS s (
        tenant, shard, event_bytes, artifact_bytes, other_bytes, workflow_versions, agents
    )
    SELECT tenant, 0, sum(event_bytes)::bigint, sum(artifact_bytes)::bigint,
        sum(other_bytes)::bigint, sum(workflow_versions)::bigint, sum(agents)::bigint
    FROM (
        SELECT tenant, length(body) AS event_bytes, 0 AS artifact_bytes,
            0 AS other_bytes, 0 AS workflow_versions, 0 AS agents FROM events
        UNION ALL SELECT tenant, 0, length(body), 0, 0, 0 FROM artifacts
        UNION ALL SELECT tenant, 0, 0, coalesce(octet_length(body), 0), 1, 0 FROM workflows
        UNION ALL SELECT tenant, 0, 0, coalesce(octet_length(body), 0), 0, 1 FROM agents
        UNION ALL SELECT tenant, 0, 0, coalesce(octet_length(body), 0), 0, 0 FROM annotations
        UNION ALL SELECT tenant, 0, 0, coalesce(octet_length(body), 0), 0, 0 FROM answers
        UNION ALL SELECT tenant, 0, 0, coalesce(octet_length(content), 0)
            + coalesce(octet_length(tags), 0), 0, 0
        FROM memories
        UNION ALL SELECT tenant, 0, 0, coalesce(octet_length(body), 0), 0, 0 FROM queues
        UNION ALL SELECT tenant, 0, 0, coalesce(octet_length(body), 0), 0, 0 FROM judges
        UNION ALL SELECT tenant, 0, 0, coalesce(octet_length(type), 0)
            + coalesce(octet_length(reason), 0) + coalesce(octet_length(place), 0), 0, 0
        FROM dead_letters
        UNION ALL SELECT tenant, 0, 0, coalesce(octet_length(hashes), 0)
            + coalesce(octet_length(body), 0), 0, 0
        FROM fleet_chunks
        UNION ALL SELECT tenant, 0, 0, coalesce(octet_length(body), 0), 0, 0 FROM otlp_parts
        UNION ALL
        SELECT tenant, -event_bytes, -artifact_bytes, -other_bytes, -workflow_versions, -agents
        FROM stored_bytes
    ) counted GROUP BY tenant
    HAVING sum(event_bytes) <> 0 OR sum(artifact_bytes) <> 0 OR sum(other_bytes) <> 0
        OR sum(workflow_versions) <> 0 OR sum(agents) <> 0
    ON CONFLICT (tenant, shard) DO UPDATE SET
        event_bytes = s.event_bytes + excluded.event_bytes,
        artifact_bytes = s.artifact_bytes + excluded.artifact_bytes,
        other_bytes = s.other_bytes + excluded.other_bytes,
        workflow_versions = s.workflow_versions + excluded.workflow_versions,
        agents = s.agents + excluded.agents
$$;

CREATE FUNCTION host_all_usage()
RETURNS TABLE (
    tenant text, active_runs bigint, queued_runs bigint, event_bytes bigint,
    artifact_bytes bigint, other_bytes bigint, workflow_versions bigint, agents bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT s.tenant,
        (SELECT coalesce(sum(a.runs), 0) FROM active_runs a WHERE a.tenant = s.tenant)::bigint,
        0::bigint, sum(s.event_bytes)::bigint, sum(s.artifact_bytes)::bigint,
        sum(s.other_bytes)::bigint, sum(s.workflow_versions)::bigint, sum(s.agents)::bigint
    FROM stored_bytes s GROUP BY s.tenant
$$;

-- A new owner of a function must have the right to create in its schema.
GRANT USAGE, CREATE ON SCHEMA wopr TO wopr_clockwork;
ALTER FUNCTION host_all_usage OWNER TO wopr_clockwork;
REVOKE CREATE ON SCHEMA wopr FROM wopr_clockwork;
REVOKE ALL ON FUNCTION host_all_usage FROM PUBLIC;
GRANT EXECUTE ON FUNCTION host_all_usage TO wopr_service;
