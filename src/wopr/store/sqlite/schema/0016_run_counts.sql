-- The number of active runs of each tenant is one row. The column `shard` is always 0: on PostgreSQL
-- a tenant has several rows.

ALTER TABLE runs ADD COLUMN root_run_id TEXT;

ALTER TABLE runs ADD COLUMN descendants INTEGER NOT NULL DEFAULT 0;

CREATE TABLE active_runs (
    tenant TEXT NOT NULL,
    shard  INTEGER NOT NULL,
    runs   INTEGER NOT NULL,
    PRIMARY KEY (tenant, shard)
) WITHOUT ROWID;

INSERT INTO active_runs (tenant, shard, runs)
SELECT tenant, 0, count(*) FROM runs
WHERE ended_at IS NULL AND run_id NOT GLOB 'kahn-*' GROUP BY tenant;
