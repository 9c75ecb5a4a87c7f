"""Review queues: open one, see how far it is, take a run and say what the rubric asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from wopr.console.form import Form, document
from wopr.console.page import Page
from wopr.console.queue_form import ENDED, queue_request, review_request
from wopr.console.run_view import look
from wopr.console.runs_page import FEEDBACK
from wopr.console.visit import Visit
from wopr.console.wait_page import require_read
from wopr.http.answers import Answer
from wopr.http.exchange import whole_number
from wopr.http.feedback import offered
from wopr.http.runs import run_id
from wopr.http.workflows import newest_workflows
from wopr.protocol.annotations import SIGNAL_KINDS
from wopr.protocol.errors import Conflict, NotFound, Refused, WoprError
from wopr.protocol.reviews import CreateQueue, CreateReview, Queue
from wopr.protocol.times import to_millis
from wopr.runtime.feedback import ANNOTATE

SCOPE: Final = "runs:annotate"
_SUGGESTED: Final = 200


async def ask_queue(visit: Visit) -> Answer:
    """Ask what a new queue is over; the query may say it in advance."""
    return await _ask(visit, Form(visit.query))


async def create_queue(visit: Visit) -> Answer:
    """Open a queue, and go to its page."""
    form = await visit.form()
    try:
        request = document(queue_request(form), CreateQueue)
        queue = await visit.host.feedback.queues.create(visit.tenant, visit.caller.key_id, request)
    except (Refused, NotFound) as refused:
        return await _ask(visit, form, refused)
    return visit.redirect(f"{_path(queue.queue_id)}?done=opened")


async def _ask(visit: Visit, form: Form, refused: WoprError | None = None) -> Answer:
    workflows, _ = await newest_workflows(visit.host.store, visit.tenant, None, _SUGGESTED)
    return await visit.page(
        "queue_new.html",
        200 if refused is None else 400,
        form=form,
        kinds=SIGNAL_KINDS,
        statuses=ENDED,
        feedback=FEEDBACK,
        workflows=[each.id for each in workflows],
        is_new=refused is None,
        problem="" if refused is None else visit.exchange.redactor.text(refused.message),
    )


async def show_queue(visit: Visit) -> Answer:
    """Show a queue: what it asks, how far it is, how far its reviewers agree."""
    queue = await _queue(visit)
    return await visit.page("queue.html", queue=queue, is_mine=_admits(visit, queue))


async def take_next(visit: Visit) -> Answer:
    """Hold the next run for whoever asks, and go to it."""
    queue = await _queue(visit)
    return await _next(visit, queue, "empty")


async def to_queue(visit: Visit) -> Answer:
    """The button is on the queue's page."""
    queue = await _queue(visit)
    return visit.redirect(_path(queue.queue_id))


async def _next(visit: Visit, queue: Queue, done: str) -> Answer:
    item = await visit.host.feedback.queues.take(visit.tenant, queue.queue_id, visit.caller.key_id)
    if item is None:
        return visit.redirect(f"{_path(queue.queue_id)}?done={done}")
    until = to_millis(item.locked_until)
    place = f"{_path(queue.queue_id)}/items/{quote(item.run_id, safe='')}"
    return visit.redirect(f"{place}?until={until}")


async def show_item(visit: Visit) -> Answer:
    """Show a run of a queue with the rubric's form beside it."""
    return await _item(visit, Form({}))


async def finish_item(visit: Visit) -> Answer:
    """Take a review, and go on to the next run or back to the queue."""
    require_read(visit)
    queue, name, form = await _queue(visit), run_id(visit.exchange), await visit.form()
    await visit.host.readers.row(visit.tenant, name)
    by = visit.caller.key_id
    try:
        request = document({"annotations": review_request(queue, form)}, CreateReview)
        await visit.host.feedback.queues.finish(visit.tenant, queue, name, by, request)
    except (Refused, Conflict, NotFound) as refused:
        return await _item(visit, form, refused)
    if form.get("then") == "stop":
        return visit.redirect(f"{_path(queue.queue_id)}?done=reviewed")
    return await _next(visit, queue, "finished")


async def _item(visit: Visit, form: Form, refused: WoprError | None = None) -> Answer:
    require_read(visit)
    queue = await _queue(visit)
    view = await look(visit, run_id(visit.exchange))
    until = form.get("until") or visit.query.get("until")
    return await visit.page(
        "queue_item.html",
        200 if refused is None else refused.status,
        queue=queue,
        view=view,
        run=view.snapshot,
        form=form,
        is_mine=_admits(visit, queue),
        until=None if not until else whole_number("until", until),
        problem="" if refused is None else visit.exchange.redactor.text(refused.message),
    )


async def _queue(visit: Visit) -> Queue:
    return await visit.host.feedback.queues.read(visit.tenant, visit.exchange.path["queue_id"])


def _admits(visit: Visit, queue: Queue) -> bool:
    reviewers: Sequence[str] = queue.reviewers
    return visit.may(SCOPE) and (not reviewers or visit.caller.key_id in reviewers)


def _path(queue_id: str) -> str:
    return f"/reviews/queues/{quote(queue_id, safe='')}"


PAGES: Final = (
    Page(
        name="create-queue",
        path="/reviews/queues/new",
        get=ask_queue,
        post=create_queue,
        has_large_form=True,
        scope=SCOPE,
        offered=offered,
    ),
    Page(
        name="queue",
        path="/reviews/queues/{queue_id}",
        get=show_queue,
        scope="runs:read",
        offered=offered,
    ),
    Page(
        name="next-item",
        path="/reviews/queues/{queue_id}/next",
        get=to_queue,
        post=take_next,
        scope=SCOPE,
        offered=offered,
    ),
    Page(
        name="review-item",
        path="/reviews/queues/{queue_id}/items/{run_id}",
        get=show_item,
        post=finish_item,
        has_large_form=True,
        scope=SCOPE,
        offered=offered,
        action=ANNOTATE,
    ),
)
