"""The part that reads the counts of annotations."""

from __future__ import annotations

from collections.abc import Sequence

from wopr.store.port.feedback import FeedbackCount, FeedbackFilter, GroupBy, SignalCount
from wopr.store.postgres.part import Part
from wopr.store.sql.counting import counting, feedback_counts
from wopr.store.sql.dialect import POSTGRES
from wopr.store.sql.signals import counting_signals, of_runs, signal_counts


class PostgresFeedback(Part):
    """The counts of `Annotations` on PostgreSQL."""

    async def feedback(
        self, tenant: str, where: FeedbackFilter, by: GroupBy
    ) -> list[FeedbackCount]:
        """Counts of a window, by group."""
        rows = await self._db.read(tenant, *counting(POSTGRES, tenant, where, by))
        return feedback_counts(rows, by)

    async def signal_counts(
        self, tenant: str, where: FeedbackFilter, by: GroupBy
    ) -> list[SignalCount]:
        """Runs of a window by their signals, by group."""
        rows = await self._db.read(tenant, *counting_signals(POSTGRES, tenant, where, by))
        return signal_counts(rows, by)

    async def run_feedback(self, tenant: str, run_ids: Sequence[str]) -> dict[str, FeedbackCount]:
        """What was said of each of these runs."""
        return await self._read_together(tenant, of_runs(tenant, run_ids)) if run_ids else {}
