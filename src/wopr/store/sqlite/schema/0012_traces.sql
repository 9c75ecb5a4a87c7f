CREATE TABLE otlp_traces (
    tenant   TEXT NOT NULL,
    trace_id TEXT NOT NULL,
    last_at  INTEGER NOT NULL,
    due_at   INTEGER NOT NULL,
    spans    INTEGER NOT NULL,
    sealed   INTEGER NOT NULL,
    told     INTEGER NOT NULL,
    news     INTEGER NOT NULL,
    PRIMARY KEY (tenant, trace_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX otlp_traces_due ON otlp_traces (due_at, tenant, trace_id);

-- A part with episode 0 has not been assigned to an episode.
CREATE TABLE otlp_parts (
    tenant   TEXT NOT NULL,
    trace_id TEXT NOT NULL,
    digest   BLOB NOT NULL,
    episode  INTEGER NOT NULL,
    body     BLOB NOT NULL,
    PRIMARY KEY (tenant, trace_id, digest)
) STRICT;
