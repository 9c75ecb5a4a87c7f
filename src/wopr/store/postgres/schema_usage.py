"""Counters of what tenants use, and quotas.

The bytes of a tenant are counted in several rows, one for each connection that writes: two
transactions never wait for the same row. The number of bytes is their sum. Now and then the rows
are added up into the row of shard 0.
"""

from __future__ import annotations

from wopr.store.postgres.schema_host import CLOCKWORK, HostFunction
from wopr.store.postgres.security import clockwork_table, host_functions, tenant_table
from wopr.store.sql.usage import OTHER_COLUMNS, OTHER_CONTENT, USAGE_COLUMNS, other_amounts

_TABLES = (
    """
    CREATE TABLE stored_bytes (
        tenant         word NOT NULL,
        shard          bigint NOT NULL,
        event_bytes    bigint NOT NULL,
        artifact_bytes bigint NOT NULL,
        PRIMARY KEY (tenant, shard)
    ) WITH (fillfactor = 50)
    """,
    """
    CREATE TABLE model_tokens (
        tenant word NOT NULL,
        day    word NOT NULL,
        tokens bigint NOT NULL,
        PRIMARY KEY (tenant, day)
    )
    """,
    """
    CREATE TABLE quotas (
        tenant word NOT NULL,
        key_id word NOT NULL,
        quota  word NOT NULL,
        amount bigint NOT NULL,
        PRIMARY KEY (tenant, key_id, quota)
    )
    """,
)


def _counting(table: str, column: str, verb: str, rows: str) -> tuple[str, ...]:
    """Statements that count the bytes of a table's rows when they are written or deleted."""
    name = f"count_{table}_{verb.lower()}"
    sign = "-" if verb == "DELETE" else ""
    amounts = f"SELECT tenant, {sign}length(body) AS bytes FROM {rows}"
    tables = f"{'OLD' if verb == 'DELETE' else 'NEW'} TABLE AS {rows}"
    if verb == "UPDATE":
        amounts = (
            "SELECT tenant, length(body) AS bytes FROM changed "
            "UNION ALL SELECT tenant, -length(body) FROM former"
        )
        tables = "OLD TABLE AS former NEW TABLE AS changed"
    return (
        f"""
        CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO stored_bytes AS s (tenant, shard, event_bytes, artifact_bytes)
            SELECT c.tenant, pg_backend_pid(),
                {"sum(c.bytes)" if column == "event_bytes" else "0"},
                {"sum(c.bytes)" if column == "artifact_bytes" else "0"}
            FROM ({amounts}) c GROUP BY c.tenant
            ON CONFLICT (tenant, shard) DO UPDATE SET {column} = s.{column} + excluded.{column};
            RETURN NULL;
        END
        $$
        """,
        f"""
        CREATE TRIGGER {name} AFTER {verb} ON {table} REFERENCING {tables}
        FOR EACH STATEMENT EXECUTE FUNCTION {name}()
        """,
    )


_FUNCTIONS = (
    HostFunction(
        name="host_add_up_stored_bytes",
        gives="void",
        changes=True,
        body="""
            WITH added AS (
                DELETE FROM stored_bytes WHERE (tenant, shard) IN (
                    SELECT tenant, shard FROM stored_bytes
                    WHERE shard <> 0 FOR UPDATE SKIP LOCKED
                ) RETURNING tenant, event_bytes, artifact_bytes
            )
            INSERT INTO stored_bytes AS s (tenant, shard, event_bytes, artifact_bytes)
            SELECT tenant, 0, sum(event_bytes)::bigint, sum(artifact_bytes)::bigint
            FROM added GROUP BY tenant
            ON CONFLICT (tenant, shard) DO UPDATE SET
                event_bytes = s.event_bytes + excluded.event_bytes,
                artifact_bytes = s.artifact_bytes + excluded.artifact_bytes
        """,
    ),
    # One statement sees the rows and the counters as of one instant, so the difference is right
    # whatever other transactions do.
    HostFunction(
        name="host_recount_stored_bytes",
        gives="void",
        changes=True,
        body="""
            INSERT INTO stored_bytes AS s (tenant, shard, event_bytes, artifact_bytes)
            SELECT tenant, 0, sum(events)::bigint, sum(artifacts)::bigint FROM (
                SELECT tenant, length(body) AS events, 0 AS artifacts FROM events
                UNION ALL SELECT tenant, 0, length(body) FROM artifacts
                UNION ALL SELECT tenant, -event_bytes, -artifact_bytes FROM stored_bytes
            ) counted GROUP BY tenant HAVING sum(events) <> 0 OR sum(artifacts) <> 0
            ON CONFLICT (tenant, shard) DO UPDATE SET
                event_bytes = s.event_bytes + excluded.event_bytes,
                artifact_bytes = s.artifact_bytes + excluded.artifact_bytes
        """,
    ),
    HostFunction(
        name="host_quotas",
        gives="TABLE (tenant text, key_id text, quota text, amount bigint)",
        body="SELECT tenant, key_id, quota, amount FROM quotas ORDER BY tenant, key_id, quota",
    ),
)

USAGE = (
    *_TABLES,
    *tenant_table("stored_bytes", "SELECT, INSERT, UPDATE"),
    *clockwork_table("stored_bytes", "SELECT, INSERT, UPDATE, DELETE"),
    *tenant_table("model_tokens", "SELECT, INSERT, UPDATE"),
    *tenant_table("quotas", "SELECT, INSERT, UPDATE, DELETE"),
    *clockwork_table("quotas", "SELECT"),
    *clockwork_table("events", "SELECT (tenant, body)"),
    *clockwork_table("artifacts", "SELECT (tenant, body)"),
    *_counting("events", "event_bytes", "INSERT", "added"),
    *_counting("events", "event_bytes", "DELETE", "gone"),
    *_counting("artifacts", "artifact_bytes", "INSERT", "added"),
    *_counting("artifacts", "artifact_bytes", "UPDATE", "changed"),
    *_counting("artifacts", "artifact_bytes", "DELETE", "gone"),
    *host_functions(_FUNCTIONS),
    "SELECT host_recount_stored_bytes()",
)

_ADD = ", ".join(f"{name} = s.{name} + excluded.{name}" for name in OTHER_COLUMNS)
_ADD_ALL = ", ".join(f"{name} = s.{name} + excluded.{name}" for name in USAGE_COLUMNS)
_ALL = ", ".join(USAGE_COLUMNS)
_SUMS = ", ".join(f"sum({name})::bigint" for name in USAGE_COLUMNS)


def _size(table: str) -> str:
    """Return the bytes of a row that are counted."""
    return " + ".join(f"coalesce(octet_length({name}), 0)" for name in OTHER_CONTENT[table])


def _counting_others(table: str, verb: str) -> tuple[str, ...]:
    """Statements that count what the rows of a table add to `OTHER_COLUMNS`, and take off."""
    name = f"count_{table}_{verb.lower()}"
    more = f"SELECT tenant, {_size(table)} AS bytes, 1 AS rows FROM changed"
    less = f"SELECT tenant, -({_size(table)}) AS bytes, -1 AS rows FROM former"
    amounts, tables = {
        "INSERT": (more, "NEW TABLE AS changed"),
        "DELETE": (less, "OLD TABLE AS former"),
        "UPDATE": (f"{more} UNION ALL {less}", "OLD TABLE AS former NEW TABLE AS changed"),
    }[verb]
    return (
        f"""
        CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO stored_bytes AS s
                (tenant, shard, event_bytes, artifact_bytes, {", ".join(OTHER_COLUMNS)})
            SELECT c.tenant, pg_backend_pid(), 0, 0,
                {other_amounts(table, "sum(c.bytes)", "sum(c.rows)")}
            FROM ({amounts}) c GROUP BY c.tenant
            ON CONFLICT (tenant, shard) DO UPDATE SET {_ADD};
            RETURN NULL;
        END
        $$
        """,
        f"""
        CREATE TRIGGER {name} AFTER {verb} ON {table} REFERENCING {tables}
        FOR EACH STATEMENT EXECUTE FUNCTION {name}()
        """,
    )


def _amounts_of(table: str) -> str:
    return f"SELECT tenant, 0, 0, {other_amounts(table, _size(table), '1')} FROM {table}"


_ADD_UP = HostFunction(
    name="host_add_up_stored_bytes",
    gives="void",
    changes=True,
    body=f"""
        WITH added AS (
            DELETE FROM stored_bytes WHERE (tenant, shard) IN (
                SELECT tenant, shard FROM stored_bytes
                WHERE shard <> 0 FOR UPDATE SKIP LOCKED
            ) RETURNING tenant, {_ALL}
        )
        INSERT INTO stored_bytes AS s (tenant, shard, {_ALL})
        SELECT tenant, 0, {_SUMS} FROM added GROUP BY tenant
        ON CONFLICT (tenant, shard) DO UPDATE SET {_ADD_ALL}
    """,
)

# One statement, as before: the difference is right whatever other transactions do.
RECOUNT = HostFunction(
    name="host_recount_stored_bytes",
    gives="void",
    changes=True,
    body=f"""
        INSERT INTO stored_bytes AS s (tenant, shard, {_ALL})
        SELECT tenant, 0, {_SUMS} FROM (
            SELECT tenant, length(body) AS event_bytes, 0 AS artifact_bytes,
                {", ".join(f"0 AS {name}" for name in OTHER_COLUMNS)} FROM events
            UNION ALL SELECT tenant, 0, length(body), 0, 0, 0 FROM artifacts
            UNION ALL {" UNION ALL ".join(map(_amounts_of, OTHER_CONTENT))}
            UNION ALL SELECT tenant, {", ".join(f"-{name}" for name in USAGE_COLUMNS)}
            FROM stored_bytes
        ) counted GROUP BY tenant
        HAVING {" OR ".join(f"sum({name}) <> 0" for name in USAGE_COLUMNS)}
        ON CONFLICT (tenant, shard) DO UPDATE SET {_ADD_ALL}
    """,
)

_ALL_USAGE = HostFunction(
    name="host_all_usage",
    gives="TABLE (tenant text, active_runs bigint, queued_runs bigint, "
    + ", ".join(f"{name} bigint" for name in USAGE_COLUMNS)
    + ")",
    body=f"""
        SELECT s.tenant,
            (SELECT coalesce(sum(a.runs), 0) FROM active_runs a WHERE a.tenant = s.tenant)::bigint,
            0::bigint, {", ".join(f"sum(s.{name})::bigint" for name in USAGE_COLUMNS)}
        FROM stored_bytes s GROUP BY s.tenant
    """,
)

# Tables of which the host's own functions see columns already.
_SEEN = ("answers", "memories", "judges")


def _shown(table: str) -> tuple[str, ...]:
    """Statements that let the recount read the columns of a table that are counted."""
    rights = f"SELECT (tenant, {', '.join(OTHER_CONTENT[table])})"
    if table in _SEEN:
        return (f"GRANT {rights} ON {table} TO {CLOCKWORK}",)
    return clockwork_table(table, rights)


OTHER_USAGE = (
    *(
        f"ALTER TABLE stored_bytes ADD COLUMN {name} bigint NOT NULL DEFAULT 0"
        for name in OTHER_COLUMNS
    ),
    *(statement for table in OTHER_CONTENT for statement in _shown(table)),
    *(
        statement
        for table in OTHER_CONTENT
        for verb in ("INSERT", "UPDATE", "DELETE")
        for statement in _counting_others(table, verb)
    ),
    _ADD_UP.replacement,
    RECOUNT.replacement,
    *host_functions((_ALL_USAGE,)),
)

# Counts the rows that were there before. By itself, so that no table is locked meanwhile.
COUNT_OTHER_USAGE = ("SELECT host_recount_stored_bytes()",)
