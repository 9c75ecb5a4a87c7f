"""The fleet's totals, changed with the lines that change them, by several processes at once."""

from __future__ import annotations

from wopr.store.port.fleet import Since
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.many import columns, unnested
from wopr.store.sql.fleet_counting import TOTALS, Counting, TotalsTable, with_all

# Held with others who count, so that no span moves on until this is committed.
_MARKS = "SELECT span, since FROM fleet_spans WHERE tenant = %s FOR SHARE"
_NEW_MARKS = """
INSERT INTO fleet_spans (tenant, span, since)
SELECT %s, span, since FROM unnest(%s::text[], %s::bigint[]) AS new (span, since)
ON CONFLICT DO NOTHING
"""
_NUMBERS = {"stretch", "duration_bin"}


def _types(table: TotalsTable) -> list[str]:
    return ["bigint" if key in _NUMBERS else "text" for key in table.keys]


def _add(table: TotalsTable) -> str:
    types = [*_types(table), *("bigint" for _ in table.sums)]
    return (
        f"INSERT INTO {table.name} AS t (tenant, {', '.join(table.columns)}) "
        f"SELECT %s, u.* FROM {unnested(types)} AS u {table.adding}"
    )


def _drop(table: TotalsTable) -> str:
    same = "".join(f" AND t.{key} = u.{key}" for key in table.keys)
    return (
        f"DELETE FROM {table.name} t USING {unnested(_types(table))} "
        f"AS u ({', '.join(table.keys)}) WHERE t.tenant = %s{same} AND {table.is_empty}"
    )


_ADD = tuple(_add(table) for table in TOTALS)
_DROP = tuple(_drop(table) for table in TOTALS)


async def write_totals(transaction: Transaction, counting: Counting) -> None:
    """Change the totals of the tenant; what then counts nothing goes."""
    for changes, add, drop in zip(counting.changes(), _ADD, _DROP, strict=True):
        if changes.added:
            await transaction.queue(add, (transaction.tenant, *columns(changes.added)))
        if changes.fewer:
            await transaction.queue(drop, (*columns(changes.fewer), transaction.tenant))


async def hold_marks(transaction: Transaction) -> dict[str, int]:
    """Where each span of the tenant begins, until this transaction ends."""
    rows = await transaction.rows(_MARKS, (transaction.tenant,))
    return with_all((row[0], row[1]) for row in rows)


async def begin_spans(transaction: Transaction, since: Since) -> dict[str, int]:
    """Where each span begins; one that the tenant has not had begins now."""
    found = await hold_marks(transaction)
    missing = sorted(since.keys() - found.keys())
    if not missing:
        return found
    begins = [since[span] for span in missing]
    await transaction.queue(_NEW_MARKS, (transaction.tenant, missing, begins))
    # Another process may have begun them a moment earlier, and elsewhere.
    return await hold_marks(transaction)
