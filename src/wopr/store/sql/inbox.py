"""List pending interrupts: one index per question, walked from its newest end."""

from __future__ import annotations

from wopr.store.port import SuspensionFilter, SuspensionPage
from wopr.store.port.suspensions import PENDING_BYTES
from wopr.store.sql.dialect import Dialect, Parameter, Row
from wopr.store.sql.rows import SUSPENSION_COLUMNS, suspension_row

# After every suspension, for a page without a bound of its own.
_END_OF_TIME = (2**63 - 1, "")
# The place of the body among `SUSPENSION_COLUMNS`.
BODY = 7


def pending_page(rows: list[Row], limit: int) -> SuspensionPage:
    """A page of the rows of `pending_listing`, which are one more where there is a next page.

    Where the rows end with the one that brings them to `PENDING_BYTES`, there may be a next page.
    """
    page = rows[:limit]
    is_cut = sum(len(row[BODY]) for row in page) >= PENDING_BYTES
    more = page and (len(rows) > limit or is_cut)
    return SuspensionPage(
        suspensions=tuple(suspension_row(row) for row in page),
        next_after=(page[-1][5], page[-1][8]) if more else None,
    )


def pending_listing(
    dialect: Dialect,
    tenant: str,
    where: SuspensionFilter,
    after: tuple[int, str] | None,
    limit: int,
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
        sql, values = _walk(dialect, index, tenant, where, where.kinds if kind is None else (kind,))
        parts.append(sql)
        parameters += [*values, *bounds, limit]
    if len(parts) == 1:
        return parts[0], parameters
    merged = " UNION ALL ".join(f"SELECT * FROM ({part}) part" for part in parts)
    sql = f"{merged} ORDER BY created_at DESC, place DESC LIMIT {dialect.mark}"
    return sql, [*parameters, limit]


def _index(where: SuspensionFilter) -> str:
    """The index to walk: that of the filter that leaves the fewest, as a rule."""
    if where.run_id is not None:
        return "suspensions_by_run"
    if where.workflow_id is not None:
        return "suspensions_by_workflow"
    return "suspensions_by_kind" if where.kinds else "suspensions_newest"


def _walk(
    dialect: Dialect, index: str, tenant: str, where: SuspensionFilter, kinds: tuple[str, ...]
) -> tuple[str, list[Parameter]]:
    mark = dialect.mark
    conditions = [f"tenant = {mark}"]
    values: list[Parameter] = [tenant]
    for column, value in (("run_id", where.run_id), ("workflow_id", where.workflow_id)):
        if value is not None:
            conditions.append(f"{column} = {mark}")
            values.append(value)
    if kinds:
        conditions.append(f"kind IN ({dialect.marks(len(kinds))})")
        values += kinds
    conditions.append(f"(created_at, place) < ({mark}, {mark})")
    sql = (
        f"SELECT {SUSPENSION_COLUMNS} FROM suspensions{dialect.by(index)} "
        f"WHERE {' AND '.join(conditions)} ORDER BY created_at DESC, place DESC LIMIT {mark}"
    )
    return sql, values
