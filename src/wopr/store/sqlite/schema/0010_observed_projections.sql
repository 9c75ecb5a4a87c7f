-- Observed runs and the host's own runs are two queues in one table.

CREATE INDEX projections_observed ON projections (run_id GLOB 'kahn-*', place);

CREATE INDEX projections_by_tenant ON projections (tenant, place)
WHERE run_id GLOB 'kahn-*';
