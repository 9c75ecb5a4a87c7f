-- `recovering` has at most two rows: the runs that are being recovered now, and the runs that were
-- suspected of crashing the process when it started.

ALTER TABLE runs ADD COLUMN crashes INTEGER NOT NULL DEFAULT 0;

ALTER TABLE runs ADD COLUMN quarantined_at INTEGER;

CREATE INDEX runs_with_crashes ON runs (tenant, run_id) WHERE crashes > 0;

CREATE TABLE recovering (place INTEGER PRIMARY KEY, runs BLOB NOT NULL);
