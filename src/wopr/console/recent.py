"""The newest runs of a few workflows, and what people say of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from wopr.console.visit import Visit
from wopr.protocol.reviews import FeedbackGroup
from wopr.store.port import RunFilter, RunRow

_RUNS: Final = 10


async def recent_runs(visit: Visit, workflow_ids: Iterable[str]) -> list[RunRow]:
    """The newest runs of these workflows together; none for those who may not read runs."""
    if not visit.may("runs:read"):
        return []
    found: list[RunRow] = []
    for name in workflow_ids:
        where = RunFilter(workflow_id=name)
        found += (await visit.host.store.runs(visit.tenant, where, None, _RUNS)).runs
    return sorted(found, key=lambda row: (row.created_at, row.run_id), reverse=True)[:_RUNS]


async def recent_feedback(
    visit: Visit, *, workflow_id: str | None = None, agent_id: str | None = None
) -> FeedbackGroup | None:
    """What people said in the last thirty days; None where it is off or not for the visitor."""
    if not visit.host.settings.feedback or not visit.may("runs:read"):
        return None
    summaries = visit.host.feedback.summaries
    summary = await summaries.read(
        visit.tenant, "workflow", workflow_id=workflow_id, agent_id=agent_id
    )
    return summary.total
