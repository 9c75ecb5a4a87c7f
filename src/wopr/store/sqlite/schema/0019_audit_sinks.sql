CREATE TABLE audit_sinks (
    sink       TEXT NOT NULL PRIMARY KEY,
    sequence   INTEGER NOT NULL,
    checkpoint INTEGER NOT NULL
) WITHOUT ROWID;
