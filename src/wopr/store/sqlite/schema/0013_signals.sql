-- This migration separates checks of KAHN producers from people's annotations, so all counts are
-- computed again.

ALTER TABLE annotations ADD COLUMN source TEXT NOT NULL DEFAULT 'person';

UPDATE annotations SET source = 'audit'
WHERE run_id GLOB 'kahn-*' AND instr(CAST(body AS TEXT), '"principalRef":"kahn:') > 0;

DELETE FROM feedback_hours;

INSERT INTO feedback_hours
SELECT tenant, created_at - created_at % 3600000, workflow_id, agent_id, node_id, sum(kind =
    'rating'), coalesce(sum(rating), 0), sum(kind = 'correction'), sum(kind = 'label'), sum(kind =
    'flag')
FROM annotations
WHERE source <> 'audit' GROUP BY 1, 2, 3, 4, 5;

DELETE FROM feedback_days;

INSERT INTO feedback_days
SELECT tenant, created_at - created_at % 86400000, workflow_id, agent_id, node_id, sum(kind =
    'rating'), coalesce(sum(rating), 0), sum(kind = 'correction'), sum(kind = 'label'), sum(kind =
    'flag')
FROM annotations
WHERE source <> 'audit' GROUP BY 1, 2, 3, 4, 5;

CREATE TABLE run_feedback (
    tenant      TEXT NOT NULL,
    run_id      TEXT NOT NULL,
    ratings     INTEGER NOT NULL,
    rating_sum  INTEGER NOT NULL,
    corrections INTEGER NOT NULL,
    labels      INTEGER NOT NULL,
    flags       INTEGER NOT NULL,
    PRIMARY KEY (tenant, run_id)
) WITHOUT ROWID;

INSERT INTO run_feedback
SELECT tenant, run_id, sum(kind = 'rating'), coalesce(sum(rating), 0), sum(kind = 'correction'),
    sum(kind = 'label'), sum(kind = 'flag')
FROM annotations
WHERE source <> 'audit' GROUP BY 1, 2;

CREATE TABLE run_labels (
    tenant     TEXT NOT NULL,
    label      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    run_id     TEXT NOT NULL,
    PRIMARY KEY (tenant, label, created_at, run_id)
) WITHOUT ROWID;

CREATE INDEX run_labels_by_run ON run_labels (tenant, run_id);

INSERT OR IGNORE INTO run_labels
SELECT a.tenant, json_extract(CAST(a.body AS TEXT), '$.signal.label'), r.created_at, a.run_id
FROM annotations a JOIN runs r ON r.run_id = a.run_id
WHERE a.kind = 'label' AND a.source <> 'audit'
    AND length(json_extract(CAST(a.body AS TEXT), '$.signal.label')) <= 200;

-- The agents that took part in a run, each with the signals that count for it.
CREATE TABLE run_agents (
    tenant      TEXT NOT NULL,
    run_id      TEXT NOT NULL,
    agent_id    TEXT NOT NULL,
    workflow_id TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    signals     INTEGER NOT NULL,
    PRIMARY KEY (tenant, run_id, agent_id)
) WITHOUT ROWID;

ALTER TABLE runs ADD COLUMN signals INTEGER NOT NULL DEFAULT 0;

UPDATE runs SET signals = (SELECT max(a.kind = 'flag') * 1 + max(a.kind = 'rating') * 2 +
    max(a.kind = 'correction') * 12
FROM annotations a
WHERE a.tenant = runs.tenant AND a.run_id = runs.run_id AND a.source <> 'audit')
WHERE run_id IN (SELECT run_id
FROM annotations
WHERE source <> 'audit');

UPDATE runs SET signals = signals | 8 WHERE has_suspended AND EXISTS (
    SELECT 1 FROM events e WHERE e.run_id = runs.run_id AND e.type = 'interrupt.resolved'
);

CREATE INDEX runs_by_signals ON runs (tenant, signals, created_at, run_id);

CREATE TABLE run_hours (
    tenant      TEXT NOT NULL,
    bucket      INTEGER NOT NULL,
    workflow_id TEXT NOT NULL,
    agent_id    TEXT NOT NULL,
    signals     INTEGER NOT NULL,
    runs        INTEGER NOT NULL,
    PRIMARY KEY (tenant, bucket, workflow_id, agent_id, signals)
) WITHOUT ROWID;

CREATE TABLE run_days (
    tenant      TEXT NOT NULL,
    bucket      INTEGER NOT NULL,
    workflow_id TEXT NOT NULL,
    agent_id    TEXT NOT NULL,
    signals     INTEGER NOT NULL,
    runs        INTEGER NOT NULL,
    PRIMARY KEY (tenant, bucket, workflow_id, agent_id, signals)
) WITHOUT ROWID;

INSERT INTO run_hours
SELECT tenant, created_at - created_at % 3600000, workflow_id, '', signals, count(*)
FROM runs GROUP BY 1, 2, 3, 5;

INSERT INTO run_days
SELECT tenant, created_at - created_at % 86400000, workflow_id, '', signals, count(*)
FROM runs GROUP BY 1, 2, 3, 5;

CREATE TRIGGER runs_added AFTER INSERT ON runs BEGIN
    INSERT INTO run_hours (tenant, bucket, workflow_id, agent_id, signals, runs)
    VALUES (NEW.tenant, NEW.created_at - NEW.created_at % 3600000, NEW.workflow_id, '',
        NEW.signals, 1)
    ON CONFLICT (tenant, bucket, workflow_id, agent_id, signals)
    DO UPDATE SET runs = runs + 1;
    INSERT INTO run_days (tenant, bucket, workflow_id, agent_id, signals, runs)
    VALUES (NEW.tenant, NEW.created_at - NEW.created_at % 86400000, NEW.workflow_id, '',
        NEW.signals, 1)
    ON CONFLICT (tenant, bucket, workflow_id, agent_id, signals)
    DO UPDATE SET runs = runs + 1;
END;

CREATE TRIGGER runs_deleted AFTER DELETE ON runs BEGIN
    UPDATE run_hours SET runs = runs - 1
    WHERE tenant = OLD.tenant AND bucket = OLD.created_at - OLD.created_at % 3600000 AND
        workflow_id = OLD.workflow_id AND agent_id = '' AND signals = OLD.signals;
    DELETE
    FROM run_hours
    WHERE tenant = OLD.tenant AND bucket = OLD.created_at - OLD.created_at % 3600000 AND
        workflow_id = OLD.workflow_id AND agent_id = '' AND signals = OLD.signals AND runs = 0;
    UPDATE run_days SET runs = runs - 1
    WHERE tenant = OLD.tenant AND bucket = OLD.created_at - OLD.created_at % 86400000 AND
        workflow_id = OLD.workflow_id AND agent_id = '' AND signals = OLD.signals;
    DELETE
    FROM run_days
    WHERE tenant = OLD.tenant AND bucket = OLD.created_at - OLD.created_at % 86400000 AND
        workflow_id = OLD.workflow_id AND agent_id = '' AND signals = OLD.signals AND runs = 0;
END;

CREATE TRIGGER runs_changed AFTER UPDATE OF signals ON runs
WHEN NEW.signals <> OLD.signals BEGIN
    UPDATE run_hours SET runs = runs - 1
    WHERE tenant = OLD.tenant AND bucket = OLD.created_at - OLD.created_at % 3600000 AND
        workflow_id = OLD.workflow_id AND agent_id = '' AND signals = OLD.signals;
    DELETE
    FROM run_hours
    WHERE tenant = OLD.tenant AND bucket = OLD.created_at - OLD.created_at % 3600000 AND
        workflow_id = OLD.workflow_id AND agent_id = '' AND signals = OLD.signals AND runs = 0;
    UPDATE run_days SET runs = runs - 1
    WHERE tenant = OLD.tenant AND bucket = OLD.created_at - OLD.created_at % 86400000 AND
        workflow_id = OLD.workflow_id AND agent_id = '' AND signals = OLD.signals;
    DELETE
    FROM run_days
    WHERE tenant = OLD.tenant AND bucket = OLD.created_at - OLD.created_at % 86400000 AND
        workflow_id = OLD.workflow_id AND agent_id = '' AND signals = OLD.signals AND runs = 0;
    INSERT INTO run_hours (tenant, bucket, workflow_id, agent_id, signals, runs)
    VALUES (NEW.tenant, NEW.created_at - NEW.created_at % 3600000, NEW.workflow_id, '',
        NEW.signals, 1)
    ON CONFLICT (tenant, bucket, workflow_id, agent_id, signals)
    DO UPDATE SET runs = runs + 1;
    INSERT INTO run_days (tenant, bucket, workflow_id, agent_id, signals, runs)
    VALUES (NEW.tenant, NEW.created_at - NEW.created_at % 86400000, NEW.workflow_id, '',
        NEW.signals, 1)
    ON CONFLICT (tenant, bucket, workflow_id, agent_id, signals)
    DO UPDATE SET runs = runs + 1;
END;

CREATE TRIGGER run_agents_added AFTER INSERT ON run_agents BEGIN
    INSERT INTO run_hours (tenant, bucket, workflow_id, agent_id, signals, runs)
    VALUES (NEW.tenant, NEW.created_at - NEW.created_at % 3600000, NEW.workflow_id,
        NEW.agent_id, NEW.signals, 1)
    ON CONFLICT (tenant, bucket, workflow_id, agent_id, signals)
    DO UPDATE SET runs = runs + 1;
    INSERT INTO run_days (tenant, bucket, workflow_id, agent_id, signals, runs)
    VALUES (NEW.tenant, NEW.created_at - NEW.created_at % 86400000, NEW.workflow_id,
        NEW.agent_id, NEW.signals, 1)
    ON CONFLICT (tenant, bucket, workflow_id, agent_id, signals)
    DO UPDATE SET runs = runs + 1;
END;

CREATE TRIGGER run_agents_deleted AFTER DELETE ON run_agents BEGIN
    UPDATE run_hours SET runs = runs - 1
    WHERE tenant = OLD.tenant AND bucket = OLD.created_at - OLD.created_at % 3600000 AND
        workflow_id = OLD.workflow_id AND agent_id = OLD.agent_id AND signals = OLD.signals;
    DELETE
    FROM run_hours
    WHERE tenant = OLD.tenant AND bucket = OLD.created_at - OLD.created_at % 3600000 AND
        workflow_id = OLD.workflow_id AND agent_id = OLD.agent_id AND signals = OLD.signals AND runs
        = 0;
    UPDATE run_days SET runs = runs - 1
    WHERE tenant = OLD.tenant AND bucket = OLD.created_at - OLD.created_at % 86400000 AND
        workflow_id = OLD.workflow_id AND agent_id = OLD.agent_id AND signals = OLD.signals;
    DELETE
    FROM run_days
    WHERE tenant = OLD.tenant AND bucket = OLD.created_at - OLD.created_at % 86400000 AND
        workflow_id = OLD.workflow_id AND agent_id = OLD.agent_id AND signals = OLD.signals AND runs
        = 0;
END;

CREATE TRIGGER run_agents_changed AFTER UPDATE OF signals ON run_agents
WHEN NEW.signals <> OLD.signals BEGIN
    UPDATE run_hours SET runs = runs - 1
    WHERE tenant = OLD.tenant AND bucket = OLD.created_at - OLD.created_at % 3600000 AND
        workflow_id = OLD.workflow_id AND agent_id = OLD.agent_id AND signals = OLD.signals;
    DELETE
    FROM run_hours
    WHERE tenant = OLD.tenant AND bucket = OLD.created_at - OLD.created_at % 3600000 AND
        workflow_id = OLD.workflow_id AND agent_id = OLD.agent_id AND signals = OLD.signals AND runs
        = 0;
    UPDATE run_days SET runs = runs - 1
    WHERE tenant = OLD.tenant AND bucket = OLD.created_at - OLD.created_at % 86400000 AND
        workflow_id = OLD.workflow_id AND agent_id = OLD.agent_id AND signals = OLD.signals;
    DELETE
    FROM run_days
    WHERE tenant = OLD.tenant AND bucket = OLD.created_at - OLD.created_at % 86400000 AND
        workflow_id = OLD.workflow_id AND agent_id = OLD.agent_id AND signals = OLD.signals AND runs
        = 0;
    INSERT INTO run_hours (tenant, bucket, workflow_id, agent_id, signals, runs)
    VALUES (NEW.tenant, NEW.created_at - NEW.created_at % 3600000, NEW.workflow_id,
        NEW.agent_id, NEW.signals, 1)
    ON CONFLICT (tenant, bucket, workflow_id, agent_id, signals)
    DO UPDATE SET runs = runs + 1;
    INSERT INTO run_days (tenant, bucket, workflow_id, agent_id, signals, runs)
    VALUES (NEW.tenant, NEW.created_at - NEW.created_at % 86400000, NEW.workflow_id,
        NEW.agent_id, NEW.signals, 1)
    ON CONFLICT (tenant, bucket, workflow_id, agent_id, signals)
    DO UPDATE SET runs = runs + 1;
END;
