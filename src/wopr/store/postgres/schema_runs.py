"""The tables of runs, definitions, keys and idempotency.

`word` is text that sorts by its bytes, whatever the database's own collation is: the order of a
page's key must be the same everywhere.
"""

from __future__ import annotations

RUNS = (
    'CREATE DOMAIN word AS text COLLATE "C"',
    # A fifth of each page is left free, so that a step that changes no indexed column moves no
    # index entry.
    """
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
    ) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05)
    """,
    "CREATE INDEX runs_newest ON runs (tenant, created_at, run_id)",
    "CREATE INDEX runs_by_status ON runs (tenant, status, created_at, run_id)",
    "CREATE INDEX runs_by_workflow ON runs (tenant, workflow_id, created_at, run_id)",
    """
    CREATE INDEX runs_by_parent ON runs (tenant, parent_run_id, created_at, run_id)
    WHERE parent_run_id IS NOT NULL
    """,
    """
    CREATE INDEX runs_by_source ON runs (tenant, source_run_id, created_at, run_id)
    WHERE source_run_id IS NOT NULL
    """,
    "CREATE INDEX runs_due ON runs (wake_at, run_id) WHERE wake_at IS NOT NULL",
    "CREATE INDEX runs_unfinished ON runs (tenant, run_id) WHERE ended_at IS NULL",
    "CREATE INDEX runs_held ON runs (holder) WHERE holder IS NOT NULL",
    "CREATE INDEX runs_ended ON runs (ended_at, run_id) WHERE ended_at IS NOT NULL",
    """
    CREATE TABLE run_tags (
        tenant     word NOT NULL,
        tag        word NOT NULL,
        created_at bigint NOT NULL,
        run_id     word NOT NULL,
        PRIMARY KEY (tenant, tag, created_at, run_id)
    )
    """,
    # The key is the fence. Ids are ordered by time, so that new events fill the last pages and
    # retention empties the first; bodies are compressed when they are long.
    """
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
    )
    """,
    """
    CREATE TABLE artifacts (
        run_id        word NOT NULL,
        artifact_id   word NOT NULL,
        tenant        word NOT NULL,
        node_id       word NOT NULL,
        artifact_type word NOT NULL,
        created_at    bigint NOT NULL,
        body          bytea NOT NULL,
        PRIMARY KEY (run_id, artifact_id)
    )
    """,
    # What retention took away, so that a later request can be told from one for an unknown run.
    """
    CREATE TABLE expired_runs (
        tenant   word NOT NULL,
        run_id   word NOT NULL,
        ended_at bigint NOT NULL,
        PRIMARY KEY (tenant, run_id)
    )
    """,
    # `place` is the run and the interrupt in one text, the second half of a page's key.
    """
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
    )
    """,
    "CREATE INDEX suspensions_newest ON suspensions (tenant, created_at, place)",
    "CREATE INDEX suspensions_by_kind ON suspensions (tenant, kind, created_at, place)",
    "CREATE INDEX suspensions_by_workflow ON suspensions (tenant, workflow_id, created_at, place)",
    "CREATE INDEX suspensions_by_run ON suspensions (tenant, run_id, created_at, place)",
    """
    CREATE TABLE answers (
        tenant         word NOT NULL,
        key_hash       bytea NOT NULL,
        request_digest bytea NOT NULL,
        status         bigint NOT NULL,
        body           bytea NOT NULL,
        created_at     bigint NOT NULL,
        PRIMARY KEY (tenant, key_hash)
    )
    """,
    "CREATE INDEX answers_by_age ON answers (created_at)",
    """
    CREATE TABLE invocations (
        tenant        word NOT NULL,
        invocation_id word NOT NULL,
        run_id        word NOT NULL,
        state         word NOT NULL,
        claimed_at    bigint NOT NULL,
        outcome       bytea,
        PRIMARY KEY (tenant, invocation_id)
    )
    """,
    "CREATE INDEX invocations_by_age ON invocations (claimed_at)",
    # Counts how often it was asked whether the store takes a write.
    "CREATE TABLE probes (name word NOT NULL PRIMARY KEY, asked bigint NOT NULL)",
)

DEFINITIONS = (
    """
    CREATE TABLE workflows (
        place         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant        word NOT NULL,
        workflow_id   word NOT NULL,
        version       word NOT NULL,
        digest        bytea NOT NULL,
        body          bytea NOT NULL,
        registered_at bigint NOT NULL,
        UNIQUE (tenant, workflow_id, version)
    )
    """,
    "CREATE INDEX workflows_newest ON workflows (tenant, workflow_id, registered_at, place)",
    """
    CREATE TABLE agents (
        place         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant        word NOT NULL,
        agent_id      word NOT NULL,
        version       word NOT NULL,
        digest        bytea NOT NULL,
        body          bytea NOT NULL,
        registered_at bigint NOT NULL,
        UNIQUE (tenant, agent_id, version)
    )
    """,
    "CREATE INDEX agents_newest ON agents (tenant, agent_id, registered_at, place)",
    "CREATE INDEX agents_in_order ON agents (tenant, place)",
    """
    CREATE TABLE memories (
        place      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant     word NOT NULL,
        memory_ref word NOT NULL,
        memory_id  word NOT NULL,
        content    text NOT NULL,
        tags       bytea,
        created_at bigint NOT NULL,
        expires_at bigint,
        run_id     word NOT NULL,
        UNIQUE (tenant, memory_ref, memory_id)
    )
    """,
    "CREATE INDEX memories_newest ON memories (tenant, memory_ref, created_at, place)",
    """
    CREATE INDEX memories_expiring ON memories (expires_at, place) WHERE expires_at IS NOT NULL
    """,
    """
    CREATE TABLE memory_tags (
        tenant     word NOT NULL,
        memory_ref word NOT NULL,
        tag        word NOT NULL,
        created_at bigint NOT NULL,
        place      bigint NOT NULL,
        PRIMARY KEY (tenant, memory_ref, tag, created_at, place)
    )
    """,
    """
    CREATE TABLE api_keys (
        key_id      word NOT NULL PRIMARY KEY,
        tenant      word NOT NULL,
        name        word NOT NULL,
        role        word NOT NULL,
        scopes      bytea NOT NULL,
        key_hash    bytea NOT NULL UNIQUE,
        created_at  bigint NOT NULL,
        is_test     boolean NOT NULL,
        expires_at  bigint,
        revoked_at  bigint,
        replaced_by word
    )
    """,
    "CREATE INDEX api_keys_newest ON api_keys (tenant, created_at, key_id)",
)
