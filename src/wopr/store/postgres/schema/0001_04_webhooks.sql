-- Webhook subscriptions and the queue of their deliveries.

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
) WITH (fillfactor = 70);
CREATE INDEX webhooks_newest ON webhooks (tenant, created_at, webhook_id);

CREATE TABLE delivery_lanes (
    run_id     word NOT NULL,
    webhook_id word NOT NULL,
    tenant     word NOT NULL,
    due_at     bigint NOT NULL,
    attempts   bigint NOT NULL,
    PRIMARY KEY (run_id, webhook_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX delivery_lanes_due ON delivery_lanes (webhook_id, due_at, run_id);

CREATE TABLE deliveries (
    run_id     word NOT NULL,
    webhook_id word NOT NULL,
    sequence   bigint NOT NULL,
    tenant     word NOT NULL,
    PRIMARY KEY (run_id, webhook_id, sequence)
) WITH (autovacuum_vacuum_scale_factor = 0.02);

-- `place` joins the run id and the sequence in one text. It is the second part of a page's key.
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
);
CREATE INDEX dead_letters_newest ON dead_letters (webhook_id, died_at, place);
