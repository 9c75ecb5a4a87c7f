-- Usage of tenants, and quotas.
--
-- Each connection counts the bytes in its own row (`shard`), so two transactions never wait
-- for the same row. The number of bytes is the sum. `host_add_up_stored_bytes` moves the sum to
-- shard 0.

CREATE TABLE stored_bytes (
    tenant         word NOT NULL,
    shard          bigint NOT NULL,
    event_bytes    bigint NOT NULL,
    artifact_bytes bigint NOT NULL,
    PRIMARY KEY (tenant, shard)
) WITH (fillfactor = 50);

CREATE TABLE model_tokens (
    tenant word NOT NULL,
    day    word NOT NULL,
    tokens bigint NOT NULL,
    PRIMARY KEY (tenant, day)
);

CREATE TABLE quotas (
    tenant word NOT NULL,
    key_id word NOT NULL,
    quota  word NOT NULL,
    amount bigint NOT NULL,
    PRIMARY KEY (tenant, key_id, quota)
);

ALTER TABLE stored_bytes ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_rows ON stored_bytes
USING (tenant = nullif(current_setting('wopr.tenant', true), ''))
WITH CHECK (tenant = nullif(current_setting('wopr.tenant', true), ''));
GRANT SELECT, INSERT, UPDATE ON stored_bytes TO wopr_service;

CREATE POLICY host_rows ON stored_bytes TO wopr_clockwork
USING (current_user = 'wopr_clockwork') WITH CHECK (current_user = 'wopr_clockwork');
GRANT SELECT, INSERT, UPDATE, DELETE ON stored_bytes TO wopr_clockwork;

ALTER TABLE model_tokens ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_rows ON model_tokens
USING (tenant = nullif(current_setting('wopr.tenant', true), ''))
WITH CHECK (tenant = nullif(current_setting('wopr.tenant', true), ''));
GRANT SELECT, INSERT, UPDATE ON model_tokens TO wopr_service;

ALTER TABLE quotas ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_rows ON quotas
USING (tenant = nullif(current_setting('wopr.tenant', true), ''))
WITH CHECK (tenant = nullif(current_setting('wopr.tenant', true), ''));
GRANT SELECT, INSERT, UPDATE, DELETE ON quotas TO wopr_service;

CREATE POLICY host_rows ON quotas TO wopr_clockwork
USING (current_user = 'wopr_clockwork') WITH CHECK (current_user = 'wopr_clockwork');
GRANT SELECT ON quotas TO wopr_clockwork;

CREATE POLICY host_rows ON events TO wopr_clockwork
USING (current_user = 'wopr_clockwork') WITH CHECK (current_user = 'wopr_clockwork');
GRANT SELECT (tenant, body) ON events TO wopr_clockwork;

CREATE POLICY host_rows ON artifacts TO wopr_clockwork
USING (current_user = 'wopr_clockwork') WITH CHECK (current_user = 'wopr_clockwork');
GRANT SELECT (tenant, body) ON artifacts TO wopr_clockwork;

CREATE FUNCTION count_events_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO stored_bytes AS s (tenant, shard, event_bytes, artifact_bytes)
    SELECT c.tenant, pg_backend_pid(), sum(c.bytes), 0
    FROM (SELECT tenant, length(body) AS bytes FROM added) c GROUP BY c.tenant
    ON CONFLICT (tenant, shard) DO UPDATE SET
        event_bytes = s.event_bytes + excluded.event_bytes;
    RETURN NULL;
END
$$;

CREATE TRIGGER count_events_insert AFTER INSERT ON events REFERENCING NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION count_events_insert();

CREATE FUNCTION count_events_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO stored_bytes AS s (tenant, shard, event_bytes, artifact_bytes)
    SELECT c.tenant, pg_backend_pid(), sum(c.bytes), 0
    FROM (SELECT tenant, -length(body) AS bytes FROM gone) c GROUP BY c.tenant
    ON CONFLICT (tenant, shard) DO UPDATE SET
        event_bytes = s.event_bytes + excluded.event_bytes;
    RETURN NULL;
END
$$;

CREATE TRIGGER count_events_delete AFTER DELETE ON events REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION count_events_delete();

CREATE FUNCTION count_artifacts_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO stored_bytes AS s (tenant, shard, event_bytes, artifact_bytes)
    SELECT c.tenant, pg_backend_pid(), 0, sum(c.bytes)
    FROM (SELECT tenant, length(body) AS bytes FROM added) c GROUP BY c.tenant
    ON CONFLICT (tenant, shard) DO UPDATE SET
        artifact_bytes = s.artifact_bytes + excluded.artifact_bytes;
    RETURN NULL;
END
$$;

CREATE TRIGGER count_artifacts_insert AFTER INSERT ON artifacts REFERENCING NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION count_artifacts_insert();

CREATE FUNCTION count_artifacts_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO stored_bytes AS s (tenant, shard, event_bytes, artifact_bytes)
    SELECT c.tenant, pg_backend_pid(), 0, sum(c.bytes)
    FROM (
        SELECT tenant, length(body) AS bytes FROM changed
        UNION ALL SELECT tenant, -length(body) FROM former
    ) c GROUP BY c.tenant
    ON CONFLICT (tenant, shard) DO UPDATE SET
        artifact_bytes = s.artifact_bytes + excluded.artifact_bytes;
    RETURN NULL;
END
$$;

CREATE TRIGGER count_artifacts_update AFTER UPDATE ON artifacts
REFERENCING OLD TABLE AS former NEW TABLE AS changed
FOR EACH STATEMENT EXECUTE FUNCTION count_artifacts_update();

CREATE FUNCTION count_artifacts_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO stored_bytes AS s (tenant, shard, event_bytes, artifact_bytes)
    SELECT c.tenant, pg_backend_pid(), 0, sum(c.bytes)
    FROM (SELECT tenant, -length(body) AS bytes FROM gone) c GROUP BY c.tenant
    ON CONFLICT (tenant, shard) DO UPDATE SET
        artifact_bytes = s.artifact_bytes + excluded.artifact_bytes;
    RETURN NULL;
END
$$;

CREATE TRIGGER count_artifacts_delete AFTER DELETE ON artifacts REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION count_artifacts_delete();

CREATE FUNCTION host_add_up_stored_bytes() RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    WITH added AS (
        DELETE FROM stored_bytes WHERE (tenant, shard) IN (
            SELECT tenant, shard FROM stored_bytes
            WHERE shard <> 0 FOR UPDATE SKIP LOCKED
        ) RETURNING tenant, event_bytes, artifact_bytes
    )
    INSERT INTO stored_bytes AS s (tenant, shard, event_bytes, artifact_bytes)
    SELECT tenant, 0, sum(event_bytes)::bigint, sum(artifact_bytes)::bigint
    FROM added GROUP BY tenant
    ON CONFLICT (tenant, shard) DO UPDATE SET
        event_bytes = s.event_bytes + excluded.event_bytes,
        artifact_bytes = s.artifact_bytes + excluded.artifact_bytes
$$;

-- One statement reads the rows and the counters from one snapshot, so the difference is correct
-- during other transactions.
CREATE FUNCTION host_recount_stored_bytes() RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    INSERT INTO stored_bytes AS s (tenant, shard, event_bytes, artifact_bytes)
    SELECT tenant, 0, sum(events)::bigint, sum(artifacts)::bigint FROM (
        SELECT tenant, length(body) AS events, 0 AS artifacts FROM events
        UNION ALL SELECT tenant, 0, length(body) FROM artifacts
        UNION ALL SELECT tenant, -event_bytes, -artifact_bytes FROM stored_bytes
    ) counted GROUP BY tenant HAVING sum(events) <> 0 OR sum(artifacts) <> 0
    ON CONFLICT (tenant, shard) DO UPDATE SET
        event_bytes = s.event_bytes + excluded.event_bytes,
        artifact_bytes = s.artifact_bytes + excluded.artifact_bytes
$$;

CREATE FUNCTION host_quotas() RETURNS TABLE (tenant text, key_id text, quota text, amount bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT tenant, key_id, quota, amount FROM quotas ORDER BY tenant, key_id, quota
$$;

-- A new owner of a function must have the right to create in its schema.
GRANT USAGE, CREATE ON SCHEMA wopr TO wopr_clockwork;
ALTER FUNCTION host_add_up_stored_bytes OWNER TO wopr_clockwork;
ALTER FUNCTION host_recount_stored_bytes OWNER TO wopr_clockwork;
ALTER FUNCTION host_quotas OWNER TO wopr_clockwork;
REVOKE CREATE ON SCHEMA wopr FROM wopr_clockwork;
REVOKE ALL ON FUNCTION
    host_add_up_stored_bytes, host_recount_stored_bytes, host_quotas
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    host_add_up_stored_bytes, host_recount_stored_bytes, host_quotas
TO wopr_service;

SELECT host_recount_stored_bytes();
