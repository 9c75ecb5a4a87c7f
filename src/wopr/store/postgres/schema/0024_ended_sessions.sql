-- Sessions of the console that were signed out before they expired.

CREATE TABLE ended_sessions (
    tenant       word NOT NULL,
    session_hash bytea NOT NULL,
    expires_at   bigint NOT NULL,
    PRIMARY KEY (tenant, session_hash)
);

ALTER TABLE ended_sessions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_rows ON ended_sessions
USING (tenant = nullif(current_setting('wopr.tenant', true), ''))
WITH CHECK (tenant = nullif(current_setting('wopr.tenant', true), ''));
GRANT SELECT, INSERT, DELETE ON ended_sessions TO wopr_service;
