-- The audit log and its checkpoints.

CREATE TABLE audit_entries (
    sequence bigint NOT NULL PRIMARY KEY,
    tenant   word NOT NULL,
    body     bytea NOT NULL,
    digest   bytea NOT NULL
);
CREATE INDEX audit_entries_by_tenant ON audit_entries (tenant, sequence);

CREATE TABLE audit_checkpoints (
    at_sequence bigint NOT NULL PRIMARY KEY,
    merkle_root text NOT NULL,
    signature   text NOT NULL,
    public_key  text NOT NULL,
    peaks       bytea NOT NULL
);
