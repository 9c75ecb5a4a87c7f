-- Annotations and their counters, review queues, judges.

CREATE TABLE annotations (
    tenant        word NOT NULL,
    run_id        word NOT NULL,
    created_at    bigint NOT NULL,
    annotation_id word NOT NULL,
    workflow_id   word NOT NULL,
    agent_id      word NOT NULL,
    node_id       word NOT NULL,
    kind          word NOT NULL,
    rating        bigint,
    body          bytea NOT NULL,
    PRIMARY KEY (tenant, run_id, created_at, annotation_id)
);

-- The time is the first column of the key after the tenant: a summary reads the hours and days of
-- one period.
CREATE TABLE feedback_hours (
    tenant      word NOT NULL,
    bucket      bigint NOT NULL,
    workflow_id word NOT NULL,
    agent_id    word NOT NULL,
    node_id     word NOT NULL,
    ratings     bigint NOT NULL,
    rating_sum  bigint NOT NULL,
    corrections bigint NOT NULL,
    labels      bigint NOT NULL,
    flags       bigint NOT NULL,
    PRIMARY KEY (tenant, bucket, workflow_id, agent_id, node_id)
) WITH (fillfactor = 70);

CREATE TABLE feedback_days (
    tenant      word NOT NULL,
    bucket      bigint NOT NULL,
    workflow_id word NOT NULL,
    agent_id    word NOT NULL,
    node_id     word NOT NULL,
    ratings     bigint NOT NULL,
    rating_sum  bigint NOT NULL,
    corrections bigint NOT NULL,
    labels      bigint NOT NULL,
    flags       bigint NOT NULL,
    PRIMARY KEY (tenant, bucket, workflow_id, agent_id, node_id)
) WITH (fillfactor = 70);

CREATE TABLE queues (
    tenant     word NOT NULL,
    queue_id   word NOT NULL,
    created_at bigint NOT NULL,
    overlap    bigint NOT NULL,
    body       bytea NOT NULL,
    PRIMARY KEY (tenant, queue_id)
);
CREATE INDEX queues_newest ON queues (tenant, created_at, queue_id);

-- `verdict` is the verdict of the first reviewer. `disputed` is true if a later verdict differs.
CREATE TABLE queue_items (
    tenant   word NOT NULL,
    queue_id word NOT NULL,
    place    bigint NOT NULL,
    run_id   word NOT NULL,
    overlap  bigint NOT NULL,
    reviews  bigint NOT NULL DEFAULT 0,
    disputed boolean NOT NULL DEFAULT false,
    verdict  bytea,
    PRIMARY KEY (tenant, queue_id, place)
);

CREATE UNIQUE INDEX queue_items_by_run ON queue_items (tenant, run_id, queue_id);

CREATE INDEX queue_items_open ON queue_items (tenant, queue_id, place)
WHERE reviews < overlap;

CREATE TABLE queue_reviews (
    tenant       word NOT NULL,
    queue_id     word NOT NULL,
    run_id       word NOT NULL,
    reviewer     word NOT NULL,
    locked_until bigint NOT NULL,
    done_at      bigint,
    PRIMARY KEY (tenant, queue_id, run_id, reviewer)
);

CREATE INDEX queue_reviews_held ON queue_reviews (tenant, queue_id, reviewer, locked_until)
WHERE done_at IS NULL;

CREATE TABLE judges (
    tenant     word NOT NULL,
    judge_id   word NOT NULL,
    created_at bigint NOT NULL,
    is_done    boolean NOT NULL,
    body       bytea NOT NULL,
    PRIMARY KEY (tenant, judge_id)
);
CREATE INDEX judges_open ON judges (created_at, tenant, judge_id) WHERE NOT is_done;

CREATE TABLE judged_runs (
    tenant        word NOT NULL,
    judge_id      word NOT NULL,
    place         bigint NOT NULL,
    run_id        word NOT NULL,
    state         word NOT NULL,
    judge_run_id  word,
    annotation_id word,
    reason        text,
    PRIMARY KEY (tenant, judge_id, place)
);

CREATE UNIQUE INDEX judged_runs_by_run ON judged_runs (tenant, run_id, judge_id);
CREATE INDEX judged_runs_by_state ON judged_runs (tenant, judge_id, state, place);
