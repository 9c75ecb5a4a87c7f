ALTER TABLE runs ADD COLUMN missing_types BLOB;

CREATE INDEX runs_waiting_for_code ON runs (tenant, created_at, run_id)
WHERE missing_types IS NOT NULL;
