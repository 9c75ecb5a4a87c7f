-- Runs that wait for code.

CREATE INDEX CONCURRENTLY IF NOT EXISTS runs_waiting_for_code
ON runs (tenant, created_at, run_id) WHERE missing_types IS NOT NULL;
