"""Pages of review queues: create a queue, show progress, review a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from wopr.console.forms import Form, document
from wopr.console.page import Page, PageRequest
from wopr.console.runs.feedback import signal_of
from wopr.console.runs.list import FEEDBACK, feedback_filter
from wopr.console.runs.view import load_run_view
from wopr.feedback.annotations import ANNOTATE_ACTION
from wopr.http.request import whole_number
from wopr.http.response import Response
from wopr.http.routes.feedback import check_feedback_enabled
from wopr.http.routes.runs import run_id_of
from wopr.http.routes.workflows import newest_workflows
from wopr.protocol.documents import JsonObject, to_millis
from wopr.protocol.errors import Conflict, NotFound, Refused, WoprError
from wopr.protocol.resources.annotations import SIGNAL_KINDS
from wopr.protocol.resources.reviews import CreateQueue, CreateReview, Queue
from wopr.protocol.runs import RUN_STATUSES, TERMINAL

# The statuses of ended runs, in the order of the form.
ENDED: Final = tuple(status for status in RUN_STATUSES if status in TERMINAL)


def queue_request(form: Form) -> JsonObject:
    """Return the request for a new queue."""
    chosen = _lines(form.get("runIds"))
    over: JsonObject = {"runIds": chosen} if chosen else {"filter": _filter(form)}
    return {
        "name": form.get("name"),
        "rubric": _rubric(form),
        "reviewers": _lines(form.get("reviewers")),
        "overlap": _number(form, "overlap"),
        "lockMinutes": _number(form, "lockMinutes"),
        "mostItems": _number(form, "mostItems"),
        **over,
    }


def _filter(form: Form) -> JsonObject:
    given = {name: form.get(name) for name in ("workflowId", "tag", "label")}
    status, feedback = form.get("status"), form.get("feedback")
    chosen: JsonObject = {name: value for name, value in given.items() if value}
    if feedback:
        chosen |= {name: value == "true" for name, value in feedback_filter(feedback).items()}
    return chosen | {"status": [status] if status else list(ENDED)}


def _rubric(form: Form) -> list[JsonObject]:
    kinds = [kind for kind in SIGNAL_KINDS if form.get(f"ask.{kind}")]
    if not kinds:
        raise Refused("rubric: select at least one kind of feedback", field="rubric")
    return [_rubric_item(kind, form) for kind in kinds]


def _rubric_item(kind: str, form: Form) -> JsonObject:
    item: JsonObject = {
        "kind": kind,
        "question": form.get(f"question.{kind}"),
        "required": bool(form.get(f"required.{kind}")),
    }
    labels = _lines(form.get("labels")) if kind == "label" else []
    return item | ({"labels": labels} if labels else {})


def _lines(raw: str) -> list[str]:
    """Return the entries of a list, separated by commas or line breaks."""
    return [entry.strip() for entry in raw.replace(",", "\n").splitlines() if entry.strip()]


def _number(form: Form, name: str) -> int | None:
    raw = form.get(name)
    return whole_number(name, raw, least=1) if raw else None


def review_request(queue: Queue, form: Form) -> list[JsonObject]:
    """Return the annotations of a filled rubric. The note belongs to the first."""
    signals = [
        signal_of(item.kind, form, item.kind) for item in queue.rubric if form.get(item.kind)
    ]
    if not signals:
        raise Refused("Answer at least one question of the rubric.", field="rubric")
    note = form.get("note")
    annotations: list[JsonObject] = [{"signal": signal} for signal in signals]
    if note:
        annotations[0]["note"] = note
    return annotations


READ, REVIEW = "runs:read", "runs:annotate"
_SUGGESTED: Final = 200


async def ask_queue(request: PageRequest) -> Response:
    """Show the form for a new queue. The query may fill in fields."""
    return await _form_page(request, Form(request.query))


async def create_queue(request: PageRequest) -> Response:
    """Create a queue and redirect to its page."""
    form = await request.form()
    try:
        body = document(queue_request(form), CreateQueue)
        queue = await request.host.feedback.queues.create(
            request.tenant, request.caller.key_id, body
        )
    except (Refused, NotFound) as refused:
        return await _form_page(request, form, refused)
    return request.redirect(f"{_path(queue.queue_id)}?done=opened")


async def _form_page(
    request: PageRequest, form: Form, refused: WoprError | None = None
) -> Response:
    workflows, _ = await newest_workflows(request.host.store, request.tenant, None, _SUGGESTED)
    return await request.page(
        "queue_new.html",
        200 if refused is None else 400,
        form=form,
        kinds=SIGNAL_KINDS,
        statuses=ENDED,
        feedback=FEEDBACK,
        workflows=[each.id for each in workflows],
        is_new=refused is None,
        problem="" if refused is None else request.http.redactor.text(refused.message),
    )


async def show_queue(request: PageRequest) -> Response:
    """Show a queue: rubric, progress and agreement of its reviewers."""
    queue = await _queue(request)
    return await request.page("queue.html", queue=queue, is_mine=_may_review(request, queue))


async def take_next(request: PageRequest) -> Response:
    """Lock the next run for the signed-in key and redirect to it."""
    queue = await _queue(request)
    return await _take_next(request, queue, "empty")


async def redirect_to_queue(request: PageRequest) -> Response:
    """Redirect to the page of the queue, which has the form."""
    queue = await _queue(request)
    return request.redirect(_path(queue.queue_id))


async def _take_next(request: PageRequest, queue: Queue, done: str) -> Response:
    item = await request.host.feedback.queues.take(
        request.tenant, queue.queue_id, request.caller.key_id
    )
    if item is None:
        return request.redirect(f"{_path(queue.queue_id)}?done={done}")
    until = to_millis(item.locked_until)
    place = f"{_path(queue.queue_id)}/items/{quote(item.run_id, safe='')}"
    return request.redirect(f"{place}?until={until}")


async def show_item(request: PageRequest) -> Response:
    """Show a run of a queue beside the form of the rubric."""
    return await _item_page(request, Form({}))


async def finish_item(request: PageRequest) -> Response:
    """Store a review and redirect to the next run or to the queue."""
    request.require(READ)
    queue, run_id, form = await _queue(request), run_id_of(request.http), await request.form()
    await request.host.run_reader.row(request.tenant, run_id)
    by = request.caller.key_id
    try:
        body = document({"annotations": review_request(queue, form)}, CreateReview)
        await request.host.feedback.queues.finish(request.tenant, queue, run_id, by, body)
    except (Refused, Conflict, NotFound) as refused:
        return await _item_page(request, form, refused)
    if form.get("then") == "stop":
        return request.redirect(f"{_path(queue.queue_id)}?done=reviewed")
    return await _take_next(request, queue, "finished")


async def _item_page(
    request: PageRequest, form: Form, refused: WoprError | None = None
) -> Response:
    request.require(READ)
    queue = await _queue(request)
    view = await load_run_view(request, run_id_of(request.http))
    until = form.get("until") or request.query.get("until")
    return await request.page(
        "queue_item.html",
        200 if refused is None else refused.status,
        queue=queue,
        view=view,
        run=view.snapshot,
        form=form,
        is_mine=_may_review(request, queue),
        until=None if not until else whole_number("until", until),
        problem="" if refused is None else request.http.redactor.text(refused.message),
    )


async def _queue(request: PageRequest) -> Queue:
    return await request.host.feedback.queues.read(request.tenant, request.http.path["queue_id"])


def _may_review(request: PageRequest, queue: Queue) -> bool:
    reviewers: Sequence[str] = queue.reviewers
    return request.may(REVIEW) and (not reviewers or request.caller.key_id in reviewers)


def _path(queue_id: str) -> str:
    return f"/reviews/queues/{quote(queue_id, safe='')}"


PAGES: Final = (
    Page(
        name="create-queue",
        path="/reviews/queues/new",
        get=ask_queue,
        post=create_queue,
        has_large_form=True,
        scope=REVIEW,
        check_enabled=check_feedback_enabled,
    ),
    Page(
        name="queue",
        path="/reviews/queues/{queue_id}",
        get=show_queue,
        scope=READ,
        check_enabled=check_feedback_enabled,
    ),
    Page(
        name="next-item",
        path="/reviews/queues/{queue_id}/next",
        get=redirect_to_queue,
        post=take_next,
        scope=REVIEW,
        check_enabled=check_feedback_enabled,
    ),
    Page(
        name="review-item",
        path="/reviews/queues/{queue_id}/items/{run_id}",
        get=show_item,
        post=finish_item,
        has_large_form=True,
        scope=REVIEW,
        check_enabled=check_feedback_enabled,
        action=ANNOTATE_ACTION,
    ),
)
