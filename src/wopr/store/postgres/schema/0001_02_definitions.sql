-- Workflows, agents, memories and API keys.

CREATE TABLE workflows (
    place         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant        word NOT NULL,
    workflow_id   word NOT NULL,
    version       word NOT NULL,
    digest        bytea NOT NULL,
    body          bytea NOT NULL,
    registered_at bigint NOT NULL,
    UNIQUE (tenant, workflow_id, version)
);
CREATE INDEX workflows_newest ON workflows (tenant, workflow_id, registered_at, place);

CREATE TABLE agents (
    place         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant        word NOT NULL,
    agent_id      word NOT NULL,
    version       word NOT NULL,
    digest        bytea NOT NULL,
    body          bytea NOT NULL,
    registered_at bigint NOT NULL,
    UNIQUE (tenant, agent_id, version)
);
CREATE INDEX agents_newest ON agents (tenant, agent_id, registered_at, place);
CREATE INDEX agents_in_order ON agents (tenant, place);

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
);
CREATE INDEX memories_newest ON memories (tenant, memory_ref, created_at, place);
CREATE INDEX memories_expiring ON memories (expires_at, place) WHERE expires_at IS NOT NULL;

CREATE TABLE memory_tags (
    tenant     word NOT NULL,
    memory_ref word NOT NULL,
    tag        word NOT NULL,
    created_at bigint NOT NULL,
    place      bigint NOT NULL,
    PRIMARY KEY (tenant, memory_ref, tag, created_at, place)
);

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
);
CREATE INDEX api_keys_newest ON api_keys (tenant, created_at, key_id);
