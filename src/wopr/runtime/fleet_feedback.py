"""What people think of an agent of the fleet, whatever it is called on the logs of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wopr.feedback.summary import Summaries
from wopr.fleet.bridge_ids import to_agent_id
from wopr.fleet.observed_agent import AGENT_PREFIX
from wopr.protocol.documents import Unset
from wopr.protocol.reviews import FeedbackGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFeedback:
    """Annotations that count for one agent; without a rating there is no mean."""

    ratings: int
    mean_rating: float | None
    corrections: int
    labels: int
    flags: int

    @property
    def count(self) -> int:
        """All of them."""
        return self.ratings + self.corrections + self.labels + self.flags


async def feedback_of(
    summaries: Summaries, tenant: str, agent_id: str, since: int | None
) -> AgentFeedback:
    """Add up what was said of an agent since then, by its name in the fleet."""
    summary = await summaries.read(tenant, "agent", since=since or 0)
    return _sum([group for group in summary.groups if _is_of(group.agent_id, agent_id)])


def _is_of(named: str | Unset, agent_id: str) -> bool:
    if isinstance(named, Unset):
        return False
    return named == f"{AGENT_PREFIX}{agent_id}" or to_agent_id(named) == agent_id


def _sum(groups: Sequence[FeedbackGroup]) -> AgentFeedback:
    ratings = sum(group.ratings for group in groups)
    stars = sum(group.ratings * (group.mean_rating or 0) for group in groups)
    return AgentFeedback(
        ratings=ratings,
        mean_rating=stars / ratings if ratings else None,
        corrections=sum(group.corrections for group in groups),
        labels=sum(group.labels for group in groups),
        flags=sum(group.flags for group in groups),
    )
