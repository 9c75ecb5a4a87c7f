"""List runs: one index per question, walked from its newest end, so no page costs more than another.

Each statement names its index, so that neither statistics nor a new release of SQLite can turn a
short walk into a sort of all runs.
"""

from __future__ import annotations

import msgspec

from wopr.store.port import RunFilter, RunRow
from wopr.store.sqlite.reader import Parameter, Row

RUN_COLUMNS = (
    "r.run_id, r.workflow_id, r.workflow_version, r.status, r.created_at, r.updated_at, "
    "r.last_sequence, r.ended_at, r.wake_at, r.parent_run_id, r.parent_node_id, r.tags, "
    "r.wish, r.sealed, r.snapshot, r.source_run_id, r.fork"
)

# Before and after every run, for a page without bounds of its own.
_END_OF_TIME = (2**63 - 1, "")
_START_OF_TIME = -(2**63)

_tags = msgspec.json.Decoder(tuple[str, ...])


def run_row(row: Row) -> RunRow:
    """Name the columns of `RUN_COLUMNS`."""
    return RunRow(
        run_id=row[0],
        workflow_id=row[1],
        workflow_version=row[2],
        status=row[3],
        created_at=row[4],
        updated_at=row[5],
        last_sequence=row[6],
        ended_at=row[7],
        wake_at=row[8],
        parent_run_id=row[9],
        parent_node_id=row[10],
        tags=_tags.decode(row[11]) if row[11] is not None else (),
        wish=row[12],
        sealed=row[13],
        snapshot=row[14],
        source_run_id=row[15],
        fork=row[16],
    )


def listing(
    tenant: str, where: RunFilter, after: tuple[int, str] | None, limit: int
) -> tuple[str, list[Parameter]]:
    """The statement and its parameters for one page of runs, newest first."""
    bounds = _bounds(where, after)
    index = _index(where)
    # Several statuses in one walk of the status index would come out sorted by status first: walk
    # once for each, no farther than the page is long, and merge.
    walks = where.statuses if index == "runs_by_status" else (None,)
    parts: list[str] = []
    parameters: list[Parameter] = []
    for status in dict.fromkeys(walks):
        statuses = where.statuses if status is None else (status,)
        sql, values = _walk(index, tenant, where, statuses)
        parts.append(sql)
        parameters += [*values, *bounds, limit]
    if len(parts) == 1:
        return parts[0], parameters
    merged = " UNION ALL ".join(f"SELECT * FROM ({part})" for part in parts)
    return f"{merged} ORDER BY created_at DESC, run_id DESC LIMIT ?", [*parameters, limit]


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
    if where.parent_run_id is not None:
        return "runs_by_parent"
    if where.source_run_id is not None:
        return "runs_by_source"
    if where.tag is not None:
        return "run_tags"
    if where.workflow_id is not None:
        return "runs_by_workflow"
    return "runs_by_status" if where.statuses else "runs_newest"


def _walk(
    index: str, tenant: str, where: RunFilter, statuses: tuple[str, ...]
) -> tuple[str, list[Parameter]]:
    key = "t" if index == "run_tags" else "r"
    source = f"runs r INDEXED BY {index}"
    conditions = ["r.tenant = ?"]
    values: list[Parameter] = [tenant]
    if index == "run_tags":
        source = "run_tags t CROSS JOIN runs r ON r.run_id = t.run_id"
        conditions += ["t.tenant = ?", "t.tag = ?"]
        values += [tenant, where.tag]
    elif where.tag is not None:
        conditions.append(
            "EXISTS (SELECT 1 FROM run_tags t WHERE t.tenant = r.tenant AND t.tag = ?"
            " AND t.created_at = r.created_at AND t.run_id = r.run_id)"
        )
        values.append(where.tag)
    for column, value in (
        ("parent_run_id", where.parent_run_id),
        ("source_run_id", where.source_run_id),
        ("workflow_id", where.workflow_id),
    ):
        if value is not None:
            conditions.append(f"r.{column} = ?")
            values.append(value)
    if statuses:
        conditions.append(f"r.status IN ({', '.join('?' * len(statuses))})")
        values += statuses
    conditions += [f"({key}.created_at, {key}.run_id) < (?, ?)", f"{key}.created_at >= ?"]
    sql = (
        f"SELECT {RUN_COLUMNS} FROM {source} WHERE {' AND '.join(conditions)} "
        f"ORDER BY {key}.created_at DESC, {key}.run_id DESC LIMIT ?"
    )
    return sql, values
