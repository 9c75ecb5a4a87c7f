CREATE INDEX runs_due_by_tenant ON runs (tenant, wake_at, run_id)
WHERE wake_at IS NOT NULL;
