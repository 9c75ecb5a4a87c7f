"""The part that keeps annotations of runs."""

from __future__ import annotations

import sqlite3
from functools import partial

from wopr.protocol.errors import NotFound
from wopr.store.port import RememberedAnswer
from wopr.store.port.feedback import AnnotationRow
from wopr.store.sql.rows import answer_values
from wopr.store.sql.side_rows import ANNOTATION_COLUMNS, annotation_row
from wopr.store.sqlite.annotation_rows import write_annotation
from wopr.store.sqlite.append import INSERT_ANSWER, check_unanswered
from wopr.store.sqlite.part import Part
from wopr.store.sqlite.projections import put_projections

_RUN_EXISTS = "SELECT 1 FROM runs WHERE run_id = ? AND tenant = ?"

_OF_RUN = f"""
SELECT {ANNOTATION_COLUMNS} FROM annotations
WHERE tenant = ? AND run_id = ? AND (created_at, annotation_id) > (?, ?)
ORDER BY created_at, annotation_id LIMIT ?
"""

_BEFORE_ALL = (-(2**63), "")
# So many are read on the event loop; a longer page is worth the hop to a thread.
_NEAR = 100


class SqliteAnnotations(Part):
    """Annotations of `Annotations` on SQLite."""

    async def put_annotation(
        self, tenant: str, row: AnnotationRow, remember: RememberedAnswer | None = None
    ) -> None:
        """Keep an annotation, count it, audit it and remember the answer, all or nothing."""
        await self._writer.submit(partial(_put, tenant=tenant, row=row, remember=remember))

    async def annotations(
        self, tenant: str, run_id: str, after: tuple[int, str] | None, limit: int
    ) -> list[AnnotationRow]:
        """Annotations of a run, oldest first, by keyset."""
        start = after or _BEFORE_ALL
        rows = self._reader.near(_OF_RUN, (tenant, run_id, *start, min(limit, _NEAR)))
        if len(rows) == _NEAR < limit:
            last = rows[-1]
            rest = (tenant, run_id, last[7], last[0], limit - _NEAR)
            rows += await self._reader.far(_OF_RUN, rest)
        return [annotation_row(row) for row in rows]


def require_run(connection: sqlite3.Connection, tenant: str, run_id: str) -> None:
    """Raise `NotFound` unless the tenant has the run now: retention may have taken it meanwhile."""
    if connection.execute(_RUN_EXISTS, (run_id, tenant)).fetchone() is None:
        raise NotFound(f"there is no run {run_id!r}")


def insert_annotation(connection: sqlite3.Connection, tenant: str, row: AnnotationRow) -> None:
    """Write an annotation of a run that is there, and let the fleet hear of it."""
    write_annotation(connection, tenant, row)
    put_projections(connection, tenant, (row.run_id,))


def _put(
    connection: sqlite3.Connection,
    tenant: str,
    row: AnnotationRow,
    remember: RememberedAnswer | None,
) -> None:
    require_run(connection, tenant, row.run_id)
    if remember is not None:
        check_unanswered(connection, tenant, remember.key_hash)
    insert_annotation(connection, tenant, row)
    if remember is not None:
        connection.execute(INSERT_ANSWER, answer_values(tenant, remember))
