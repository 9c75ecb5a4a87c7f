"""The part that reads the fleet's totals."""

from __future__ import annotations

from collections.abc import Sequence

from wopr.store.port.fleet import AgentTotals, CheckpointTotals, Since
from wopr.store.postgres.asking import answered
from wopr.store.postgres.part import Part
from wopr.store.sql.fleet_totals import read_checkpoints, read_totals


class PostgresFleetTotals(Part):
    """The totals of `Fleet` on PostgreSQL."""

    async def fleet_totals(
        self,
        tenant: str,
        span: str,
        since: Since,
        *,
        quantiles: Sequence[float],
        scores: int,
    ) -> list[AgentTotals]:
        """Totals of every agent with a run in the span."""
        asking = read_totals(tenant, span, since, quantiles, scores)
        return await self._db.view(tenant, lambda transaction: answered(transaction, asking))

    async def fleet_checkpoints(
        self, tenant: str, span: str, since: Since
    ) -> list[CheckpointTotals]:
        """Totals of every checkpoint with a result in the span."""
        asking = read_checkpoints(tenant, span, since)
        return await self._db.view(tenant, lambda transaction: answered(transaction, asking))
