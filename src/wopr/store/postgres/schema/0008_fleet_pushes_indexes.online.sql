-- Retention by source and by last push replaces retention by start.

CREATE INDEX CONCURRENTLY IF NOT EXISTS fleet_runs_aged ON fleet_runs (source, pushed_at)
WHERE hidden_at IS NULL;

CREATE INDEX CONCURRENTLY IF NOT EXISTS fleet_runs_pushed
ON fleet_runs (tenant, source, pushed_at) WHERE hidden_at IS NULL;

DROP INDEX CONCURRENTLY IF EXISTS fleet_runs_aging;
DROP FUNCTION IF EXISTS host_fleet_begun (bigint, bigint);
