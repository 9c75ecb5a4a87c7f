-- Runs, their events, artifacts and interrupts; idempotency records; outside effects of nodes.

-- Text that sorts by its bytes, for any collation of the database. The order of a page's key must be
-- the same everywhere.
CREATE DOMAIN word AS text COLLATE "C";

-- A fifth of each page stays free: an update that changes no indexed column then changes no index.
CREATE TABLE runs (
    run_id           word NOT NULL PRIMARY KEY,
    tenant           word NOT NULL,
    workflow_id      word NOT NULL,
    workflow_version word NOT NULL,
    status           word NOT NULL,
    created_at       bigint NOT NULL,
    updated_at       bigint NOT NULL,
    last_sequence    bigint NOT NULL,
    ended_at         bigint,
    wake_at          bigint,
    parent_run_id    word,
    parent_node_id   word,
    tags             bytea,
    wish             bytea,
    sealed           bytea,
    snapshot         bytea,
    source_run_id    word,
    fork             bytea,
    has_suspended    boolean NOT NULL DEFAULT false,
    holder           word,
    wakes            bigint NOT NULL DEFAULT 0,
    CHECK (ended_at IS NULL OR (wake_at IS NULL AND sealed IS NULL))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX runs_newest ON runs (tenant, created_at, run_id);
CREATE INDEX runs_by_status ON runs (tenant, status, created_at, run_id);
CREATE INDEX runs_by_workflow ON runs (tenant, workflow_id, created_at, run_id);

CREATE INDEX runs_by_parent ON runs (tenant, parent_run_id, created_at, run_id)
WHERE parent_run_id IS NOT NULL;

CREATE INDEX runs_by_source ON runs (tenant, source_run_id, created_at, run_id)
WHERE source_run_id IS NOT NULL;
CREATE INDEX runs_due ON runs (wake_at, run_id) WHERE wake_at IS NOT NULL;
CREATE INDEX runs_unfinished ON runs (tenant, run_id) WHERE ended_at IS NULL;
CREATE INDEX runs_held ON runs (holder) WHERE holder IS NOT NULL;
CREATE INDEX runs_ended ON runs (ended_at, run_id) WHERE ended_at IS NOT NULL;

CREATE TABLE run_tags (
    tenant     word NOT NULL,
    tag        word NOT NULL,
    created_at bigint NOT NULL,
    run_id     word NOT NULL,
    PRIMARY KEY (tenant, tag, created_at, run_id)
);

-- The primary key rejects a second writer at the same sequence. Run ids are ordered by time: new
-- events fill the last pages, and retention empties the first pages.
CREATE TABLE events (
    run_id   word NOT NULL,
    sequence bigint NOT NULL,
    tenant   word NOT NULL,
    type     word NOT NULL,
    body     bytea NOT NULL,
    PRIMARY KEY (run_id, sequence)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02
);

CREATE TABLE artifacts (
    run_id        word NOT NULL,
    artifact_id   word NOT NULL,
    tenant        word NOT NULL,
    node_id       word NOT NULL,
    artifact_type word NOT NULL,
    created_at    bigint NOT NULL,
    body          bytea NOT NULL,
    PRIMARY KEY (run_id, artifact_id)
);

-- Runs that retention deleted. A request for such a run is distinguished from one for an unknown run.
CREATE TABLE expired_runs (
    tenant   word NOT NULL,
    run_id   word NOT NULL,
    ended_at bigint NOT NULL,
    PRIMARY KEY (tenant, run_id)
);

-- `place` joins the run id and the interrupt id in one text. It is the second part of a page's key.
CREATE TABLE suspensions (
    run_id       word NOT NULL,
    interrupt_id word NOT NULL,
    tenant       word NOT NULL,
    place        word NOT NULL,
    node_id      word NOT NULL,
    workflow_id  word NOT NULL,
    kind         word NOT NULL,
    created_at   bigint NOT NULL,
    expires_at   bigint,
    body         bytea NOT NULL,
    PRIMARY KEY (run_id, interrupt_id)
);
CREATE INDEX suspensions_newest ON suspensions (tenant, created_at, place);
CREATE INDEX suspensions_by_kind ON suspensions (tenant, kind, created_at, place);
CREATE INDEX suspensions_by_workflow ON suspensions (tenant, workflow_id, created_at, place);
CREATE INDEX suspensions_by_run ON suspensions (tenant, run_id, created_at, place);

-- Stored responses to requests with an idempotency key.
CREATE TABLE answers (
    tenant         word NOT NULL,
    key_hash       bytea NOT NULL,
    request_digest bytea NOT NULL,
    status         bigint NOT NULL,
    body           bytea NOT NULL,
    created_at     bigint NOT NULL,
    PRIMARY KEY (tenant, key_hash)
);
CREATE INDEX answers_by_age ON answers (created_at);

CREATE TABLE invocations (
    tenant        word NOT NULL,
    invocation_id word NOT NULL,
    run_id        word NOT NULL,
    state         word NOT NULL,
    claimed_at    bigint NOT NULL,
    outcome       bytea,
    PRIMARY KEY (tenant, invocation_id)
);
CREATE INDEX invocations_by_age ON invocations (claimed_at);
-- The health check writes here to test whether the database accepts writes.
CREATE TABLE probes (name word NOT NULL PRIMARY KEY, asked bigint NOT NULL);
