"""The signals of runs: columns, tables, and the triggers that count runs by their signals.

A counter has one row per server process (`shard`), so that two transactions never wait for each
other to count. A row may be negative; the sum over all shards is the number of runs.
"""

from __future__ import annotations

from wopr.store.port.feedback import CORRECTED, DAY_MS, FLAGGED, HOUR_MS, INTERVENED, RATED
from wopr.store.postgres.security import tenant_table

_UNITS = {"hours": HOUR_MS, "days": DAY_MS}

_NUMBERS = """
    count(*) FILTER (WHERE kind = 'rating'), coalesce(sum(rating), 0),
    count(*) FILTER (WHERE kind = 'correction'), count(*) FILTER (WHERE kind = 'label'),
    count(*) FILTER (WHERE kind = 'flag')
"""

_RUN_COUNTS = """
    CREATE TABLE run_{unit} (
        tenant      word NOT NULL,
        bucket      bigint NOT NULL,
        workflow_id word NOT NULL,
        agent_id    word NOT NULL,
        signals     bigint NOT NULL,
        shard       bigint NOT NULL DEFAULT 0,
        runs        bigint NOT NULL,
        PRIMARY KEY (tenant, bucket, workflow_id, agent_id, signals, shard)
    ) WITH (fillfactor = 50)
    """

_TABLES = (
    "ALTER TABLE annotations ADD COLUMN source word NOT NULL DEFAULT 'person'",
    "ALTER TABLE runs ADD COLUMN signals bigint NOT NULL DEFAULT 0",
    """
    CREATE TABLE run_feedback (
        tenant      word NOT NULL,
        run_id      word NOT NULL,
        ratings     bigint NOT NULL,
        rating_sum  bigint NOT NULL,
        corrections bigint NOT NULL,
        labels      bigint NOT NULL,
        flags       bigint NOT NULL,
        PRIMARY KEY (tenant, run_id)
    ) WITH (fillfactor = 70)
    """,
    """
    CREATE TABLE run_labels (
        tenant     word NOT NULL,
        label      word NOT NULL,
        created_at bigint NOT NULL,
        run_id     word NOT NULL,
        PRIMARY KEY (tenant, label, created_at, run_id)
    )
    """,
    "CREATE INDEX run_labels_by_run ON run_labels (tenant, run_id)",
    # The agents that took part in a run, each with the signals that count for it.
    """
    CREATE TABLE run_agents (
        tenant      word NOT NULL,
        run_id      word NOT NULL,
        agent_id    word NOT NULL,
        workflow_id word NOT NULL,
        created_at  bigint NOT NULL,
        signals     bigint NOT NULL,
        PRIMARY KEY (tenant, run_id, agent_id)
    ) WITH (fillfactor = 80)
    """,
    *(_RUN_COUNTS.format(unit=unit) for unit in _UNITS),
)

# Tables that the migration reads or changes for all tenants.
_READ = ("runs", "events", "annotations", "feedback_hours", "feedback_days")


def _recount(unit: str, length: int) -> tuple[str, ...]:
    return (
        f"DELETE FROM feedback_{unit}",
        f"""
        INSERT INTO feedback_{unit}
        SELECT tenant, created_at - created_at % {length}, workflow_id, agent_id, node_id, {_NUMBERS}
        FROM annotations WHERE source <> 'audit' GROUP BY 1, 2, 3, 4, 5
        """,
        f"""
        INSERT INTO run_{unit} (tenant, bucket, workflow_id, agent_id, signals, runs)
        SELECT tenant, created_at - created_at % {length}, workflow_id, '', signals, count(*)
        FROM runs GROUP BY 1, 2, 3, 5
        """,
    )


# This migration separates checks of KAHN producers from people's annotations, so all counts are
# computed again. A label with an escaped control character is left out: PostgreSQL cannot read it from JSON.
_FILL = (
    *(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY" for table in _READ),
    """
    UPDATE annotations SET source = 'audit'
    WHERE starts_with(run_id, 'kahn-')
        AND position(convert_to('"principalRef":"kahn:', 'UTF8') IN body) > 0
    """,
    f"""
    INSERT INTO run_feedback SELECT tenant, run_id, {_NUMBERS}
    FROM annotations WHERE source <> 'audit' GROUP BY 1, 2
    """,
    """
    INSERT INTO run_labels
    SELECT DISTINCT a.tenant, convert_from(a.body, 'UTF8')::json #>> '{signal,label}',
        r.created_at, a.run_id
    FROM annotations a JOIN runs r ON r.run_id = a.run_id
    WHERE a.kind = 'label' AND a.source <> 'audit'
        AND position(decode('5c753030', 'hex') IN a.body) = 0
        AND length(convert_from(a.body, 'UTF8')::json #>> '{signal,label}') <= 200
    """,
    f"""
    UPDATE runs r SET signals = a.signals FROM (
        SELECT tenant, run_id, bit_or(CASE kind
            WHEN 'flag' THEN {FLAGGED} WHEN 'rating' THEN {RATED}
            WHEN 'correction' THEN {CORRECTED | INTERVENED} ELSE 0
        END) AS signals FROM annotations WHERE source <> 'audit' GROUP BY tenant, run_id
    ) a WHERE r.tenant = a.tenant AND r.run_id = a.run_id AND a.signals <> 0
    """,
    f"""
    UPDATE runs SET signals = signals | {INTERVENED} WHERE has_suspended AND EXISTS (
        SELECT 1 FROM events e WHERE e.run_id = runs.run_id AND e.type = 'interrupt.resolved'
    )
    """,
    *(statement for unit, length in _UNITS.items() for statement in _recount(unit, length)),
    *(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY" for table in _READ),
)

_ADD_TO = """
    INSERT INTO wopr.run_{unit} AS c (
        tenant, bucket, workflow_id, agent_id, signals, shard, runs
    ) VALUES (
        owner, run_at - run_at % {length}, workflow, agent, marks, pg_backend_pid(), change
    ) ON CONFLICT (tenant, bucket, workflow_id, agent_id, signals, shard)
    DO UPDATE SET runs = c.runs + excluded.runs;
    """

_COUNT_RUN = f"""
    CREATE FUNCTION count_run(
        owner text, run_at bigint, workflow text, agent text, marks bigint, change bigint
    ) RETURNS void LANGUAGE sql AS $$
        {" ".join(_ADD_TO.format(unit=unit, length=length) for unit, length in _UNITS.items())}
    $$
    """


def _counted(table: str, agent: str) -> tuple[str, ...]:
    """The trigger that counts the rows of a table by their signals."""
    values = "{row}.tenant, {row}.created_at, {row}.workflow_id, " + agent + ", {row}.signals"
    return (
        f"""
        CREATE FUNCTION count_{table}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP <> 'INSERT' THEN
                PERFORM wopr.count_run({values.format(row="OLD")}, -1);
            END IF;
            IF TG_OP <> 'DELETE' THEN
                PERFORM wopr.count_run({values.format(row="NEW")}, 1);
            END IF;
            RETURN NULL;
        END
        $$
        """,
        f"""
        CREATE TRIGGER {table}_counted AFTER INSERT OR DELETE OR UPDATE OF signals ON {table}
        FOR EACH ROW EXECUTE FUNCTION count_{table}()
        """,
    )


_TENANT_TABLES = {
    "run_feedback": "SELECT, INSERT, UPDATE, DELETE",
    "run_labels": "SELECT, INSERT, DELETE",
    "run_agents": "SELECT, INSERT, UPDATE, DELETE",
    "run_hours": "SELECT, INSERT, UPDATE",
    "run_days": "SELECT, INSERT, UPDATE",
}

SIGNALS = (
    *_TABLES,
    *_FILL,
    _COUNT_RUN,
    *_counted("runs", "''"),
    *_counted("run_agents", "{row}.agent_id"),
    *(
        statement
        for name, rights in _TENANT_TABLES.items()
        for statement in tenant_table(name, rights)
    ),
)

SIGNALS_INDEX = (
    """
    CREATE INDEX CONCURRENTLY IF NOT EXISTS runs_by_signals
    ON runs (tenant, signals, created_at, run_id)
    """,
)
