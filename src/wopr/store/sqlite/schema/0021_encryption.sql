CREATE TABLE encryption_keys (
    key_id   TEXT NOT NULL PRIMARY KEY,
    added_at INTEGER NOT NULL
) WITHOUT ROWID;
