-- Encrypted credentials of tenants; OpenTelemetry traces before they are projected to KAHN lines.

CREATE TABLE secrets (
    tenant     word NOT NULL,
    name       word NOT NULL,
    sealed     bytea NOT NULL,
    audience   bytea NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (tenant, name)
);

ALTER TABLE secrets ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_rows ON secrets
USING (tenant = nullif(current_setting('wopr.tenant', true), ''))
WITH CHECK (tenant = nullif(current_setting('wopr.tenant', true), ''));
GRANT SELECT, INSERT, UPDATE, DELETE ON secrets TO wopr_service;

CREATE TABLE otlp_traces (
    tenant   word NOT NULL,
    trace_id word NOT NULL,
    last_at  bigint NOT NULL,
    due_at   bigint NOT NULL,
    spans    bigint NOT NULL,
    sealed   bigint NOT NULL,
    told     bigint NOT NULL,
    news     bigint NOT NULL,
    PRIMARY KEY (tenant, trace_id)
) WITH (fillfactor = 70);
CREATE INDEX otlp_traces_due ON otlp_traces (due_at);

-- Episode 0 means: not in an episode yet.
CREATE TABLE otlp_parts (
    tenant   word NOT NULL,
    trace_id word NOT NULL,
    digest   bytea NOT NULL,
    episode  bigint NOT NULL,
    body     bytea NOT NULL,
    PRIMARY KEY (tenant, trace_id, digest)
);

ALTER TABLE otlp_traces ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_rows ON otlp_traces
USING (tenant = nullif(current_setting('wopr.tenant', true), ''))
WITH CHECK (tenant = nullif(current_setting('wopr.tenant', true), ''));
GRANT SELECT, INSERT, UPDATE, DELETE ON otlp_traces TO wopr_service;

ALTER TABLE otlp_parts ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_rows ON otlp_parts
USING (tenant = nullif(current_setting('wopr.tenant', true), ''))
WITH CHECK (tenant = nullif(current_setting('wopr.tenant', true), ''));
GRANT SELECT, INSERT, UPDATE, DELETE ON otlp_parts TO wopr_service;

CREATE POLICY host_rows ON otlp_traces TO wopr_clockwork
USING (current_user = 'wopr_clockwork') WITH CHECK (current_user = 'wopr_clockwork');
GRANT SELECT (tenant, trace_id, due_at) ON otlp_traces TO wopr_clockwork;

CREATE FUNCTION host_due_traces(bigint) RETURNS TABLE (tenant text, id text, due_at bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT tenant, trace_id, due_at FROM otlp_traces ORDER BY due_at LIMIT $1
$$;

-- A new owner of a function must have the right to create in its schema.
GRANT USAGE, CREATE ON SCHEMA wopr TO wopr_clockwork;
ALTER FUNCTION host_due_traces OWNER TO wopr_clockwork;
REVOKE CREATE ON SCHEMA wopr FROM wopr_clockwork;
REVOKE ALL ON FUNCTION host_due_traces FROM PUBLIC;
GRANT EXECUTE ON FUNCTION host_due_traces TO wopr_service;
