"""Count annotations: what a summary costs is the length of its window."""

from __future__ import annotations

from wopr.store.port.feedback import DAY_MS, FeedbackCount, FeedbackFilter, GroupBy
from wopr.store.sql.dialect import Dialect, Parameter, Row

_NUMBERS = ("ratings", "rating_sum", "corrections", "labels", "flags")
_GROUPS: dict[GroupBy, tuple[str, ...]] = {
    "workflow": ("workflow_id",),
    "agent": ("agent_id",),
    "node": ("workflow_id", "node_id"),
    "time": ("bucket",),
    "nothing": (),
}


def feedback_counts(rows: list[Row], by: GroupBy) -> list[FeedbackCount]:
    """Name the columns of `counting`; a window without annotations has no group."""
    names = _GROUPS[by]
    return [
        FeedbackCount(**dict(zip((*names, *_NUMBERS), row, strict=True)))
        for row in rows
        if row[len(names)] is not None
    ]


def counting(
    dialect: Dialect, tenant: str, where: FeedbackFilter, by: GroupBy
) -> tuple[str, list[Parameter]]:
    """The statement and its parameters for the counts of one window."""
    parts: list[str] = []
    parameters: list[Parameter] = []
    for unit, since, until in stretches(where, by):
        sql, values = _part(dialect, unit, tenant, where, by)
        parts.append(sql)
        parameters += [*values, since, until]
    names = _GROUPS[by]
    sums = ", ".join((*names, *(f"CAST(sum({name}) AS bigint)" for name in _NUMBERS)))
    sql = f"SELECT {sums} FROM ({' UNION ALL '.join(parts)}) part"
    return (f"{sql} GROUP BY {', '.join(names)}" if names else sql), parameters


def stretches(where: FeedbackFilter, by: GroupBy) -> list[tuple[str, int, int]]:
    """Cut a window into whole days, and the hours before and after them.

    A window that is told by the hour is read by the hour.
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


def _part(
    dialect: Dialect, unit: str, tenant: str, where: FeedbackFilter, by: GroupBy
) -> tuple[str, list[Parameter]]:
    # Hours at the edges of a window that is told by the day count towards their day.
    bucket = (
        f"bucket / {where.bucket_ms} * {where.bucket_ms} AS bucket" if by == "time" else "bucket"
    )
    columns = ", ".join((bucket, "workflow_id", "agent_id", "node_id", *_NUMBERS))
    mark = dialect.mark
    conditions = [f"tenant = {mark}"]
    values: list[Parameter] = [tenant]
    for column, value in (("workflow_id", where.workflow_id), ("agent_id", where.agent_id)):
        if value is not None:
            conditions.append(f"{column} = {mark}")
            values.append(value)
    # The table's own columns: the bounds are of the bucket as it is stored.
    table = f"feedback_{unit}"
    conditions += [f"{table}.bucket >= {mark}", f"{table}.bucket < {mark}"]
    return f"SELECT {columns} FROM {table} WHERE {' AND '.join(conditions)}", values
