-- The column `shard` is always 0: on PostgreSQL a tenant has several rows.

CREATE TABLE stored_bytes (
    tenant         TEXT NOT NULL,
    shard          INTEGER NOT NULL,
    event_bytes    INTEGER NOT NULL,
    artifact_bytes INTEGER NOT NULL,
    PRIMARY KEY (tenant, shard)
) WITHOUT ROWID;

INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes)
SELECT r.tenant, 0,
    sum((SELECT coalesce(sum(length(e.body)), 0) FROM events e WHERE e.run_id = r.run_id)),
    sum((SELECT coalesce(sum(length(a.body)), 0) FROM artifacts a WHERE a.run_id = r.run_id))
FROM runs r GROUP BY r.tenant;

CREATE TABLE model_tokens (
    tenant TEXT NOT NULL,
    day    TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    PRIMARY KEY (tenant, day)
) WITHOUT ROWID;

CREATE TABLE quotas (
    tenant TEXT NOT NULL,
    key_id TEXT NOT NULL,
    quota  TEXT NOT NULL,
    amount INTEGER NOT NULL,
    PRIMARY KEY (tenant, key_id, quota)
) WITHOUT ROWID;
