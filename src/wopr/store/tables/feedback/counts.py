"""Counts of annotations, and of runs by signal. A read costs the hours and days of its period."""

from __future__ import annotations

from collections.abc import Sequence

from wopr.store.port.feedback import (
    CORRECTED,
    DAY_MS,
    FLAGGED,
    INTERVENED,
    FeedbackCount,
    FeedbackFilter,
    GroupBy,
    SignalCount,
)
from wopr.store.tables.dialect import Parameter, Row
from wopr.store.tables.statements import Lookup, LookupPlan

_NUMBERS = ("ratings", "rating_sum", "corrections", "labels", "flags")
_GROUPS: dict[GroupBy, tuple[str, ...]] = {
    "workflow": ("workflow_id",),
    "agent": ("agent_id",),
    "node": ("workflow_id", "node_id"),
    "time": ("bucket",),
    "nothing": (),
}
_SIGNAL_SUMS = (
    "CAST(sum(runs) AS bigint)",
    *(
        f"CAST(sum(CASE WHEN signals & {bit} <> 0 THEN runs ELSE 0 END) AS bigint)"
        for bit in (FLAGGED, CORRECTED, INTERVENED)
    ),
)
_OF_RUN = """
SELECT run_id, ratings, rating_sum, corrections, labels, flags FROM run_feedback
WHERE tenant = ? AND run_id = ?
"""


def feedback_statement(
    tenant: str, where: FeedbackFilter, by: GroupBy
) -> tuple[str, list[Parameter]]:
    """Return the statement that counts the annotations of a period, and its parameters."""
    conditions, values = _conditions(tenant, where)
    columns = ("workflow_id", "agent_id", "node_id", *_NUMBERS)
    sums = [f"CAST(sum({name}) AS bigint)" for name in _NUMBERS]
    return _grouped("feedback", columns, sums, conditions, values, where, by)


def feedback_counts(rows: list[Row], by: GroupBy) -> list[FeedbackCount]:
    """Convert the rows of `feedback_statement`; a period without annotations has no group."""
    names = _GROUPS[by]
    return [
        FeedbackCount(**dict(zip((*names, *_NUMBERS), row, strict=True)))
        for row in rows
        if row[len(names)] is not None
    ]


def signal_statement(
    tenant: str, where: FeedbackFilter, by: GroupBy
) -> tuple[str, list[Parameter]]:
    """Return the statement that counts the runs of a period by signal, and its parameters."""
    conditions, values = _conditions(tenant, where)
    if where.agent_id is None:
        # The rows without an agent count every run once.
        conditions.append("agent_id <> ''" if by == "agent" else "agent_id = ''")
    columns = ("workflow_id", "agent_id", "signals", "runs")
    return _grouped("run", columns, _SIGNAL_SUMS, conditions, values, where, by)


def signal_counts(rows: list[Row], by: GroupBy) -> list[SignalCount]:
    """Convert the rows of `signal_statement`; a group without runs is left out."""
    groups = _GROUPS[by]
    names = (*groups, "runs", "flagged", "corrected", "intervened")
    return [SignalCount(**dict(zip(names, row, strict=True))) for row in rows if row[len(groups)]]


def feedback_of_runs(tenant: str, run_ids: Sequence[str]) -> LookupPlan[dict[str, FeedbackCount]]:
    """Read the counts of each run."""
    [found] = yield [Lookup(_OF_RUN, [(tenant, run_id) for run_id in run_ids])]
    return {
        row[0]: FeedbackCount(
            ratings=row[1], rating_sum=row[2], corrections=row[3], labels=row[4], flags=row[5]
        )
        for rows in found
        for row in rows
    }


def _conditions(tenant: str, where: FeedbackFilter) -> tuple[list[str], list[Parameter]]:
    conditions = ["tenant = ?"]
    values: list[Parameter] = [tenant]
    for column, value in (("workflow_id", where.workflow_id), ("agent_id", where.agent_id)):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    return conditions, values


def _grouped(
    tables: str,
    columns: Sequence[str],
    sums: Sequence[str],
    conditions: Sequence[str],
    values: Sequence[Parameter],
    where: FeedbackFilter,
    by: GroupBy,
) -> tuple[str, list[Parameter]]:
    """Return the statement that sums up the tables of hours and days, and its parameters."""
    # In a period that is grouped by day, the hours before and after whole days count for their day.
    bucket = (
        f"bucket / {where.bucket_ms} * {where.bucket_ms} AS bucket" if by == "time" else "bucket"
    )
    parts: list[str] = []
    parameters: list[Parameter] = []
    for unit, since, until in periods(where, by):
        table = f"{tables}_{unit}"
        # The table name selects the stored column and not the alias `bucket`.
        bounds = (*conditions, f"{table}.bucket >= ?", f"{table}.bucket < ?")
        parts.append(
            f"SELECT {', '.join((bucket, *columns))} FROM {table} WHERE {' AND '.join(bounds)}"
        )
        parameters += [*values, since, until]
    names = _GROUPS[by]
    sql = f"SELECT {', '.join((*names, *sums))} FROM ({' UNION ALL '.join(parts)}) part"
    return (f"{sql} GROUP BY {', '.join(names)}" if names else sql), parameters


def periods(where: FeedbackFilter, by: GroupBy) -> list[tuple[str, int, int]]:
    """Split a period into whole days, and the hours before and after them.

    A period that is grouped by hour is read by hour.
    """
    since, until = where.since, where.until
    first_day = -(-since // DAY_MS) * DAY_MS
    last_day = until // DAY_MS * DAY_MS
    by_hour = by == "time" and where.bucket_ms < DAY_MS
    if by_hour or first_day >= last_day:
        return [("hours", since, until)]
    return [
        ("hours", since, first_day),
        ("days", first_day, last_day),
        ("hours", last_day, until),
    ]
