CREATE TABLE fleet_tenants (
    tenant TEXT NOT NULL PRIMARY KEY,
    runs   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE fleet_runs (
    tenant     TEXT NOT NULL,
    run_id     TEXT NOT NULL,
    kind       TEXT NOT NULL,
    source     TEXT NOT NULL,
    lines      INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    last_event INTEGER NOT NULL,
    ended_at   INTEGER,
    outcome    TEXT,
    hidden_at  INTEGER,
    PRIMARY KEY (tenant, run_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX fleet_runs_newest ON fleet_runs (tenant, last_event, run_id)
WHERE hidden_at IS NULL;

CREATE INDEX fleet_runs_aging ON fleet_runs (started_at) WHERE hidden_at IS NULL;

CREATE INDEX fleet_runs_hidden ON fleet_runs (hidden_at) WHERE hidden_at IS NOT NULL;

-- A row has many lines. Their hashes come first, so that a read of the hashes skips the lines.
CREATE TABLE fleet_chunks (
    tenant TEXT NOT NULL,
    run_id TEXT NOT NULL,
    first  INTEGER NOT NULL,
    lines  INTEGER NOT NULL,
    hashes BLOB NOT NULL,
    body   BLOB NOT NULL,
    PRIMARY KEY (tenant, run_id, first)
) STRICT;

CREATE TABLE fleet_agent_runs (
    tenant        TEXT NOT NULL,
    run_id        TEXT NOT NULL,
    agent_id      TEXT NOT NULL,
    started_at    INTEGER NOT NULL,
    last_event    INTEGER NOT NULL,
    status        TEXT NOT NULL,
    task          TEXT NOT NULL,
    model         TEXT,
    step          INTEGER NOT NULL,
    tool_calls    INTEGER NOT NULL,
    audits_passed INTEGER NOT NULL,
    audits_failed INTEGER NOT NULL,
    audits_warned INTEGER NOT NULL,
    blocked_at    INTEGER,
    ended_at      INTEGER,
    outcome       TEXT,
    duration_s    REAL,
    score         REAL,
    duration_bin  INTEGER,
    score_units   INTEGER,
    PRIMARY KEY (tenant, run_id, agent_id)
) STRICT;

CREATE INDEX fleet_agent_runs_newest
ON fleet_agent_runs (tenant, agent_id, last_event, run_id);

CREATE INDEX fleet_agent_runs_by_time ON fleet_agent_runs (tenant, last_event);

CREATE INDEX fleet_agent_runs_by_duration
ON fleet_agent_runs (tenant, agent_id, duration_bin, last_event, duration_s)
WHERE duration_bin IS NOT NULL;

CREATE INDEX fleet_agent_runs_ended
ON fleet_agent_runs (tenant, agent_id, ended_at, run_id, last_event, outcome)
WHERE ended_at IS NOT NULL;

CREATE INDEX fleet_agent_runs_scored
ON fleet_agent_runs (tenant, agent_id, ended_at, run_id, score) WHERE score IS NOT NULL;

-- An audit after the end of a run keeps the run in a time span although its end is too old.
CREATE INDEX fleet_agent_runs_touched
ON fleet_agent_runs (tenant, agent_id, last_event, ended_at, run_id, score)
WHERE score IS NOT NULL AND last_event > ended_at;

CREATE TABLE fleet_audits (
    tenant        TEXT NOT NULL,
    run_id        TEXT NOT NULL,
    line          INTEGER NOT NULL,
    at            INTEGER NOT NULL,
    checkpoint_id TEXT NOT NULL,
    result        TEXT NOT NULL,
    PRIMARY KEY (tenant, run_id, line)
) STRICT, WITHOUT ROWID;

CREATE INDEX fleet_audits_by_time ON fleet_audits (tenant, at, checkpoint_id, result);

CREATE INDEX fleet_audits_failed ON fleet_audits (tenant, checkpoint_id, at, run_id)
WHERE result = 'fail';

-- The totals of a rolling time span count runs that are not older than `since`.
CREATE TABLE fleet_spans (
    tenant TEXT NOT NULL,
    span   TEXT NOT NULL,
    since  INTEGER NOT NULL,
    PRIMARY KEY (tenant, span)
) STRICT, WITHOUT ROWID;

CREATE INDEX fleet_spans_behind ON fleet_spans (span, since);

CREATE TABLE fleet_agents (
    tenant      TEXT NOT NULL,
    span        TEXT NOT NULL,
    agent_id    TEXT NOT NULL,
    runs        INTEGER NOT NULL,
    converged   INTEGER NOT NULL,
    partial     INTEGER NOT NULL,
    escaped     INTEGER NOT NULL,
    aborted     INTEGER NOT NULL,
    scored      INTEGER NOT NULL,
    score_units INTEGER NOT NULL,
    PRIMARY KEY (tenant, span, agent_id)
) STRICT, WITHOUT ROWID;

-- Bins of durations, and stretches of many bins. A percentile is looked up in the stretches first,
-- then in the bins.
CREATE TABLE fleet_stretches (
    tenant   TEXT NOT NULL,
    span     TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    stretch  INTEGER NOT NULL,
    runs     INTEGER NOT NULL,
    PRIMARY KEY (tenant, span, agent_id, stretch)
) STRICT, WITHOUT ROWID;

CREATE TABLE fleet_bins (
    tenant       TEXT NOT NULL,
    span         TEXT NOT NULL,
    agent_id     TEXT NOT NULL,
    duration_bin INTEGER NOT NULL,
    runs         INTEGER NOT NULL,
    PRIMARY KEY (tenant, span, agent_id, duration_bin)
) STRICT, WITHOUT ROWID;

CREATE TABLE fleet_checkpoints (
    tenant        TEXT NOT NULL,
    span          TEXT NOT NULL,
    checkpoint_id TEXT NOT NULL,
    passed        INTEGER NOT NULL,
    failed        INTEGER NOT NULL,
    warned        INTEGER NOT NULL,
    PRIMARY KEY (tenant, span, checkpoint_id)
) STRICT, WITHOUT ROWID;
