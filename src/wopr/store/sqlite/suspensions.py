"""The part that keeps pending interrupts: written with their run's events, listed for an inbox.

A listing walks one index from its newest end, so no page costs more than another.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from wopr.store.port import Suspension, SuspensionFilter, SuspensionPage
from wopr.store.sqlite.part import Part
from wopr.store.sqlite.reader import Parameter, Row

_INSERT = """
INSERT OR REPLACE INTO suspensions (
    run_id, interrupt_id, tenant, place, node_id, workflow_id, kind, created_at, expires_at, body
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

_MARK_RUN = "UPDATE runs SET has_suspended = 1 WHERE run_id = ? AND tenant = ?"

_DELETE = "DELETE FROM suspensions WHERE run_id = ? AND interrupt_id = ?"

_DELETE_ALL_OF_RUN = "DELETE FROM suspensions WHERE run_id = ?"

_COUNT = "SELECT count(*) FROM suspensions INDEXED BY suspensions_newest WHERE tenant = ?"

_COLUMNS = "interrupt_id, run_id, node_id, workflow_id, kind, created_at, expires_at, body, place"

# After every suspension, for a page without a bound of its own.
_END_OF_TIME = (2**63 - 1, "")


def suspend(connection: sqlite3.Connection, tenant: str, suspensions: Sequence[Suspension]) -> None:
    """Write the interrupts that a batch opens, all of one run that the caller has fenced."""
    connection.execute(_MARK_RUN, (suspensions[0].run_id, tenant))
    connection.executemany(
        _INSERT,
        [
            (
                s.run_id,
                s.interrupt_id,
                tenant,
                f"{s.run_id}/{s.interrupt_id}",
                s.node_id,
                s.workflow_id,
                s.kind,
                s.created_at,
                s.expires_at,
                s.body,
            )
            for s in suspensions
        ],
    )


def resume(
    connection: sqlite3.Connection, run_id: str, interrupt_ids: Sequence[str] | None
) -> None:
    """Drop interrupts of a run that the caller has fenced: those named, or all with None."""
    if interrupt_ids is None:
        connection.execute(_DELETE_ALL_OF_RUN, (run_id,))
    elif interrupt_ids:
        connection.executemany(_DELETE, [(run_id, each) for each in interrupt_ids])


class SqliteSuspensions(Part):
    """`Suspensions` on SQLite."""

    async def pending(
        self, tenant: str, where: SuspensionFilter, after: tuple[int, str] | None, limit: int
    ) -> SuspensionPage:
        """A page of pending interrupts, newest first, by keyset."""
        # One more than asked for tells whether there is a next page.
        rows = await self._reader.far(*pending_listing(tenant, where, after, limit + 1))
        page = rows[:limit]
        more = len(rows) > limit and page
        return SuspensionPage(
            suspensions=tuple(_suspension(row) for row in page),
            next_after=(page[-1][5], page[-1][8]) if more else None,
        )

    async def pending_count(self, tenant: str) -> int:
        """How many interrupts are pending, counted in one narrow index."""
        [(count,)] = await self._reader.far(_COUNT, (tenant,))
        return int(count)


def pending_listing(
    tenant: str, where: SuspensionFilter, after: tuple[int, str] | None, limit: int
) -> tuple[str, list[Parameter]]:
    """The statement and its parameters for one page of pending interrupts."""
    bounds = after or _END_OF_TIME
    index = _index(where)
    # Several kinds in one walk of their index would come out sorted by kind first: walk once for
    # each, no farther than the page is long, and merge.
    walks = where.kinds if index == "suspensions_by_kind" else (None,)
    parts: list[str] = []
    parameters: list[Parameter] = []
    for kind in dict.fromkeys(walks):
        sql, values = _walk(index, tenant, where, where.kinds if kind is None else (kind,))
        parts.append(sql)
        parameters += [*values, *bounds, limit]
    if len(parts) == 1:
        return parts[0], parameters
    merged = " UNION ALL ".join(f"SELECT * FROM ({part})" for part in parts)
    return f"{merged} ORDER BY created_at DESC, place DESC LIMIT ?", [*parameters, limit]


def _index(where: SuspensionFilter) -> str:
    """The index to walk: that of the filter that leaves the fewest, as a rule."""
    if where.run_id is not None:
        return "suspensions_by_run"
    if where.workflow_id is not None:
        return "suspensions_by_workflow"
    return "suspensions_by_kind" if where.kinds else "suspensions_newest"


def _walk(
    index: str, tenant: str, where: SuspensionFilter, kinds: tuple[str, ...]
) -> tuple[str, list[Parameter]]:
    conditions = ["tenant = ?"]
    values: list[Parameter] = [tenant]
    for column, value in (("run_id", where.run_id), ("workflow_id", where.workflow_id)):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    if kinds:
        conditions.append(f"kind IN ({', '.join('?' * len(kinds))})")
        values += kinds
    conditions.append("(created_at, place) < (?, ?)")
    sql = (
        f"SELECT {_COLUMNS} FROM suspensions INDEXED BY {index} "
        f"WHERE {' AND '.join(conditions)} ORDER BY created_at DESC, place DESC LIMIT ?"
    )
    return sql, values


def _suspension(row: Row) -> Suspension:
    return Suspension(
        interrupt_id=row[0],
        run_id=row[1],
        node_id=row[2],
        workflow_id=row[3],
        kind=row[4],
        created_at=row[5],
        expires_at=row[6],
        body=row[7],
    )
