"""The tables beside the runs: annotations, reviews and judges, webhooks, and the audit log."""

from __future__ import annotations

# A counter is found by its time first: a summary reads the hours and days of its window.
_COUNTS = """
    CREATE TABLE feedback_{unit} (
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
    ) WITH (fillfactor = 70)
    """

FEEDBACK = (
    """
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
    )
    """,
    _COUNTS.format(unit="hours"),
    _COUNTS.format(unit="days"),
    """
    CREATE TABLE queues (
        tenant     word NOT NULL,
        queue_id   word NOT NULL,
        created_at bigint NOT NULL,
        overlap    bigint NOT NULL,
        body       bytea NOT NULL,
        PRIMARY KEY (tenant, queue_id)
    )
    """,
    "CREATE INDEX queues_newest ON queues (tenant, created_at, queue_id)",
    # `verdict` is the first reviewer's; `disputed` says that a later one differed.
    """
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
    )
    """,
    "CREATE UNIQUE INDEX queue_items_by_run ON queue_items (tenant, run_id, queue_id)",
    """
    CREATE INDEX queue_items_open ON queue_items (tenant, queue_id, place)
    WHERE reviews < overlap
    """,
    """
    CREATE TABLE queue_reviews (
        tenant       word NOT NULL,
        queue_id     word NOT NULL,
        run_id       word NOT NULL,
        reviewer     word NOT NULL,
        locked_until bigint NOT NULL,
        done_at      bigint,
        PRIMARY KEY (tenant, queue_id, run_id, reviewer)
    )
    """,
    """
    CREATE INDEX queue_reviews_held ON queue_reviews (tenant, queue_id, reviewer, locked_until)
    WHERE done_at IS NULL
    """,
    """
    CREATE TABLE judges (
        tenant     word NOT NULL,
        judge_id   word NOT NULL,
        created_at bigint NOT NULL,
        is_done    boolean NOT NULL,
        body       bytea NOT NULL,
        PRIMARY KEY (tenant, judge_id)
    )
    """,
    "CREATE INDEX judges_open ON judges (created_at, tenant, judge_id) WHERE NOT is_done",
    """
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
    )
    """,
    "CREATE UNIQUE INDEX judged_runs_by_run ON judged_runs (tenant, run_id, judge_id)",
    "CREATE INDEX judged_runs_by_state ON judged_runs (tenant, judge_id, state, place)",
)

WEBHOOKS = (
    """
    CREATE TABLE webhooks (
        webhook_id       word NOT NULL PRIMARY KEY,
        tenant           word NOT NULL,
        url              text NOT NULL,
        events           bytea NOT NULL,
        tags             bytea,
        secret           bytea NOT NULL,
        fingerprint      word NOT NULL,
        created_at       bigint NOT NULL,
        state            word NOT NULL,
        failures         bigint NOT NULL,
        recent           bytea,
        open_until       bigint,
        old_secret       bytea,
        old_secret_until bigint
    ) WITH (fillfactor = 70)
    """,
    "CREATE INDEX webhooks_newest ON webhooks (tenant, created_at, webhook_id)",
    """
    CREATE TABLE delivery_lanes (
        run_id     word NOT NULL,
        webhook_id word NOT NULL,
        tenant     word NOT NULL,
        due_at     bigint NOT NULL,
        attempts   bigint NOT NULL,
        PRIMARY KEY (run_id, webhook_id)
    ) WITH (autovacuum_vacuum_scale_factor = 0.02)
    """,
    "CREATE INDEX delivery_lanes_due ON delivery_lanes (webhook_id, due_at, run_id)",
    """
    CREATE TABLE deliveries (
        run_id     word NOT NULL,
        webhook_id word NOT NULL,
        sequence   bigint NOT NULL,
        tenant     word NOT NULL,
        PRIMARY KEY (run_id, webhook_id, sequence)
    ) WITH (autovacuum_vacuum_scale_factor = 0.02)
    """,
    # `place` is the run and the sequence in one text, the second half of a page's key.
    """
    CREATE TABLE dead_letters (
        run_id     word NOT NULL,
        webhook_id word NOT NULL,
        sequence   bigint NOT NULL,
        tenant     word NOT NULL,
        type       word NOT NULL,
        attempts   bigint NOT NULL,
        reason     text NOT NULL,
        died_at    bigint NOT NULL,
        place      word NOT NULL,
        PRIMARY KEY (run_id, webhook_id, sequence)
    )
    """,
    "CREATE INDEX dead_letters_newest ON dead_letters (webhook_id, died_at, place)",
)

AUDIT = (
    """
    CREATE TABLE audit_entries (
        sequence bigint NOT NULL PRIMARY KEY,
        tenant   word NOT NULL,
        body     bytea NOT NULL,
        digest   bytea NOT NULL
    )
    """,
    "CREATE INDEX audit_entries_by_tenant ON audit_entries (tenant, sequence)",
    """
    CREATE TABLE audit_checkpoints (
        at_sequence bigint NOT NULL PRIMARY KEY,
        merkle_root text NOT NULL,
        signature   text NOT NULL,
        public_key  text NOT NULL,
        peaks       bytea NOT NULL
    )
    """,
)
