"""Listings of runs.

Each filter has one index, which is read from its newest end, so all pages cost the same.

On SQLite the statement names the index, so that neither statistics nor a new release can make it
sort all runs.
"""

from __future__ import annotations

from wopr.store.port import RunFilter, RunPage
from wopr.store.port.feedback import ALL_SIGNALS, CORRECTED, FLAGGED, RATED
from wopr.store.tables.dialect import AFTER_ALL_ROWS, SMALLEST_INTEGER, Dialect, Parameter, Row
from wopr.store.tables.feedback.annotations import label_key
from wopr.store.tables.runs.rows import LISTED_COLUMNS, run_row


def run_page(rows: list[Row], limit: int) -> RunPage:
    """Return the page from the rows of `listing`.

    A row more than `limit` means that more pages follow.
    """
    page = tuple(run_row(row) for row in rows[:limit])
    more = len(rows) > limit and page
    return RunPage(runs=page, next_after=(page[-1].created_at, page[-1].run_id) if more else None)


def listing(
    dialect: Dialect, tenant: str, where: RunFilter, after: tuple[int, str] | None, limit: int
) -> tuple[str, list[Parameter]]:
    """Return the statement and its parameters for one page of runs, newest first."""
    bounds = _bounds(where, after)
    index = _index(where)
    parts: list[str] = []
    parameters: list[Parameter] = []
    for statuses, signals in _scans(index, where):
        sql, values = _scan(dialect, index, tenant, where, statuses, signals)
        parts.append(sql)
        parameters += [*values, *bounds, limit]
    if len(parts) == 1:
        return parts[0], parameters
    merged = " UNION ALL ".join(f"SELECT * FROM ({part}) part" for part in parts)
    sql = f"{merged} ORDER BY created_at DESC, run_id DESC LIMIT {dialect.placeholder}"
    return sql, [*parameters, limit]


def _scans(index: str, where: RunFilter) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Return the statuses and signals of each index scan.

    One scan of the status index with several statuses would return rows sorted by status first. So
    each status has its own scan, limited to the page, and the scans are merged. The same holds for
    signals.
    """
    signals = _signals(where)
    if index == "runs_by_status":
        return [((status,), signals) for status in dict.fromkeys(where.statuses)]
    if index == "runs_by_signals":
        return [(where.statuses, (each,)) for each in signals]
    return [(where.statuses, signals)]


def _signals(where: RunFilter) -> tuple[int, ...]:
    """Return the values of `signals` that pass the filter; empty without such a filter."""
    wanted = [
        (bit, is_set)
        for bit, is_set in (
            (FLAGGED, where.flagged),
            (RATED, where.rated),
            (CORRECTED, where.corrected),
        )
        if is_set is not None
    ]
    if not wanted:
        return ()
    return tuple(
        value
        for value in range(ALL_SIGNALS + 1)
        if all(bool(value & bit) == is_set for bit, is_set in wanted)
    )


def _bounds(where: RunFilter, after: tuple[int, str] | None) -> tuple[int, str, int]:
    """Return the exclusive upper bound of the keys, as time and id, and the earliest time."""
    time, run_id = after or AFTER_ALL_ROWS
    if where.created_before is not None:
        # No run id sorts below "", so the bound excludes all runs of that millisecond.
        time, run_id = min((time, run_id), (where.created_before, ""))
    earliest = SMALLEST_INTEGER if where.created_from is None else where.created_from
    return time, run_id, earliest


def _index(where: RunFilter) -> str:
    """Return the index of the filter that usually leaves the fewest runs."""
    if where.waits_for_code:
        return "runs_waiting_for_code"
    if where.quarantined:
        return "runs_in_quarantine"
    if where.parent_run_id is not None:
        return "runs_by_parent"
    if where.source_run_id is not None:
        return "runs_by_source"
    if where.tag is not None:
        return "run_tags"
    if where.label is not None:
        return "run_labels"
    signals = _signals(where)
    # Most runs have no signal. For them the index of workflows is more selective.
    if signals and (0 not in signals or where.workflow_id is None):
        return "runs_by_signals"
    if where.workflow_id is not None:
        return "runs_by_workflow"
    return "runs_by_status" if where.statuses else "runs_newest"


def _scan(
    dialect: Dialect,
    index: str,
    tenant: str,
    where: RunFilter,
    statuses: tuple[str, ...],
    signals: tuple[int, ...],
) -> tuple[str, list[Parameter]]:
    mark = dialect.placeholder
    key, source = "r", f"runs r{dialect.indexed_by(index)}"
    conditions = [f"r.tenant = {mark}"]
    values: list[Parameter] = [tenant]
    for table, column, value in (
        ("run_tags", "tag", where.tag),
        ("run_labels", "label", None if where.label is None else label_key(where.label)),
    ):
        if value is None:
            continue
        if index == table:
            key, source = "t", f"{table} t {dialect.ordered_join} runs r ON r.run_id = t.run_id"
            conditions += [f"t.tenant = {mark}", f"t.{column} = {mark}"]
            values += [tenant, value]
        else:
            conditions.append(
                f"EXISTS (SELECT 1 FROM {table} e WHERE e.tenant = r.tenant AND e.{column} = {mark}"
                " AND e.created_at = r.created_at AND e.run_id = r.run_id)"
            )
            values.append(value)
    for column, value in (
        ("parent_run_id", where.parent_run_id),
        ("source_run_id", where.source_run_id),
        ("workflow_id", where.workflow_id),
    ):
        if value is not None:
            conditions.append(f"r.{column} = {mark}")
            values.append(value)
    if where.waits_for_code:
        conditions.append("r.missing_types IS NOT NULL")
    if where.quarantined is not None:
        # A run that has ended is not in quarantine.
        conditions.append(
            "r.quarantined_at IS NOT NULL AND r.ended_at IS NULL"
            if where.quarantined
            else "(r.quarantined_at IS NULL OR r.ended_at IS NOT NULL)"
        )
    if statuses:
        conditions.append(f"r.status IN ({dialect.placeholders(len(statuses))})")
        values += statuses
    if signals:
        conditions.append(f"r.signals IN ({dialect.placeholders(len(signals))})")
        values += signals
    conditions.append(f"({key}.created_at, {key}.run_id) < ({mark}, {mark})")
    conditions.append(f"{key}.created_at >= {mark}")
    sql = (
        f"SELECT {LISTED_COLUMNS} FROM {source} WHERE {' AND '.join(conditions)} "
        f"ORDER BY {key}.created_at DESC, {key}.run_id DESC LIMIT {mark}"
    )
    return sql, values
