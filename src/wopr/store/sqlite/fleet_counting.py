"""The fleet's totals, changed with the lines that change them."""

from __future__ import annotations

import sqlite3

from wopr.store.port.fleet import Since
from wopr.store.sql.dialect import SQLITE
from wopr.store.sql.fleet_counting import TOTALS, Counting, TotalsTable, with_all
from wopr.store.sql.fleet_spans import MARKS

_NEW_MARK = "INSERT OR IGNORE INTO fleet_spans (tenant, span, since) VALUES (?, ?, ?)"


def _add(table: TotalsTable) -> str:
    columns = ("tenant", *table.columns)
    return (
        f"INSERT INTO {table.name} AS t ({', '.join(columns)}) "
        f"VALUES ({SQLITE.marks(len(columns))}) {table.adding}"
    )


def _drop(table: TotalsTable) -> str:
    keys = "".join(f" AND t.{key} = ?" for key in table.keys)
    return f"DELETE FROM {table.name} AS t WHERE t.tenant = ?{keys} AND {table.is_empty}"


_ADD = tuple(_add(table) for table in TOTALS)
_DROP = tuple(_drop(table) for table in TOTALS)


def write_totals(connection: sqlite3.Connection, tenant: str, counting: Counting) -> None:
    """Change the totals of a tenant; what then counts nothing goes."""
    for changes, add, drop in zip(counting.changes(), _ADD, _DROP, strict=True):
        connection.executemany(add, [(tenant, *row) for row in changes.added])
        connection.executemany(drop, [(tenant, *key) for key in changes.fewer])


def marks(connection: sqlite3.Connection, tenant: str) -> dict[str, int]:
    """Where each span of a tenant begins."""
    return with_all(connection.execute(MARKS, (tenant,)).fetchall())


def begin_spans(connection: sqlite3.Connection, tenant: str, since: Since) -> dict[str, int]:
    """Where each span begins; one that the tenant has not had begins now."""
    found = marks(connection, tenant)
    missing = since.keys() - found.keys()
    if missing:
        connection.executemany(_NEW_MARK, [(tenant, span, since[span]) for span in missing])
        found |= {span: since[span] for span in missing}
    return found
