"""The tables of annotations, review queues and judges, and of the signals that runs have."""

from __future__ import annotations

from wopr.store.port.feedback import CORRECTED, DAY_MS, FLAGGED, HOUR_MS, INTERVENED, RATED

# A counter is found by its time first: a summary reads the hours and days of its window.
_COUNTS = """
    CREATE TABLE feedback_{unit} (
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
    ) WITHOUT ROWID
    """

FEEDBACK = (
    # The key is the order of a listing, so that a run's annotations lie side by side.
    """
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
    ) WITHOUT ROWID
    """,
    _COUNTS.format(unit="hours"),
    _COUNTS.format(unit="days"),
    """
    CREATE TABLE queues (
        tenant     TEXT NOT NULL,
        queue_id   TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        overlap    INTEGER NOT NULL,
        body       BLOB NOT NULL,
        PRIMARY KEY (tenant, queue_id)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX queues_newest ON queues (tenant, created_at, queue_id)",
    # `verdict` is the first reviewer's; `disputed` says that a later one differed.
    """
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
    ) WITHOUT ROWID
    """,
    "CREATE UNIQUE INDEX queue_items_by_run ON queue_items (tenant, run_id, queue_id)",
    """
    CREATE INDEX queue_items_open ON queue_items (tenant, queue_id, place)
    WHERE reviews < overlap
    """,
    """
    CREATE TABLE queue_reviews (
        tenant       TEXT NOT NULL,
        queue_id     TEXT NOT NULL,
        run_id       TEXT NOT NULL,
        reviewer     TEXT NOT NULL,
        locked_until INTEGER NOT NULL,
        done_at      INTEGER,
        PRIMARY KEY (tenant, queue_id, run_id, reviewer)
    ) WITHOUT ROWID
    """,
    """
    CREATE INDEX queue_reviews_held ON queue_reviews (tenant, queue_id, reviewer, locked_until)
    WHERE done_at IS NULL
    """,
    """
    CREATE TABLE judges (
        tenant     TEXT NOT NULL,
        judge_id   TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        is_done    INTEGER NOT NULL,
        body       BLOB NOT NULL,
        PRIMARY KEY (tenant, judge_id)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX judges_open ON judges (created_at, tenant, judge_id) WHERE is_done = 0",
    """
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
    ) WITHOUT ROWID
    """,
    "CREATE UNIQUE INDEX judged_runs_by_run ON judged_runs (tenant, run_id, judge_id)",
    "CREATE INDEX judged_runs_by_state ON judged_runs (tenant, judge_id, state, place)",
)

_UNITS = {"hours": HOUR_MS, "days": DAY_MS}

_RUN_COUNTS = """
    CREATE TABLE run_{unit} (
        tenant      TEXT NOT NULL,
        bucket      INTEGER NOT NULL,
        workflow_id TEXT NOT NULL,
        agent_id    TEXT NOT NULL,
        signals     INTEGER NOT NULL,
        runs        INTEGER NOT NULL,
        PRIMARY KEY (tenant, bucket, workflow_id, agent_id, signals)
    ) WITHOUT ROWID
    """

_NUMBERS = """
    sum(kind = 'rating'), coalesce(sum(rating), 0), sum(kind = 'correction'),
    sum(kind = 'label'), sum(kind = 'flag')
"""


def _more(row: str, agent: str) -> str:
    """Statements of a trigger that count a row."""
    return "".join(
        f"""
        INSERT INTO run_{unit} (tenant, bucket, workflow_id, agent_id, signals, runs)
        VALUES (
            {row}.tenant, {row}.created_at - {row}.created_at % {length}, {row}.workflow_id,
            {agent}, {row}.signals, 1
        ) ON CONFLICT (tenant, bucket, workflow_id, agent_id, signals)
        DO UPDATE SET runs = runs + 1;
        """
        for unit, length in _UNITS.items()
    )


def _less(row: str, agent: str) -> str:
    """Statements of a trigger that count a row no longer."""
    statements: list[str] = []
    for unit, length in _UNITS.items():
        key = f"""
            tenant = {row}.tenant AND bucket = {row}.created_at - {row}.created_at % {length}
            AND workflow_id = {row}.workflow_id AND agent_id = {agent} AND signals = {row}.signals
        """
        statements.append(f"UPDATE run_{unit} SET runs = runs - 1 WHERE {key};")
        statements.append(f"DELETE FROM run_{unit} WHERE {key} AND runs = 0;")
    return " ".join(statements)


def _counted(table: str, new: str, old: str) -> tuple[str, ...]:
    """Triggers that count the rows of a table by their signals."""
    more, less = _more("NEW", new), _less("OLD", old)
    return (
        f"CREATE TRIGGER {table}_added AFTER INSERT ON {table} BEGIN {more} END",
        f"CREATE TRIGGER {table}_deleted AFTER DELETE ON {table} BEGIN {less} END",
        f"CREATE TRIGGER {table}_changed AFTER UPDATE OF signals ON {table} "
        f"WHEN NEW.signals <> OLD.signals BEGIN {less} {more} END",
    )


# This migration separates checks of KAHN producers from people's annotations, so all counts are
# computed again.
SIGNALS = (
    "ALTER TABLE annotations ADD COLUMN source TEXT NOT NULL DEFAULT 'person'",
    """
    UPDATE annotations SET source = 'audit'
    WHERE run_id GLOB 'kahn-*' AND instr(CAST(body AS TEXT), '"principalRef":"kahn:') > 0
    """,
    *(
        statement
        for unit, length in _UNITS.items()
        for statement in (
            f"DELETE FROM feedback_{unit}",
            f"""
            INSERT INTO feedback_{unit}
            SELECT tenant, created_at - created_at % {length}, workflow_id, agent_id, node_id,
                {_NUMBERS}
            FROM annotations WHERE source <> 'audit' GROUP BY 1, 2, 3, 4, 5
            """,
        )
    ),
    """
    CREATE TABLE run_feedback (
        tenant      TEXT NOT NULL,
        run_id      TEXT NOT NULL,
        ratings     INTEGER NOT NULL,
        rating_sum  INTEGER NOT NULL,
        corrections INTEGER NOT NULL,
        labels      INTEGER NOT NULL,
        flags       INTEGER NOT NULL,
        PRIMARY KEY (tenant, run_id)
    ) WITHOUT ROWID
    """,
    f"""
    INSERT INTO run_feedback SELECT tenant, run_id, {_NUMBERS}
    FROM annotations WHERE source <> 'audit' GROUP BY 1, 2
    """,
    """
    CREATE TABLE run_labels (
        tenant     TEXT NOT NULL,
        label      TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        run_id     TEXT NOT NULL,
        PRIMARY KEY (tenant, label, created_at, run_id)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX run_labels_by_run ON run_labels (tenant, run_id)",
    """
    INSERT OR IGNORE INTO run_labels
    SELECT a.tenant, json_extract(CAST(a.body AS TEXT), '$.signal.label'), r.created_at, a.run_id
    FROM annotations a JOIN runs r ON r.run_id = a.run_id
    WHERE a.kind = 'label' AND a.source <> 'audit'
        AND length(json_extract(CAST(a.body AS TEXT), '$.signal.label')) <= 200
    """,
    # The agents that took part in a run, each with the signals that count for it.
    """
    CREATE TABLE run_agents (
        tenant      TEXT NOT NULL,
        run_id      TEXT NOT NULL,
        agent_id    TEXT NOT NULL,
        workflow_id TEXT NOT NULL,
        created_at  INTEGER NOT NULL,
        signals     INTEGER NOT NULL,
        PRIMARY KEY (tenant, run_id, agent_id)
    ) WITHOUT ROWID
    """,
    "ALTER TABLE runs ADD COLUMN signals INTEGER NOT NULL DEFAULT 0",
    f"""
    UPDATE runs SET signals = (
        SELECT max(a.kind = 'flag') * {FLAGGED} + max(a.kind = 'rating') * {RATED}
            + max(a.kind = 'correction') * {CORRECTED | INTERVENED}
        FROM annotations a
        WHERE a.tenant = runs.tenant AND a.run_id = runs.run_id AND a.source <> 'audit'
    ) WHERE run_id IN (SELECT run_id FROM annotations WHERE source <> 'audit')
    """,
    f"""
    UPDATE runs SET signals = signals | {INTERVENED} WHERE has_suspended AND EXISTS (
        SELECT 1 FROM events e WHERE e.run_id = runs.run_id AND e.type = 'interrupt.resolved'
    )
    """,
    "CREATE INDEX runs_by_signals ON runs (tenant, signals, created_at, run_id)",
    *(_RUN_COUNTS.format(unit=unit) for unit in _UNITS),
    *(
        f"""
        INSERT INTO run_{unit}
        SELECT tenant, created_at - created_at % {length}, workflow_id, '', signals, count(*)
        FROM runs GROUP BY 1, 2, 3, 5
        """
        for unit, length in _UNITS.items()
    ),
    *_counted("runs", "''", "''"),
    *_counted("run_agents", "NEW.agent_id", "OLD.agent_id"),
)
