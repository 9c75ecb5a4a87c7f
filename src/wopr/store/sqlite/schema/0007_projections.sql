-- The projection queue. A place is never used twice, so it separates new events from projected ones.
-- Runs that are older than the queue are queued too.

CREATE TABLE projections (
    place  INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    run_id TEXT NOT NULL UNIQUE
);

INSERT INTO projections (tenant, run_id) SELECT tenant, run_id FROM runs;
