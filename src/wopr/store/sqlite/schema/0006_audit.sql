CREATE TABLE audit_entries (
    sequence INTEGER PRIMARY KEY,
    tenant   TEXT NOT NULL,
    body     BLOB NOT NULL,
    digest   BLOB NOT NULL
);

CREATE INDEX audit_entries_by_tenant ON audit_entries (tenant, sequence);

CREATE TABLE audit_checkpoints (
    at_sequence INTEGER PRIMARY KEY,
    merkle_root TEXT NOT NULL,
    signature   TEXT NOT NULL,
    public_key  TEXT NOT NULL,
    peaks       BLOB NOT NULL
);
