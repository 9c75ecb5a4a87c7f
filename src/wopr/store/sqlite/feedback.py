"""The part that reads the counts of annotations."""

from __future__ import annotations

from wopr.store.port.feedback import FeedbackCount, FeedbackFilter, GroupBy
from wopr.store.sql.counting import counting, feedback_counts
from wopr.store.sql.dialect import SQLITE
from wopr.store.sqlite.part import Part


class SqliteFeedback(Part):
    """The counts of `Annotations` on SQLite."""

    async def feedback(
        self, tenant: str, where: FeedbackFilter, by: GroupBy
    ) -> list[FeedbackCount]:
        """Counts of a window, by group."""
        rows = await self._reader.far(*counting(SQLITE, tenant, where, by))
        return feedback_counts(rows, by)
