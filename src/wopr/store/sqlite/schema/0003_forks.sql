ALTER TABLE runs ADD COLUMN source_run_id TEXT;

ALTER TABLE runs ADD COLUMN fork BLOB;

CREATE INDEX runs_by_source ON runs (tenant, source_run_id, created_at, run_id)
WHERE source_run_id IS NOT NULL;
