CREATE TABLE webhooks (
    webhook_id       TEXT NOT NULL PRIMARY KEY,
    tenant           TEXT NOT NULL,
    url              TEXT NOT NULL,
    events           BLOB NOT NULL,
    tags             BLOB,
    secret           BLOB NOT NULL,
    fingerprint      TEXT NOT NULL,
    created_at       INTEGER NOT NULL,
    state            TEXT NOT NULL,
    failures         INTEGER NOT NULL,
    recent           BLOB,
    open_until       INTEGER,
    old_secret       BLOB,
    old_secret_until INTEGER
);

CREATE INDEX webhooks_newest ON webhooks (tenant, created_at, webhook_id);

-- One row per subscription and run with events to deliver. The events of a run are delivered in
-- order, one at a time; other runs do not wait for them.
CREATE TABLE delivery_lanes (
    run_id     TEXT NOT NULL,
    webhook_id TEXT NOT NULL,
    tenant     TEXT NOT NULL,
    due_at     INTEGER NOT NULL,
    attempts   INTEGER NOT NULL,
    PRIMARY KEY (run_id, webhook_id)
) WITHOUT ROWID;

CREATE INDEX delivery_lanes_due ON delivery_lanes (webhook_id, due_at, run_id);

-- The event stays in the log. The delivered bytes are the appended bytes.
CREATE TABLE deliveries (
    run_id     TEXT NOT NULL,
    webhook_id TEXT NOT NULL,
    sequence   INTEGER NOT NULL,
    PRIMARY KEY (run_id, webhook_id, sequence)
) WITHOUT ROWID;

-- `place` is the run and the sequence as one text: the second part of a page's key.
CREATE TABLE dead_letters (
    run_id     TEXT NOT NULL,
    webhook_id TEXT NOT NULL,
    sequence   INTEGER NOT NULL,
    tenant     TEXT NOT NULL,
    type       TEXT NOT NULL,
    attempts   INTEGER NOT NULL,
    reason     TEXT NOT NULL,
    died_at    INTEGER NOT NULL,
    place      TEXT NOT NULL,
    PRIMARY KEY (run_id, webhook_id, sequence)
) WITHOUT ROWID;

CREATE INDEX dead_letters_newest ON dead_letters (webhook_id, died_at, place);
