-- Retention starts at the last push. For runs that were pushed earlier, it starts at this migration.

ALTER TABLE fleet_runs ADD COLUMN pushed_at INTEGER NOT NULL DEFAULT 0;

UPDATE fleet_runs SET pushed_at = CAST(strftime('%s', 'now') AS INTEGER) * 1000;

DROP INDEX fleet_runs_aging;

CREATE INDEX fleet_runs_aging ON fleet_runs (source, pushed_at) WHERE hidden_at IS NULL;

CREATE INDEX fleet_runs_pushed ON fleet_runs (tenant, source, pushed_at)
WHERE hidden_at IS NULL;

ALTER TABLE fleet_agent_runs ADD COLUMN totals TEXT;
