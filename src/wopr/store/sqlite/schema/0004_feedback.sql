-- The key has the order of a listing, so the annotations of a run are stored side by side.
CREATE TABLE annotations (
    tenant        TEXT NOT NULL,
    run_id        TEXT NOT NULL,
    created_at    INTEGER NOT NULL,
    annotation_id TEXT NOT NULL,
    workflow_id   TEXT NOT NULL,
    agent_id      TEXT NOT NULL,
    node_id       TEXT NOT NULL,
    kind          TEXT NOT NULL,
    rating        INTEGER,
    body          BLOB NOT NULL,
    PRIMARY KEY (tenant, run_id, created_at, annotation_id)
) WITHOUT ROWID;

CREATE TABLE feedback_hours (
    tenant      TEXT NOT NULL,
    bucket      INTEGER NOT NULL,
    workflow_id TEXT NOT NULL,
    agent_id    TEXT NOT NULL,
    node_id     TEXT NOT NULL,
    ratings     INTEGER NOT NULL,
    rating_sum  INTEGER NOT NULL,
    corrections INTEGER NOT NULL,
    labels      INTEGER NOT NULL,
    flags       INTEGER NOT NULL,
    PRIMARY KEY (tenant, bucket, workflow_id, agent_id, node_id)
) WITHOUT ROWID;

CREATE TABLE feedback_days (
    tenant      TEXT NOT NULL,
    bucket      INTEGER NOT NULL,
    workflow_id TEXT NOT NULL,
    agent_id    TEXT NOT NULL,
    node_id     TEXT NOT NULL,
    ratings     INTEGER NOT NULL,
    rating_sum  INTEGER NOT NULL,
    corrections INTEGER NOT NULL,
    labels      INTEGER NOT NULL,
    flags       INTEGER NOT NULL,
    PRIMARY KEY (tenant, bucket, workflow_id, agent_id, node_id)
) WITHOUT ROWID;

CREATE TABLE queues (
    tenant     TEXT NOT NULL,
    queue_id   TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    overlap    INTEGER NOT NULL,
    body       BLOB NOT NULL,
    PRIMARY KEY (tenant, queue_id)
) WITHOUT ROWID;

CREATE INDEX queues_newest ON queues (tenant, created_at, queue_id);

-- `verdict` is from the first reviewer; `disputed` says that a later reviewer disagreed.
CREATE TABLE queue_items (
    tenant   TEXT NOT NULL,
    queue_id TEXT NOT NULL,
    place    INTEGER NOT NULL,
    run_id   TEXT NOT NULL,
    overlap  INTEGER NOT NULL,
    reviews  INTEGER NOT NULL DEFAULT 0,
    disputed INTEGER NOT NULL DEFAULT 0,
    verdict  BLOB,
    PRIMARY KEY (tenant, queue_id, place)
) WITHOUT ROWID;

CREATE UNIQUE INDEX queue_items_by_run ON queue_items (tenant, run_id, queue_id);

CREATE INDEX queue_items_open ON queue_items (tenant, queue_id, place)
WHERE reviews < overlap;

CREATE TABLE queue_reviews (
    tenant       TEXT NOT NULL,
    queue_id     TEXT NOT NULL,
    run_id       TEXT NOT NULL,
    reviewer     TEXT NOT NULL,
    locked_until INTEGER NOT NULL,
    done_at      INTEGER,
    PRIMARY KEY (tenant, queue_id, run_id, reviewer)
) WITHOUT ROWID;

CREATE INDEX queue_reviews_held ON queue_reviews (tenant, queue_id, reviewer, locked_until)
WHERE done_at IS NULL;

CREATE TABLE judges (
    tenant     TEXT NOT NULL,
    judge_id   TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    is_done    INTEGER NOT NULL,
    body       BLOB NOT NULL,
    PRIMARY KEY (tenant, judge_id)
) WITHOUT ROWID;

CREATE INDEX judges_open ON judges (created_at, tenant, judge_id) WHERE is_done = 0;

CREATE TABLE judged_runs (
    tenant        TEXT NOT NULL,
    judge_id      TEXT NOT NULL,
    place         INTEGER NOT NULL,
    run_id        TEXT NOT NULL,
    state         TEXT NOT NULL,
    judge_run_id  TEXT,
    annotation_id TEXT,
    reason        TEXT,
    PRIMARY KEY (tenant, judge_id, place)
) WITHOUT ROWID;

CREATE UNIQUE INDEX judged_runs_by_run ON judged_runs (tenant, run_id, judge_id);

CREATE INDEX judged_runs_by_state ON judged_runs (tenant, judge_id, state, place);
