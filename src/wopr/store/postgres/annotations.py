"""The part that keeps annotations of runs."""

from __future__ import annotations

from functools import partial

from wopr.protocol.errors import NotFound
from wopr.store.port import RememberedAnswer
from wopr.store.port.feedback import AnnotationRow
from wopr.store.postgres.annotation_rows import record_annotations, write_annotation
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.idempotency import remember_first
from wopr.store.postgres.part import Part
from wopr.store.postgres.projections import put_projections
from wopr.store.sql.side_rows import ANNOTATION_COLUMNS, annotation_row

# Held, so that retention cannot take the run away while this transaction adds to it.
_RUN_EXISTS = "SELECT 1 FROM runs WHERE run_id = %s AND tenant = %s FOR KEY SHARE"

_OF_RUN = f"""
SELECT {ANNOTATION_COLUMNS} FROM annotations
WHERE tenant = %s AND run_id = %s AND (created_at, annotation_id) > (%s, %s)
ORDER BY created_at, annotation_id LIMIT %s
"""

_BEFORE_ALL = (-(2**63), "")


class PostgresAnnotations(Part):
    """Annotations of `Annotations` on PostgreSQL."""

    async def put_annotation(
        self, tenant: str, row: AnnotationRow, remember: RememberedAnswer | None = None
    ) -> None:
        """Keep an annotation, count it, audit it and remember the answer, all or nothing."""
        await self._db.run(tenant, partial(_put, row=row, remember=remember))

    async def annotations(
        self, tenant: str, run_id: str, after: tuple[int, str] | None, limit: int
    ) -> list[AnnotationRow]:
        """Annotations of a run, oldest first, by keyset."""
        values = (tenant, run_id, *(after or _BEFORE_ALL), limit)
        return [annotation_row(row) for row in await self._db.read(tenant, _OF_RUN, values)]


async def require_run(transaction: Transaction, run_id: str) -> None:
    """Raise `NotFound` unless the tenant has the run now: retention may have taken it meanwhile."""
    if await transaction.row(_RUN_EXISTS, (run_id, transaction.tenant)) is None:
        raise NotFound(f"there is no run {run_id!r}")


async def insert_annotation(transaction: Transaction, row: AnnotationRow) -> None:
    """Write an annotation of a run that is held, and let the fleet hear of it."""
    await write_annotation(transaction, row)
    await put_projections(transaction, [row.run_id])


async def _put(
    transaction: Transaction, row: AnnotationRow, remember: RememberedAnswer | None
) -> None:
    await require_run(transaction, row.run_id)
    await remember_first(transaction, remember)
    await insert_annotation(transaction, row)
    await record_annotations(transaction, row)
