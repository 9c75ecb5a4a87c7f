ALTER TABLE stored_bytes ADD COLUMN other_bytes INTEGER NOT NULL DEFAULT 0;

ALTER TABLE stored_bytes ADD COLUMN workflow_versions INTEGER NOT NULL DEFAULT 0;

ALTER TABLE stored_bytes ADD COLUMN agents INTEGER NOT NULL DEFAULT 0;

INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
    workflow_versions, agents)
SELECT tenant, 0, 0, 0, sum(coalesce(length(CAST(body AS BLOB)), 0)), count(*), 0
FROM workflows
WHERE true GROUP BY tenant
ON CONFLICT (tenant, shard)
DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
    workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;

INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
    workflow_versions, agents)
SELECT tenant, 0, 0, 0, sum(coalesce(length(CAST(body AS BLOB)), 0)), 0, count(*)
FROM agents
WHERE true GROUP BY tenant
ON CONFLICT (tenant, shard)
DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
    workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;

INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
    workflow_versions, agents)
SELECT tenant, 0, 0, 0, sum(coalesce(length(CAST(body AS BLOB)), 0)), 0, 0
FROM annotations
WHERE true GROUP BY tenant
ON CONFLICT (tenant, shard)
DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
    workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;

INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
    workflow_versions, agents)
SELECT tenant, 0, 0, 0, sum(coalesce(length(CAST(body AS BLOB)), 0)), 0, 0
FROM answers
WHERE true GROUP BY tenant
ON CONFLICT (tenant, shard)
DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
    workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;

INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
    workflow_versions, agents)
SELECT tenant, 0, 0, 0, sum(coalesce(length(CAST(content AS BLOB)), 0) +
    coalesce(length(CAST(tags AS BLOB)), 0)), 0, 0
FROM memories
WHERE true GROUP BY tenant
ON CONFLICT (tenant, shard)
DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
    workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;

INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
    workflow_versions, agents)
SELECT tenant, 0, 0, 0, sum(coalesce(length(CAST(body AS BLOB)), 0)), 0, 0
FROM queues
WHERE true GROUP BY tenant
ON CONFLICT (tenant, shard)
DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
    workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;

INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
    workflow_versions, agents)
SELECT tenant, 0, 0, 0, sum(coalesce(length(CAST(body AS BLOB)), 0)), 0, 0
FROM judges
WHERE true GROUP BY tenant
ON CONFLICT (tenant, shard)
DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
    workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;

INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
    workflow_versions, agents)
SELECT tenant, 0, 0, 0, sum(coalesce(length(CAST(type AS BLOB)), 0) +
    coalesce(length(CAST(reason AS BLOB)), 0) + coalesce(length(CAST(place AS BLOB)), 0)), 0, 0
FROM dead_letters
WHERE true GROUP BY tenant
ON CONFLICT (tenant, shard)
DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
    workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;

INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
    workflow_versions, agents)
SELECT tenant, 0, 0, 0, sum(coalesce(length(CAST(hashes AS BLOB)), 0) +
    coalesce(length(CAST(body AS BLOB)), 0)), 0, 0
FROM fleet_chunks
WHERE true GROUP BY tenant
ON CONFLICT (tenant, shard)
DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
    workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;

INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
    workflow_versions, agents)
SELECT tenant, 0, 0, 0, sum(coalesce(length(CAST(body AS BLOB)), 0)), 0, 0
FROM otlp_parts
WHERE true GROUP BY tenant
ON CONFLICT (tenant, shard)
DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
    workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;

CREATE TRIGGER count_workflows_insert AFTER INSERT ON workflows BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.body AS BLOB)), 0)), 1, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_workflows_delete AFTER DELETE ON workflows BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.body AS BLOB)), 0)), -1, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_workflows_update AFTER UPDATE OF body ON workflows BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.body AS BLOB)), 0)), -1, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.body AS BLOB)), 0)), 1, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_agents_insert AFTER INSERT ON agents BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.body AS BLOB)), 0)), 0, 1)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_agents_delete AFTER DELETE ON agents BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.body AS BLOB)), 0)), 0, -1)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_agents_update AFTER UPDATE OF body ON agents BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.body AS BLOB)), 0)), 0, -1)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.body AS BLOB)), 0)), 0, 1)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_annotations_insert AFTER INSERT ON annotations BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_annotations_delete AFTER DELETE ON annotations BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_annotations_update AFTER UPDATE OF body ON annotations BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_answers_insert AFTER INSERT ON answers BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_answers_delete AFTER DELETE ON answers BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_answers_update AFTER UPDATE OF body ON answers BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_memories_insert AFTER INSERT ON memories BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.content AS BLOB)), 0) +
        coalesce(length(CAST(NEW.tags AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_memories_delete AFTER DELETE ON memories BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.content AS BLOB)), 0) +
        coalesce(length(CAST(OLD.tags AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_memories_update AFTER UPDATE OF content, tags ON memories BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.content AS BLOB)), 0) +
        coalesce(length(CAST(OLD.tags AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.content AS BLOB)), 0) +
        coalesce(length(CAST(NEW.tags AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_queues_insert AFTER INSERT ON queues BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_queues_delete AFTER DELETE ON queues BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_queues_update AFTER UPDATE OF body ON queues BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_judges_insert AFTER INSERT ON judges BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_judges_delete AFTER DELETE ON judges BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_judges_update AFTER UPDATE OF body ON judges BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_dead_letters_insert AFTER INSERT ON dead_letters BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.type AS BLOB)), 0) +
        coalesce(length(CAST(NEW.reason AS BLOB)), 0) + coalesce(length(CAST(NEW.place AS BLOB)),
        0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_dead_letters_delete AFTER DELETE ON dead_letters BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.type AS BLOB)), 0) +
        coalesce(length(CAST(OLD.reason AS BLOB)), 0) + coalesce(length(CAST(OLD.place AS BLOB)),
        0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_dead_letters_update AFTER UPDATE OF type, reason, place ON dead_letters BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.type AS BLOB)), 0) +
        coalesce(length(CAST(OLD.reason AS BLOB)), 0) + coalesce(length(CAST(OLD.place AS BLOB)),
        0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.type AS BLOB)), 0) +
        coalesce(length(CAST(NEW.reason AS BLOB)), 0) + coalesce(length(CAST(NEW.place AS BLOB)),
        0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_fleet_chunks_insert AFTER INSERT ON fleet_chunks BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.hashes AS BLOB)), 0) +
        coalesce(length(CAST(NEW.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_fleet_chunks_delete AFTER DELETE ON fleet_chunks BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.hashes AS BLOB)), 0) +
        coalesce(length(CAST(OLD.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_fleet_chunks_update AFTER UPDATE OF hashes, body ON fleet_chunks BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.hashes AS BLOB)), 0) +
        coalesce(length(CAST(OLD.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.hashes AS BLOB)), 0) +
        coalesce(length(CAST(NEW.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_otlp_parts_insert AFTER INSERT ON otlp_parts BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_otlp_parts_delete AFTER DELETE ON otlp_parts BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;

CREATE TRIGGER count_otlp_parts_update AFTER UPDATE OF body ON otlp_parts BEGIN
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (OLD.tenant, 0, 0, 0, -(coalesce(length(CAST(OLD.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, other_bytes,
        workflow_versions, agents)
    VALUES (NEW.tenant, 0, 0, 0, (coalesce(length(CAST(NEW.body AS BLOB)), 0)), 0, 0)
    ON CONFLICT (tenant, shard)
    DO UPDATE SET other_bytes = other_bytes + excluded.other_bytes, workflow_versions =
        workflow_versions + excluded.workflow_versions, agents = agents + excluded.agents;
END;
