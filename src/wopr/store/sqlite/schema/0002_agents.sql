-- Whether the run ever suspended. The end of other runs needs no look at `suspensions`.
ALTER TABLE runs ADD COLUMN has_suspended INTEGER NOT NULL DEFAULT 0;

-- `place` is the run and the interrupt as one text: the second part of a page's key.
CREATE TABLE suspensions (
    run_id       TEXT NOT NULL,
    interrupt_id TEXT NOT NULL,
    tenant       TEXT NOT NULL,
    place        TEXT NOT NULL,
    node_id      TEXT NOT NULL,
    workflow_id  TEXT NOT NULL,
    kind         TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    body         BLOB NOT NULL,
    PRIMARY KEY (run_id, interrupt_id)
);

CREATE INDEX suspensions_newest ON suspensions (tenant, created_at, place);

CREATE INDEX suspensions_by_kind ON suspensions (tenant, kind, created_at, place);

CREATE INDEX suspensions_by_workflow ON suspensions (tenant, workflow_id, created_at, place);

CREATE INDEX suspensions_by_run ON suspensions (tenant, run_id, created_at, place);

CREATE TABLE agents (
    place         INTEGER PRIMARY KEY,
    tenant        TEXT NOT NULL,
    agent_id      TEXT NOT NULL,
    version       TEXT NOT NULL,
    digest        BLOB NOT NULL,
    body          BLOB NOT NULL,
    registered_at INTEGER NOT NULL,
    UNIQUE (tenant, agent_id, version)
);

CREATE INDEX agents_newest ON agents (tenant, agent_id, registered_at, place);

CREATE INDEX agents_in_order ON agents (tenant, place);

CREATE TABLE memories (
    place      INTEGER PRIMARY KEY,
    tenant     TEXT NOT NULL,
    memory_ref TEXT NOT NULL,
    memory_id  TEXT NOT NULL,
    content    TEXT NOT NULL,
    tags       BLOB,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    run_id     TEXT NOT NULL,
    UNIQUE (tenant, memory_ref, memory_id)
);

CREATE INDEX memories_newest ON memories (tenant, memory_ref, created_at, place);

CREATE INDEX memories_expiring ON memories (expires_at, place) WHERE expires_at IS NOT NULL;

CREATE TABLE memory_tags (
    tenant     TEXT NOT NULL,
    memory_ref TEXT NOT NULL,
    tag        TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    place      INTEGER NOT NULL,
    PRIMARY KEY (tenant, memory_ref, tag, created_at, place)
) WITHOUT ROWID;
