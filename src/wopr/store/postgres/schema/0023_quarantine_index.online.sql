-- Runs in quarantine.

CREATE INDEX CONCURRENTLY IF NOT EXISTS runs_in_quarantine
ON runs (tenant, created_at, run_id) WHERE quarantined_at IS NOT NULL AND ended_at IS NULL;
