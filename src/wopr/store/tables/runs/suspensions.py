"""Pending interrupts, as an inbox lists them. `append` opens and ends them.

Each filter has one index, which is read from its newest end.
"""

from __future__ import annotations

from wopr.store.port import Suspension, SuspensionFilter, SuspensionPage
from wopr.store.port.suspensions import PENDING_BYTES
from wopr.store.tables.database import ByteLimit, Table
from wopr.store.tables.dialect import AFTER_ALL_ROWS, Dialect, Parameter, Row, variants

_COLUMNS = "interrupt_id, run_id, node_id, workflow_id, kind, created_at, expires_at, body, place"
_PAGE = ByteLimit(
    most_bytes=PENDING_BYTES,
    column="body",
    columns=_COLUMNS,
    order="created_at DESC, place DESC",
)
_COUNT = variants(
    lambda dialect: (
        f"SELECT count(*) FROM suspensions{dialect.indexed_by('suspensions_newest')} "
        "WHERE tenant = ?"
    )
)


class SuspensionTable(Table):
    """`Suspensions` in SQL."""

    async def pending_interrupts(
        self, tenant: str, where: SuspensionFilter, after: tuple[int, str] | None, limit: int
    ) -> SuspensionPage:
        """List a page of pending interrupts, newest first, by keyset."""
        # One more than the limit shows whether there is a next page.
        listing = pending_listing(self._sql.dialect, tenant, where, after, limit + 1)
        return _page(await self._sql.read_within(tenant, *listing, _PAGE), limit)

    async def count_pending_interrupts(self, tenant: str) -> int:
        """Count the pending interrupts."""
        [(count,)] = await self._sql.read_many(tenant, _COUNT, (tenant,))
        return int(count)


def _page(rows: list[Row], limit: int) -> SuspensionPage:
    page = rows[:limit]
    # The database stops at the row at which the bodies reach the byte limit.
    is_cut = sum(len(row[7]) for row in page) >= PENDING_BYTES
    has_more = page and (len(rows) > limit or is_cut)
    return SuspensionPage(
        suspensions=tuple(_row(row) for row in page),
        next_after=(page[-1][5], page[-1][8]) if has_more else None,
    )


def _row(row: Row) -> Suspension:
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


def suspension_place(suspension: Suspension) -> str:
    """Return the column `place`, the second part of a page's key: the run and the interrupt."""
    return f"{suspension.run_id}/{suspension.interrupt_id}"


def pending_listing(
    dialect: Dialect,
    tenant: str,
    where: SuspensionFilter,
    after: tuple[int, str] | None,
    limit: int,
) -> tuple[str, list[Parameter]]:
    """Return the statement and its parameters for one page of pending interrupts."""
    bounds = after or AFTER_ALL_ROWS
    index = _index(where)
    # The index of kinds is sorted by kind first. So each kind has its own scan, limited to the
    # page, and the scans are merged.
    kinds = where.kinds if index == "suspensions_by_kind" else (None,)
    parts: list[str] = []
    parameters: list[Parameter] = []
    for kind in dict.fromkeys(kinds):
        sql, values = _scan(dialect, index, tenant, where, where.kinds if kind is None else (kind,))
        parts.append(sql)
        parameters += [*values, *bounds, limit]
    if len(parts) == 1:
        return parts[0], parameters
    merged = " UNION ALL ".join(f"SELECT * FROM ({part}) part" for part in parts)
    sql = f"{merged} ORDER BY created_at DESC, place DESC LIMIT {dialect.placeholder}"
    return sql, [*parameters, limit]


def _index(where: SuspensionFilter) -> str:
    """Return the index of the filter that usually leaves the fewest rows."""
    if where.run_id is not None:
        return "suspensions_by_run"
    if where.workflow_id is not None:
        return "suspensions_by_workflow"
    return "suspensions_by_kind" if where.kinds else "suspensions_newest"


def _scan(
    dialect: Dialect, index: str, tenant: str, where: SuspensionFilter, kinds: tuple[str, ...]
) -> tuple[str, list[Parameter]]:
    mark = dialect.placeholder
    conditions = [f"tenant = {mark}"]
    values: list[Parameter] = [tenant]
    for column, value in (("run_id", where.run_id), ("workflow_id", where.workflow_id)):
        if value is not None:
            conditions.append(f"{column} = {mark}")
            values.append(value)
    if kinds:
        conditions.append(f"kind IN ({dialect.placeholders(len(kinds))})")
        values += kinds
    conditions.append(f"(created_at, place) < ({mark}, {mark})")
    sql = (
        f"SELECT {_COLUMNS} FROM suspensions{dialect.indexed_by(index)} "
        f"WHERE {' AND '.join(conditions)} ORDER BY created_at DESC, place DESC LIMIT {mark}"
    )
    return sql, values
