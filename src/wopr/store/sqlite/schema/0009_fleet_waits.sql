CREATE INDEX fleet_agent_runs_waiting
ON fleet_agent_runs (tenant, blocked_at, run_id, agent_id) WHERE blocked_at IS NOT NULL;
