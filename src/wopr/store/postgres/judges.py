"""The part that keeps judges and what came of each run that they look at."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from wopr.store.port.feedback import AnnotationRow, JudgedRow, JudgeRow
from wopr.store.postgres.annotation_rows import record_annotations
from wopr.store.postgres.annotations import insert_annotation, require_run
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.part import Part
from wopr.store.sql.side_rows import JUDGE_COLUMNS, JUDGED_COLUMNS, judge_row, judged_row

_INSERT = """
INSERT INTO judges (tenant, judge_id, created_at, is_done, body) VALUES (%s, %s, %s, %s, %s)
"""

_INSERT_RUN = """
INSERT INTO judged_runs (
    tenant, judge_id, place, run_id, state, judge_run_id, annotation_id, reason
) VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
"""

_JUDGE = f"SELECT {JUDGE_COLUMNS} FROM judges WHERE tenant = %s AND judge_id = %s"

_RUNS = f"""
SELECT {JUDGED_COLUMNS} FROM judged_runs
WHERE tenant = %s AND judge_id = %s AND place > %s ORDER BY place LIMIT %s
"""

_RUNS_IN_STATE = f"""
SELECT {JUDGED_COLUMNS} FROM judged_runs
WHERE tenant = %s AND judge_id = %s AND state = %s AND place > %s ORDER BY place LIMIT %s
"""

_COUNTS = """
SELECT state, count(*) FROM judged_runs WHERE tenant = %s AND judge_id = %s GROUP BY state
"""

_OPEN = "SELECT tenant, id FROM host_judges(%s)"

_STATE = """
SELECT state FROM judged_runs WHERE tenant = %s AND run_id = %s AND judge_id = %s FOR UPDATE
"""

_MOVE = """
UPDATE judged_runs SET state = %s, judge_run_id = %s, annotation_id = %s, reason = %s
WHERE tenant = %s AND run_id = %s AND judge_id = %s
"""

_CLOSE = "UPDATE judges SET is_done = true WHERE tenant = %s AND judge_id = %s"

_DELETE_RUNS = "DELETE FROM judged_runs WHERE tenant = %s AND run_id = %s"

_UNSETTLED = ("pending", "running")


class PostgresJudges(Part):
    """`Judges` on PostgreSQL."""

    async def put_judge(self, tenant: str, row: JudgeRow, items: Sequence[JudgedRow]) -> None:
        """Keep a judge with the runs that it looks at."""
        await self._db.run(tenant, partial(_put, row=row, items=tuple(items)))

    async def judge(self, tenant: str, judge_id: str) -> JudgeRow | None:
        """The judge, or None."""
        rows = await self._db.read(tenant, _JUDGE, (tenant, judge_id))
        return judge_row(rows[0]) if rows else None

    async def judged(
        self, tenant: str, judge_id: str, after: int, limit: int, state: str | None = None
    ) -> list[JudgedRow]:
        """Runs after that place, in order."""
        if state is None:
            rows = await self._db.read(tenant, _RUNS, (tenant, judge_id, after, limit))
        else:
            values = (tenant, judge_id, state, after, limit)
            rows = await self._db.read(tenant, _RUNS_IN_STATE, values)
        return [judged_row(row) for row in rows]

    async def judged_counts(self, tenant: str, judge_id: str) -> dict[str, int]:
        """How many runs there are in each state."""
        rows = await self._db.read(tenant, _COUNTS, (tenant, judge_id))
        return {row[0]: row[1] for row in rows}

    async def open_judges(self, limit: int) -> list[tuple[str, str]]:
        """Judges that are not done, oldest first."""
        return [(row[0], row[1]) for row in await self._db.ask(_OPEN, (limit,))]

    async def move_judged(
        self, tenant: str, judge_id: str, item: JudgedRow, annotation: AnnotationRow | None = None
    ) -> bool:
        """Set what came of a run, with its annotation; False when it was settled already."""
        return await self._db.run(
            tenant, partial(_move, judge_id=judge_id, item=item, annotation=annotation)
        )

    async def close_judge(self, tenant: str, judge_id: str) -> None:
        """Note that a judge is done."""
        await self._db.change(tenant, _CLOSE, (tenant, judge_id))


async def forget_judgments(transaction: Transaction, run_id: str) -> None:
    """Take a run out of every judge's list."""
    await transaction.queue(_DELETE_RUNS, (transaction.tenant, run_id))


async def _put(transaction: Transaction, row: JudgeRow, items: Sequence[JudgedRow]) -> None:
    tenant = transaction.tenant
    await transaction.queue(_INSERT, (tenant, row.judge_id, row.created_at, row.is_done, row.body))
    for place, item in enumerate(items):
        came = (item.state, item.judge_run_id, item.annotation_id, item.reason)
        await transaction.queue(_INSERT_RUN, (tenant, row.judge_id, place, item.run_id, *came))


async def _move(
    transaction: Transaction, judge_id: str, item: JudgedRow, annotation: AnnotationRow | None
) -> bool:
    if annotation is not None:
        await require_run(transaction, annotation.run_id)
    key = (transaction.tenant, item.run_id, judge_id)
    state = await transaction.row(_STATE, key)
    if state is None or state[0] not in _UNSETTLED:
        return False
    came = (item.state, item.judge_run_id, item.annotation_id, item.reason)
    await transaction.queue(_MOVE, (*came, *key))
    if annotation is not None:
        await insert_annotation(transaction, annotation)
        await record_annotations(transaction, annotation)
    return True
