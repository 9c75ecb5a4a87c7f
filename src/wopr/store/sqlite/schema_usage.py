"""The tables of what tenants use, and of quotas."""

from __future__ import annotations

from wopr.store.sql.usage import OTHER_COLUMNS, OTHER_CONTENT, other_amounts

_COUNT_RUNS = """
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes)
    SELECT r.tenant, 0,
        sum((SELECT coalesce(sum(length(e.body)), 0) FROM events e WHERE e.run_id = r.run_id)),
        sum((SELECT coalesce(sum(length(a.body)), 0) FROM artifacts a WHERE a.run_id = r.run_id))
    FROM runs r GROUP BY r.tenant
    """

# The column `shard` is always 0: on PostgreSQL a tenant has several rows.
USAGE_TABLES = (
    """
    CREATE TABLE stored_bytes (
        tenant         TEXT NOT NULL,
        shard          INTEGER NOT NULL,
        event_bytes    INTEGER NOT NULL,
        artifact_bytes INTEGER NOT NULL,
        PRIMARY KEY (tenant, shard)
    ) WITHOUT ROWID
    """,
    _COUNT_RUNS,
    """
    CREATE TABLE model_tokens (
        tenant TEXT NOT NULL,
        day    TEXT NOT NULL,
        tokens INTEGER NOT NULL,
        PRIMARY KEY (tenant, day)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE quotas (
        tenant TEXT NOT NULL,
        key_id TEXT NOT NULL,
        quota  TEXT NOT NULL,
        amount INTEGER NOT NULL,
        PRIMARY KEY (tenant, key_id, quota)
    ) WITHOUT ROWID
    """,
)

_ADD = ", ".join(f"{name} = {name} + excluded.{name}" for name in OTHER_COLUMNS)


def _size(table: str, row: str = "") -> str:
    """Return the bytes of a row that are counted."""
    columns = OTHER_CONTENT[table]
    return " + ".join(f"coalesce(length(CAST({row}{name} AS BLOB)), 0)" for name in columns)


def _add(table: str, row: str, sign: str) -> str:
    """Return the statement of a trigger that adds a row to the counters, or subtracts it."""
    return f"""
        INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, {", ".join(OTHER_COLUMNS)})
        VALUES ({row}.tenant, 0, 0, 0, {other_amounts(table, f"{sign}({_size(table, row + '.')})", f"{sign}1")})
        ON CONFLICT (tenant, shard) DO UPDATE SET {_ADD};
        """


def _triggers(table: str) -> tuple[str, ...]:
    """Return the statements that count a table's rows when they are written, changed and deleted."""
    more, less = _add(table, "NEW", ""), _add(table, "OLD", "-")
    columns = ", ".join(OTHER_CONTENT[table])
    return (
        f"CREATE TRIGGER count_{table}_insert AFTER INSERT ON {table} BEGIN {more} END",
        f"CREATE TRIGGER count_{table}_delete AFTER DELETE ON {table} BEGIN {less} END",
        f"CREATE TRIGGER count_{table}_update AFTER UPDATE OF {columns} ON {table} "
        f"BEGIN {less} {more} END",
    )


def _count_rows(table: str) -> str:
    amounts = other_amounts(table, f"sum({_size(table)})", "count(*)")
    return f"""
    INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes, {", ".join(OTHER_COLUMNS)})
    SELECT tenant, 0, 0, 0, {amounts} FROM {table} WHERE true GROUP BY tenant
    ON CONFLICT (tenant, shard) DO UPDATE SET {_ADD}
    """


_COUNT_OTHERS = tuple(map(_count_rows, OTHER_CONTENT))

OTHER_USAGE = (
    *(
        f"ALTER TABLE stored_bytes ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0"
        for name in OTHER_COLUMNS
    ),
    *_COUNT_OTHERS,
    *(trigger for table in OTHER_CONTENT for trigger in _triggers(table)),
)

# What counts everything again, from an empty `stored_bytes`.
COUNT_ALL = (_COUNT_RUNS, *_COUNT_OTHERS)
