-- Each index on `runs` makes every new run more expensive. So there is one index per listing, and the
-- other indexes are partial.

CREATE TABLE runs (
    run_id           TEXT NOT NULL PRIMARY KEY,
    tenant           TEXT NOT NULL,
    workflow_id      TEXT NOT NULL,
    workflow_version TEXT NOT NULL,
    status           TEXT NOT NULL,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    last_sequence    INTEGER NOT NULL,
    ended_at         INTEGER,
    wake_at          INTEGER,
    parent_run_id    TEXT,
    parent_node_id   TEXT,
    tags             BLOB,
    wish             BLOB,
    sealed           BLOB,
    snapshot         BLOB,
    CHECK (ended_at IS NULL OR (wake_at IS NULL AND sealed IS NULL))
);

CREATE INDEX runs_newest ON runs (tenant, created_at, run_id);

CREATE INDEX runs_by_status ON runs (tenant, status, created_at, run_id);

CREATE INDEX runs_by_workflow ON runs (tenant, workflow_id, created_at, run_id);

CREATE INDEX runs_by_parent ON runs (tenant, parent_run_id, created_at, run_id)
WHERE parent_run_id IS NOT NULL;

CREATE INDEX runs_due ON runs (wake_at, run_id) WHERE wake_at IS NOT NULL;

CREATE INDEX runs_unfinished ON runs (tenant, run_id) WHERE ended_at IS NULL;

CREATE INDEX runs_ended ON runs (ended_at, run_id) WHERE ended_at IS NOT NULL;

CREATE TABLE run_tags (
    tenant     TEXT NOT NULL,
    tag        TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    run_id     TEXT NOT NULL,
    PRIMARY KEY (tenant, tag, created_at, run_id)
) WITHOUT ROWID;

-- This table has no tenant: each statement joins the run's row, which has it.
CREATE TABLE events (
    run_id   TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    type     TEXT NOT NULL,
    body     BLOB NOT NULL,
    PRIMARY KEY (run_id, sequence)
) WITHOUT ROWID;

CREATE TABLE artifacts (
    run_id        TEXT NOT NULL,
    artifact_id   TEXT NOT NULL,
    node_id       TEXT NOT NULL,
    artifact_type TEXT NOT NULL,
    created_at    INTEGER NOT NULL,
    body          BLOB NOT NULL,
    PRIMARY KEY (run_id, artifact_id)
);

-- Runs deleted by retention, so that a later request can be distinguished from an unknown run.
CREATE TABLE expired_runs (
    tenant   TEXT NOT NULL,
    run_id   TEXT NOT NULL,
    ended_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, run_id)
) WITHOUT ROWID;

CREATE TABLE workflows (
    place         INTEGER PRIMARY KEY,
    tenant        TEXT NOT NULL,
    workflow_id   TEXT NOT NULL,
    version       TEXT NOT NULL,
    digest        BLOB NOT NULL,
    body          BLOB NOT NULL,
    registered_at INTEGER NOT NULL,
    UNIQUE (tenant, workflow_id, version)
);

CREATE INDEX workflows_newest ON workflows (tenant, workflow_id, registered_at, place);

CREATE TABLE api_keys (
    key_id      TEXT NOT NULL PRIMARY KEY,
    tenant      TEXT NOT NULL,
    name        TEXT NOT NULL,
    role        TEXT NOT NULL,
    scopes      BLOB NOT NULL,
    key_hash    BLOB NOT NULL UNIQUE,
    created_at  INTEGER NOT NULL,
    is_test     INTEGER NOT NULL,
    expires_at  INTEGER,
    revoked_at  INTEGER,
    replaced_by TEXT
);

CREATE INDEX api_keys_newest ON api_keys (tenant, created_at, key_id);

CREATE TABLE answers (
    tenant         TEXT NOT NULL,
    key_hash       BLOB NOT NULL,
    request_digest BLOB NOT NULL,
    status         INTEGER NOT NULL,
    body           BLOB NOT NULL,
    created_at     INTEGER NOT NULL,
    PRIMARY KEY (tenant, key_hash)
) WITHOUT ROWID;

CREATE INDEX answers_by_age ON answers (created_at);

CREATE TABLE invocations (
    tenant        TEXT NOT NULL,
    invocation_id TEXT NOT NULL,
    run_id        TEXT NOT NULL,
    state         TEXT NOT NULL,
    claimed_at    INTEGER NOT NULL,
    outcome       BLOB,
    PRIMARY KEY (tenant, invocation_id)
) WITHOUT ROWID;

CREATE INDEX invocations_by_age ON invocations (claimed_at);

CREATE TABLE meta (name TEXT NOT NULL PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
