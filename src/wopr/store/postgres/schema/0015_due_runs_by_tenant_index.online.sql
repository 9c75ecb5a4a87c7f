-- Due runs of each tenant.

CREATE INDEX CONCURRENTLY IF NOT EXISTS runs_due_by_tenant ON runs (tenant, wake_at, run_id)
WHERE wake_at IS NOT NULL AND holder IS NULL;
