"""The part that keeps judges and what came of each run that they look at."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

from wopr.store.port.feedback import AnnotationRow, JudgedRow, JudgeRow
from wopr.store.sql.side_rows import JUDGE_COLUMNS, JUDGED_COLUMNS, judge_row, judged_row
from wopr.store.sqlite.annotations import insert_annotation, require_run
from wopr.store.sqlite.part import Part

_INSERT = "INSERT INTO judges (tenant, judge_id, created_at, is_done, body) VALUES (?, ?, ?, ?, ?)"

_INSERT_RUN = """
INSERT OR IGNORE INTO judged_runs (
    tenant, judge_id, place, run_id, state, judge_run_id, annotation_id, reason
) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""

_JUDGE = f"SELECT {JUDGE_COLUMNS} FROM judges WHERE tenant = ? AND judge_id = ?"

_RUNS = f"""
SELECT {JUDGED_COLUMNS} FROM judged_runs
WHERE tenant = ? AND judge_id = ? AND place > ? ORDER BY place LIMIT ?
"""

_RUNS_IN_STATE = f"""
SELECT {JUDGED_COLUMNS} FROM judged_runs INDEXED BY judged_runs_by_state
WHERE tenant = ? AND judge_id = ? AND state = ? AND place > ? ORDER BY place LIMIT ?
"""

_COUNTS = """
SELECT state, count(*) FROM judged_runs INDEXED BY judged_runs_by_state
WHERE tenant = ? AND judge_id = ? GROUP BY state
"""

_OPEN = """
SELECT tenant, judge_id FROM judges INDEXED BY judges_open
WHERE is_done = 0 AND created_at > ? ORDER BY created_at, tenant, judge_id LIMIT ?
"""

_STATE = "SELECT state FROM judged_runs WHERE tenant = ? AND run_id = ? AND judge_id = ?"

_MOVE = """
UPDATE judged_runs SET state = ?, judge_run_id = ?, annotation_id = ?, reason = ?
WHERE tenant = ? AND run_id = ? AND judge_id = ?
"""

_CLOSE = "UPDATE judges SET is_done = 1 WHERE tenant = ? AND judge_id = ?"

_DELETE_RUNS = "DELETE FROM judged_runs WHERE tenant = ? AND run_id = ?"

_UNSETTLED = ("pending", "running")
_BEFORE_ALL = -(2**63)


class SqliteJudges(Part):
    """`Judges` on SQLite."""

    async def put_judge(self, tenant: str, row: JudgeRow, items: Sequence[JudgedRow]) -> None:
        """Keep a judge with the runs that it looks at."""
        await self._writer.submit(partial(_put, tenant=tenant, row=row, items=tuple(items)))

    async def judge(self, tenant: str, judge_id: str) -> JudgeRow | None:
        """The judge, or None."""
        rows = self._reader.near(_JUDGE, (tenant, judge_id))
        return judge_row(rows[0]) if rows else None

    async def judged(
        self, tenant: str, judge_id: str, after: int, limit: int, state: str | None = None
    ) -> list[JudgedRow]:
        """Runs after that place, in order."""
        if state is None:
            rows = await self._reader.far(_RUNS, (tenant, judge_id, after, limit))
        else:
            rows = self._reader.near(_RUNS_IN_STATE, (tenant, judge_id, state, after, limit))
        return [judged_row(row) for row in rows]

    async def judged_counts(self, tenant: str, judge_id: str) -> dict[str, int]:
        """How many runs there are in each state."""
        rows = await self._reader.far(_COUNTS, (tenant, judge_id))
        return {row[0]: row[1] for row in rows}

    async def open_judges(self, limit: int) -> list[tuple[str, str]]:
        """Judges that are not done, oldest first."""
        return [(row[0], row[1]) for row in self._reader.near(_OPEN, (_BEFORE_ALL, limit))]

    async def move_judged(
        self, tenant: str, judge_id: str, item: JudgedRow, annotation: AnnotationRow | None = None
    ) -> bool:
        """Set what came of a run, with its annotation; False when it was settled already."""
        return await self._writer.submit(
            partial(_move, tenant=tenant, judge_id=judge_id, item=item, annotation=annotation)
        )

    async def close_judge(self, tenant: str, judge_id: str) -> None:
        """Note that a judge is done."""
        await self._change(_CLOSE, (tenant, judge_id))


def forget_judgments(connection: sqlite3.Connection, tenant: str, run_id: str) -> None:
    """Take a run out of every judge's list."""
    connection.execute(_DELETE_RUNS, (tenant, run_id))


def _put(
    connection: sqlite3.Connection, tenant: str, row: JudgeRow, items: Sequence[JudgedRow]
) -> None:
    connection.execute(_INSERT, (tenant, row.judge_id, row.created_at, int(row.is_done), row.body))
    connection.executemany(
        _INSERT_RUN,
        [
            (
                tenant,
                row.judge_id,
                place,
                item.run_id,
                item.state,
                item.judge_run_id,
                item.annotation_id,
                item.reason,
            )
            for place, item in enumerate(items)
        ],
    )


def _move(
    connection: sqlite3.Connection,
    tenant: str,
    judge_id: str,
    item: JudgedRow,
    annotation: AnnotationRow | None,
) -> bool:
    key = (tenant, item.run_id, judge_id)
    state = connection.execute(_STATE, key).fetchone()
    if state is None or state[0] not in _UNSETTLED:
        return False
    if annotation is not None:
        require_run(connection, tenant, annotation.run_id)
        insert_annotation(connection, tenant, annotation)
    connection.execute(
        _MOVE, (item.state, item.judge_run_id, item.annotation_id, item.reason, *key)
    )
    return True
