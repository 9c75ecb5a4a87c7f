CREATE TABLE ended_sessions (
    tenant       TEXT NOT NULL,
    session_hash BLOB NOT NULL,
    expires_at   INTEGER NOT NULL,
    PRIMARY KEY (tenant, session_hash)
) WITHOUT ROWID;
