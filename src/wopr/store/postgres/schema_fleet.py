"""The fleet: KAHN lines, the totals kept with them, and the runs it has not been told of."""

from __future__ import annotations

from wopr.store.postgres.schema_host import CLOCKWORK, HostFunction
from wopr.store.postgres.security import clockwork_table, host_functions, tenant_table

_RUNS = (
    """
    CREATE TABLE fleet_tenants (
        tenant word NOT NULL PRIMARY KEY,
        runs   bigint NOT NULL
    ) WITH (fillfactor = 50)
    """,
    """
    CREATE TABLE fleet_runs (
        tenant     word NOT NULL,
        run_id     word NOT NULL,
        kind       word NOT NULL,
        source     word NOT NULL,
        lines      bigint NOT NULL,
        started_at bigint NOT NULL,
        last_event bigint NOT NULL,
        ended_at   bigint,
        outcome    word,
        hidden_at  bigint,
        PRIMARY KEY (tenant, run_id)
    ) WITH (fillfactor = 80)
    """,
    """
    CREATE INDEX fleet_runs_newest ON fleet_runs (tenant, last_event, run_id)
    WHERE hidden_at IS NULL
    """,
    "CREATE INDEX fleet_runs_aging ON fleet_runs (started_at) WHERE hidden_at IS NULL",
    "CREATE INDEX fleet_runs_hidden ON fleet_runs (hidden_at) WHERE hidden_at IS NOT NULL",
    # Many lines in a row.
    """
    CREATE TABLE fleet_chunks (
        tenant word NOT NULL,
        run_id word NOT NULL,
        first  bigint NOT NULL,
        lines  bigint NOT NULL,
        hashes bytea NOT NULL,
        body   bytea NOT NULL,
        PRIMARY KEY (tenant, run_id, first)
    )
    """,
    """
    CREATE TABLE fleet_agent_runs (
        tenant        word NOT NULL,
        run_id        word NOT NULL,
        agent_id      word NOT NULL,
        started_at    bigint NOT NULL,
        last_event    bigint NOT NULL,
        status        word NOT NULL,
        task          text NOT NULL,
        model         text,
        step          bigint NOT NULL,
        tool_calls    bigint NOT NULL,
        audits_passed bigint NOT NULL,
        audits_failed bigint NOT NULL,
        audits_warned bigint NOT NULL,
        blocked_at    bigint,
        ended_at      bigint,
        outcome       word,
        duration_s    double precision,
        score         double precision,
        duration_bin  bigint,
        score_units   bigint,
        PRIMARY KEY (tenant, run_id, agent_id)
    ) WITH (fillfactor = 80)
    """,
    """
    CREATE INDEX fleet_agent_runs_newest
    ON fleet_agent_runs (tenant, agent_id, last_event, run_id)
    """,
    "CREATE INDEX fleet_agent_runs_by_time ON fleet_agent_runs (tenant, last_event)",
    """
    CREATE INDEX fleet_agent_runs_by_duration
    ON fleet_agent_runs (tenant, agent_id, duration_bin, last_event)
    WHERE duration_bin IS NOT NULL
    """,
    """
    CREATE INDEX fleet_agent_runs_ended
    ON fleet_agent_runs (tenant, agent_id, ended_at, run_id) WHERE ended_at IS NOT NULL
    """,
    """
    CREATE INDEX fleet_agent_runs_scored
    ON fleet_agent_runs (tenant, agent_id, ended_at, run_id) WHERE score IS NOT NULL
    """,
    """
    CREATE INDEX fleet_agent_runs_waiting
    ON fleet_agent_runs (tenant, blocked_at, run_id, agent_id) WHERE blocked_at IS NOT NULL
    """,
    # Audits that came after the end keep a run in a span that its end is too old for.
    """
    CREATE INDEX fleet_agent_runs_touched
    ON fleet_agent_runs (tenant, agent_id, last_event, ended_at)
    WHERE score IS NOT NULL AND last_event > ended_at
    """,
    """
    CREATE TABLE fleet_audits (
        tenant        word NOT NULL,
        run_id        word NOT NULL,
        line          bigint NOT NULL,
        at            bigint NOT NULL,
        checkpoint_id word NOT NULL,
        result        word NOT NULL,
        PRIMARY KEY (tenant, run_id, line)
    )
    """,
    "CREATE INDEX fleet_audits_by_time ON fleet_audits (tenant, at, checkpoint_id, result)",
    """
    CREATE INDEX fleet_audits_failed ON fleet_audits (tenant, checkpoint_id, at, run_id)
    WHERE result = 'fail'
    """,
)

_TOTALS = (
    # The totals of a rolling span are of what is not older than `since`. Who counts holds the row
    # with others who do, and who moves the span has it alone.
    """
    CREATE TABLE fleet_spans (
        tenant word NOT NULL,
        span   word NOT NULL,
        since  bigint NOT NULL,
        PRIMARY KEY (tenant, span)
    )
    """,
    "CREATE INDEX fleet_spans_behind ON fleet_spans (span, since)",
    """
    CREATE TABLE fleet_agents (
        tenant      word NOT NULL,
        span        word NOT NULL,
        agent_id    word NOT NULL,
        runs        bigint NOT NULL,
        converged   bigint NOT NULL,
        partial     bigint NOT NULL,
        escaped     bigint NOT NULL,
        aborted     bigint NOT NULL,
        scored      bigint NOT NULL,
        score_units bigint NOT NULL,
        PRIMARY KEY (tenant, span, agent_id)
    ) WITH (fillfactor = 50)
    """,
    # Bins of durations, and stretches of many bins: a rank is found in the one, then in the other.
    """
    CREATE TABLE fleet_stretches (
        tenant   word NOT NULL,
        span     word NOT NULL,
        agent_id word NOT NULL,
        stretch  bigint NOT NULL,
        runs     bigint NOT NULL,
        PRIMARY KEY (tenant, span, agent_id, stretch)
    ) WITH (fillfactor = 50)
    """,
    """
    CREATE TABLE fleet_bins (
        tenant       word NOT NULL,
        span         word NOT NULL,
        agent_id     word NOT NULL,
        duration_bin bigint NOT NULL,
        runs         bigint NOT NULL,
        PRIMARY KEY (tenant, span, agent_id, duration_bin)
    ) WITH (fillfactor = 70)
    """,
    """
    CREATE TABLE fleet_checkpoints (
        tenant        word NOT NULL,
        span          word NOT NULL,
        checkpoint_id word NOT NULL,
        passed        bigint NOT NULL,
        failed        bigint NOT NULL,
        warned        bigint NOT NULL,
        PRIMARY KEY (tenant, span, checkpoint_id)
    ) WITH (fillfactor = 50)
    """,
)

# A place is never given twice: it tells what was projected from what came since. What is owed to
# observed runs and what is owed of the host's own are two queues in one table.
_PROJECTIONS = (
    """
    CREATE TABLE projections (
        place  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant word NOT NULL,
        run_id word NOT NULL,
        UNIQUE (tenant, run_id)
    ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)
    """,
    """
    CREATE INDEX projections_observed
    ON projections (starts_with(run_id, 'kahn-'), place)
    """,
    """
    CREATE INDEX projections_by_tenant ON projections (tenant, place)
    WHERE starts_with(run_id, 'kahn-')
    """,
    """
    CREATE FUNCTION put_projections(owner text, run_ids text[]) RETURNS void
    LANGUAGE sql AS $$
        INSERT INTO projections (tenant, run_id)
        SELECT DISTINCT owner, run FROM unnest(run_ids) AS run ORDER BY run
        ON CONFLICT (tenant, run_id) DO UPDATE SET place = DEFAULT
    $$
    """,
)

_TENANT_TABLES = {
    "fleet_tenants": "SELECT, INSERT, UPDATE",
    "fleet_runs": "SELECT, INSERT, UPDATE, DELETE",
    "fleet_chunks": "SELECT, INSERT, DELETE",
    "fleet_agent_runs": "SELECT, INSERT, UPDATE, DELETE",
    "fleet_audits": "SELECT, INSERT, DELETE",
    "fleet_spans": "SELECT, INSERT, UPDATE",
    "fleet_agents": "SELECT, INSERT, UPDATE, DELETE",
    "fleet_stretches": "SELECT, INSERT, UPDATE, DELETE",
    "fleet_bins": "SELECT, INSERT, UPDATE, DELETE",
    "fleet_checkpoints": "SELECT, INSERT, UPDATE, DELETE",
    "projections": "SELECT, INSERT, UPDATE",
}

_CLOCKWORK_GRANTS = {
    "fleet_runs": "SELECT (tenant, run_id, started_at, hidden_at)",
    "fleet_spans": "SELECT (tenant, span, since)",
    "projections": "SELECT, UPDATE (place), DELETE",
}

_AGED = "TABLE (tenant text, id text, started_at bigint, hidden_at bigint)"

FLEET_FUNCTIONS = (
    HostFunction(
        name="host_unprojected",
        takes=("boolean", "bigint", "bigint"),
        gives="TABLE (place bigint, tenant text, id text)",
        body="""
            SELECT place, tenant, run_id FROM projections
            WHERE starts_with(run_id, 'kahn-') = $1 AND place > $2 ORDER BY place LIMIT $3
        """,
    ),
    # One that somebody is just writing has news again, and is not waited for.
    HostFunction(
        name="host_projected",
        takes=("bigint[]", "text[]"),
        gives="void",
        changes=True,
        body="""
            WITH done AS (
                SELECT p.place FROM unnest($1::bigint[], $2::text[]) AS given (place, tenant)
                JOIN projections p ON p.place = given.place AND p.tenant = given.tenant
                FOR UPDATE OF p SKIP LOCKED
            ) DELETE FROM projections p USING done WHERE p.place = done.place
        """,
    ),
    HostFunction(
        name="host_fleet_behind",
        takes=("text", "bigint"),
        gives="text",
        body="SELECT tenant FROM fleet_spans WHERE span = $1 AND since < $2 ORDER BY since LIMIT 1",
    ),
    HostFunction(
        name="host_fleet_begun",
        takes=("bigint", "bigint"),
        gives=_AGED,
        body="""
            SELECT tenant, run_id, started_at, hidden_at FROM fleet_runs
            WHERE hidden_at IS NULL AND started_at <= $1 ORDER BY started_at LIMIT $2
        """,
    ),
    HostFunction(
        name="host_fleet_hidden",
        takes=("bigint", "bigint"),
        gives=_AGED,
        body="""
            SELECT tenant, run_id, started_at, hidden_at FROM fleet_runs
            WHERE hidden_at <= $1 ORDER BY hidden_at LIMIT $2
        """,
    ),
)


def _security() -> tuple[str, ...]:
    statements: list[str] = []
    for name, rights in _TENANT_TABLES.items():
        statements += tenant_table(name, rights)
    for name, rights in _CLOCKWORK_GRANTS.items():
        statements += clockwork_table(name, rights)
    return (*statements, *host_functions(FLEET_FUNCTIONS))


FLEET = (*_RUNS, *_TOTALS, *_PROJECTIONS, *_security())


# Retention counts from the last push. A run that was pushed before this column existed counts from
# the migration on: the default is evaluated once.
FLEET_PUSHES_FUNCTIONS = (
    HostFunction(
        name="host_fleet_aged",
        takes=("text", "bigint", "bigint"),
        gives="TABLE (tenant text, id text, pushed_at bigint, hidden_at bigint)",
        body="""
            SELECT tenant, run_id, pushed_at, hidden_at FROM fleet_runs
            WHERE hidden_at IS NULL AND source = $1 AND pushed_at <= $2
            ORDER BY pushed_at LIMIT $3
        """,
    ),
)

FLEET_PUSHES = (
    """
    ALTER TABLE fleet_runs ADD COLUMN pushed_at bigint NOT NULL
    DEFAULT (extract(epoch FROM now()) * 1000)::bigint
    """,
    "ALTER TABLE fleet_runs ALTER COLUMN pushed_at DROP DEFAULT",
    "ALTER TABLE fleet_agent_runs ADD COLUMN totals text",
    f"GRANT SELECT (source, pushed_at) ON fleet_runs TO {CLOCKWORK}",
    *host_functions(FLEET_PUSHES_FUNCTIONS),
)

FLEET_PUSHES_INDEXES = (
    """
    CREATE INDEX CONCURRENTLY IF NOT EXISTS fleet_runs_aged ON fleet_runs (source, pushed_at)
    WHERE hidden_at IS NULL
    """,
    """
    CREATE INDEX CONCURRENTLY IF NOT EXISTS fleet_runs_pushed
    ON fleet_runs (tenant, source, pushed_at) WHERE hidden_at IS NULL
    """,
    "DROP INDEX CONCURRENTLY IF EXISTS fleet_runs_aging",
    "DROP FUNCTION IF EXISTS host_fleet_begun (bigint, bigint)",
)
