-- Listing by signals.

CREATE INDEX CONCURRENTLY IF NOT EXISTS runs_by_signals
ON runs (tenant, signals, created_at, run_id);
