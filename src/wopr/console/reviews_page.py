"""Reviews: what people and judges say of runs, added up, and the queues that wait for reviewers."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from wopr.console.charts import rating_chart
from wopr.console.page import Page
from wopr.console.visit import Visit
from wopr.http.answers import Answer
from wopr.http.feedback import offered
from wopr.http.paging import read_cursor, write_cursor
from wopr.protocol.errors import Refused
from wopr.protocol.reviews import FeedbackSummary, Queue, SummaryBy
from wopr.store.port.feedback import DAY_MS

PAGE_QUEUES: Final = 20
MOST_ROWS: Final = 30
WINDOWS: Final = {
    "1d": ("day", DAY_MS),
    "7d": ("week", 7 * DAY_MS),
    "30d": ("30 days", 30 * DAY_MS),
    "90d": ("90 days", 90 * DAY_MS),
}
_DEFAULT: Final = "30d"


async def show_reviews(visit: Visit) -> Answer:
    """Show the queues with their progress, and the feedback of a window in charts."""
    window = visit.query.get("window", _DEFAULT)
    if window not in WINDOWS:
        raise Refused(f"window must be one of {', '.join(WINDOWS)}", field="window")
    queues, next_page = await _queues(visit)
    by_time = await _summary(visit, window, "time")
    return await visit.page(
        "reviews.html",
        queues=queues,
        next_page=next_page,
        window=window,
        windows={name: (words, _link(visit, name)) for name, (words, _) in WINDOWS.items()},
        chart=rating_chart(by_time),
        total=by_time.total,
        by_workflow=(await _summary(visit, window, "workflow")).groups[:MOST_ROWS],
        by_agent=(await _summary(visit, window, "agent")).groups[:MOST_ROWS],
        narrowed=_narrowed(visit),
        workflow_id=visit.query.get("workflowId", ""),
        agent_id=visit.query.get("agentId", ""),
    )


async def _summary(visit: Visit, window: str, by: SummaryBy) -> FeedbackSummary:
    return await visit.host.feedback.summaries.read(
        visit.tenant,
        by,
        since=visit.now - WINDOWS[window][1],
        workflow_id=visit.query.get("workflowId"),
        agent_id=visit.query.get("agentId"),
    )


def _narrowed(visit: Visit) -> str:
    """The filter of the page as a filter of the run list; runs are not listed by agent."""
    workflow_id = visit.query.get("workflowId", "")
    return "&" + urlencode({"workflowId": workflow_id}) if workflow_id else ""


def _link(visit: Visit, window: str) -> str:
    kept = {name: visit.query[name] for name in ("workflowId", "agentId") if name in visit.query}
    return "/reviews?" + urlencode(kept | {"window": window})


async def _queues(visit: Visit) -> tuple[list[Queue], str]:
    after = read_cursor(visit.query.get("cursor"))
    queues = visit.host.feedback.queues
    found, last = await queues.page(visit.tenant, after, PAGE_QUEUES)
    told = [await queues.read(visit.tenant, queue.queue_id) for queue in found]
    return told, "" if last is None else "/reviews?" + urlencode({"cursor": write_cursor(last)})


PAGES: Final = (
    Page(name="reviews", path="/reviews", get=show_reviews, scope="runs:read", offered=offered),
)
