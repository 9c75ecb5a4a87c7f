"""List runs: one index per question, walked from its newest end, so no page costs more than another.

Where an adapter can name the index it does, so that neither statistics nor a new release of the
database can turn a short walk into a sort of all runs.
"""

from __future__ import annotations

from wopr.store.port import RunFilter, RunPage
from wopr.store.port.feedback import ALL_SIGNALS, CORRECTED, FLAGGED, RATED
from wopr.store.sql.dialect import Dialect, Parameter, Row
from wopr.store.sql.rows import LISTED_COLUMNS, run_row
from wopr.store.sql.signals import label_key

# Before and after every run, for a page without bounds of its own.
_END_OF_TIME = (2**63 - 1, "")
_START_OF_TIME = -(2**63)


def run_page(rows: list[Row], limit: int) -> RunPage:
    """A page of the rows of `listing`, which are one more where there is a next page."""
    page = tuple(run_row(row) for row in rows[:limit])
    more = len(rows) > limit and page
    return RunPage(runs=page, next_after=(page[-1].created_at, page[-1].run_id) if more else None)


def listing(
    dialect: Dialect, tenant: str, where: RunFilter, after: tuple[int, str] | None, limit: int
) -> tuple[str, list[Parameter]]:
    """The statement and its parameters for one page of runs, newest first."""
    bounds = _bounds(where, after)
    index = _index(where)
    parts: list[str] = []
    parameters: list[Parameter] = []
    for statuses, signals in _walks(index, where):
        sql, values = _walk(dialect, index, tenant, where, statuses, signals)
        parts.append(sql)
        parameters += [*values, *bounds, limit]
    if len(parts) == 1:
        return parts[0], parameters
    merged = " UNION ALL ".join(f"SELECT * FROM ({part}) part" for part in parts)
    sql = f"{merged} ORDER BY created_at DESC, run_id DESC LIMIT {dialect.mark}"
    return sql, [*parameters, limit]


def _walks(index: str, where: RunFilter) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
    """The statuses and signals of each walk of the index.

    Several statuses in one walk of the status index would be sorted by status first. So each has a
    walk of its own, no longer than the page, and the walks are merged. The same holds for signals.
    """
    signals = _signals(where)
    if index == "runs_by_status":
        return [((status,), signals) for status in dict.fromkeys(where.statuses)]
    if index == "runs_by_signals":
        return [(where.statuses, (each,)) for each in signals]
    return [(where.statuses, signals)]


def _signals(where: RunFilter) -> tuple[int, ...]:
    """The values of `signals` that pass the filter; empty when it does not filter by them."""
    wanted = [
        (bit, asked)
        for bit, asked in (
            (FLAGGED, where.flagged),
            (RATED, where.rated),
            (CORRECTED, where.corrected),
        )
        if asked is not None
    ]
    if not wanted:
        return ()
    return tuple(
        value
        for value in range(ALL_SIGNALS + 1)
        if all(bool(value & bit) == asked for bit, asked in wanted)
    )


def _bounds(where: RunFilter, after: tuple[int, str] | None) -> tuple[int, str, int]:
    """The key that every row is below, and the earliest time."""
    time, run_id = after or _END_OF_TIME
    if where.created_before is not None:
        # No run id sorts below "", so this is all that came before that moment.
        time, run_id = min((time, run_id), (where.created_before, ""))
    earliest = _START_OF_TIME if where.created_from is None else where.created_from
    return time, run_id, earliest


def _index(where: RunFilter) -> str:
    """The index to walk: that of the filter that leaves the fewest runs, as a rule."""
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
    # Most runs have no signal: among these the workflow leaves fewer.
    if signals and (0 not in signals or where.workflow_id is None):
        return "runs_by_signals"
    if where.workflow_id is not None:
        return "runs_by_workflow"
    return "runs_by_status" if where.statuses else "runs_newest"


def _walk(
    dialect: Dialect,
    index: str,
    tenant: str,
    where: RunFilter,
    statuses: tuple[str, ...],
    signals: tuple[int, ...],
) -> tuple[str, list[Parameter]]:
    mark = dialect.mark
    key, source = "r", f"runs r{dialect.by(index)}"
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
        conditions.append(f"r.status IN ({dialect.marks(len(statuses))})")
        values += statuses
    if signals:
        conditions.append(f"r.signals IN ({dialect.marks(len(signals))})")
        values += signals
    conditions.append(f"({key}.created_at, {key}.run_id) < ({mark}, {mark})")
    conditions.append(f"{key}.created_at >= {mark}")
    sql = (
        f"SELECT {LISTED_COLUMNS} FROM {source} WHERE {' AND '.join(conditions)} "
        f"ORDER BY {key}.created_at DESC, {key}.run_id DESC LIMIT {mark}"
    )
    return sql, values
