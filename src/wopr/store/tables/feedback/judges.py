"""Judges, and the runs that each of them judges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from wopr.store.port.feedback import AnnotationRow, JudgedRow, JudgeRow
from wopr.store.tables.database import Table
from wopr.store.tables.dialect import SMALLEST_INTEGER, Row, Variants, variants
from wopr.store.tables.feedback.annotations import (
    add_annotations,
    audit_annotations,
    lock_run,
    missing_run_error,
)
from wopr.store.tables.statements import Operation, execute, execute_many, query

_COLUMNS = "judge_id, created_at, is_done, body"
_RUN_COLUMNS = "place, run_id, state, judge_run_id, annotation_id, reason"
_INSERT = f"INSERT INTO judges (tenant, {_COLUMNS}) VALUES (?, ?, ?, ?, ?)"
_INSERT_RUN = f"""
INSERT INTO judged_runs (tenant, judge_id, {_RUN_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""
_JUDGE = f"SELECT {_COLUMNS} FROM judges WHERE tenant = ? AND judge_id = ?"
_RUNS = f"""
SELECT {_RUN_COLUMNS} FROM judged_runs
WHERE tenant = ? AND judge_id = ? AND place > ? ORDER BY place LIMIT ?
"""
_RUNS_IN_STATE = variants(
    lambda dialect: (
        f"""
SELECT {_RUN_COLUMNS} FROM judged_runs{dialect.indexed_by("judged_runs_by_state")}
WHERE tenant = ? AND judge_id = ? AND state = ? AND place > ? ORDER BY place LIMIT ?
"""
    )
)
_COUNTS = variants(
    lambda dialect: (
        f"""
SELECT state, count(*) FROM judged_runs{dialect.indexed_by("judged_runs_by_state")}
WHERE tenant = ? AND judge_id = ? GROUP BY state
"""
    )
)
# The condition on the time is always true. It makes SQLite search the index instead of scanning it.
_OPEN = Variants(
    sqlite=f"""
SELECT tenant, judge_id FROM judges INDEXED BY judges_open
WHERE is_done = 0 AND created_at > {SMALLEST_INTEGER} ORDER BY created_at, tenant, judge_id LIMIT ?
""",
    postgres="SELECT tenant, id FROM host_judges(?)",
)
_STATE = variants(
    lambda dialect: (
        "SELECT state FROM judged_runs WHERE tenant = ? AND run_id = ? AND judge_id = ?"
        f"{dialect.lock('FOR UPDATE')}"
    )
)
_SET_STATE = """
UPDATE judged_runs SET state = ?, judge_run_id = ?, annotation_id = ?, reason = ?
WHERE tenant = ? AND run_id = ? AND judge_id = ?
"""
_CLOSE = "UPDATE judges SET is_done = true WHERE tenant = ? AND judge_id = ?"
_DELETE_RUNS = "DELETE FROM judged_runs WHERE tenant = ? AND run_id = ?"

_UNSETTLED = ("pending", "running")


class JudgeTable(Table):
    """`Judges` in SQL."""

    async def put_judge(self, tenant: str, row: JudgeRow, items: Sequence[JudgedRow]) -> None:
        """Store a judge with the runs that it judges."""
        await self._sql.transact(tenant, partial(_put, tenant, row, tuple(items)))

    async def judge(self, tenant: str, judge_id: str) -> JudgeRow | None:
        """Return the judge, or None."""
        rows = await self._sql.read_few(tenant, _JUDGE, (tenant, judge_id))
        return _row(rows[0]) if rows else None

    async def judged_runs(
        self, tenant: str, judge_id: str, after: int, limit: int, state: str | None = None
    ) -> list[JudgedRow]:
        """List runs after that place, in order."""
        if state is None:
            rows = await self._sql.read_many(tenant, _RUNS, (tenant, judge_id, after, limit))
        else:
            values = (tenant, judge_id, state, after, limit)
            rows = await self._sql.read_few(tenant, _RUNS_IN_STATE, values)
        return [_run(row) for row in rows]

    async def judged_run_counts(self, tenant: str, judge_id: str) -> dict[str, int]:
        """Return the number of runs in each state."""
        rows = await self._sql.read_many(tenant, _COUNTS, (tenant, judge_id))
        return {row[0]: row[1] for row in rows}

    async def open_judges(self, limit: int) -> list[tuple[str, str]]:
        """List the judges of all tenants that are not done, oldest first."""
        return [(row[0], row[1]) for row in await self._sql.read_host_few(_OPEN, (limit,))]

    async def set_judged_state(
        self, tenant: str, judge_id: str, item: JudgedRow, annotation: AnnotationRow | None = None
    ) -> bool:
        """Set the state of a run, with its annotation; False if its state is already final."""
        return await self._sql.transact(
            tenant, partial(_set_state, tenant, judge_id, item, annotation)
        )

    async def close_judge(self, tenant: str, judge_id: str) -> None:
        """Mark a judge as done."""
        await self._sql.change(tenant, _CLOSE, (tenant, judge_id))


def delete_judgments(tenant: str, run_id: str) -> Operation[None]:
    """Remove a run from every judge."""
    yield execute(_DELETE_RUNS, (tenant, run_id))


def _put(tenant: str, row: JudgeRow, items: Sequence[JudgedRow]) -> Operation[None]:
    yield execute(_INSERT, (tenant, row.judge_id, row.created_at, row.is_done, row.body))
    yield execute_many(
        _INSERT_RUN,
        [
            (tenant, row.judge_id, place, item.run_id, *_result(item))
            for place, item in enumerate(items)
        ],
    )


def _set_state(
    tenant: str, judge_id: str, item: JudgedRow, annotation: AnnotationRow | None
) -> Operation[bool]:
    # The run is locked before the row of the judge, in the order of retention.
    has_run = annotation is None or (yield from lock_run(tenant, annotation.run_id))
    key = (tenant, item.run_id, judge_id)
    state = yield query(_STATE, key)
    if not state or state[0][0] not in _UNSETTLED:
        return False
    yield execute(_SET_STATE, (*_result(item), *key))
    if annotation is not None:
        if not has_run:
            raise missing_run_error(annotation.run_id)
        yield from add_annotations(tenant, [annotation])
        yield from audit_annotations([annotation])
    return True


def _result(item: JudgedRow) -> tuple[str | None, ...]:
    return (item.state, item.judge_run_id, item.annotation_id, item.reason)


def _row(row: Row) -> JudgeRow:
    return JudgeRow(judge_id=row[0], created_at=row[1], is_done=bool(row[2]), body=row[3])


def _run(row: Row) -> JudgedRow:
    return JudgedRow(
        place=row[0],
        run_id=row[1],
        state=row[2],
        judge_run_id=row[3],
        annotation_id=row[4],
        reason=row[5],
    )
