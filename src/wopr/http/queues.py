"""Review queues: runs that wait for people's judgment."""

from __future__ import annotations

from wopr.http.answers import Answer, ok
from wopr.http.exchange import Exchange
from wopr.http.feedback import offered
from wopr.http.operation import Operation
from wopr.http.paging import PAGE_DEFAULT, PAGE_MOST, PAGING, read_cursor, write_cursor
from wopr.http.runs import IDEMPOTENCY_KEY, RUN_ERRORS, run_id
from wopr.protocol.documents import UNSET
from wopr.protocol.reviews import CreateQueue, CreateReview, Queue, QueueItem, ReviewTaken
from wopr.protocol.runs import Page
from wopr.runtime.feedback import ANNOTATE


async def create_queue(exchange: Exchange) -> Answer:
    """Open a queue over chosen runs, or over those that a saved filter finds now and later."""
    request = await exchange.document(CreateQueue)
    await exchange.catch_up(*(request.run_ids or ()))
    queues = exchange.host.feedback.queues
    return ok(await queues.create(exchange.tenant, exchange.caller.key_id, request), 201)


async def list_queues(exchange: Exchange) -> Answer:
    """List the tenant's queues, newest first."""
    limit = exchange.whole_number("limit", PAGE_DEFAULT, least=1, most=PAGE_MOST)
    after = read_cursor(exchange.query.get("cursor"))
    queues, last = await exchange.host.feedback.queues.page(exchange.tenant, after, limit)
    cursor = UNSET if last is None else write_cursor(last)
    return ok(Page(items=queues, next_cursor=cursor))


async def get_queue(exchange: Exchange) -> Answer:
    """Read a queue, its progress and how far its reviewers agree."""
    name = exchange.path["queue_id"]
    return ok(await exchange.host.feedback.queues.read(exchange.tenant, name))


async def next_item(exchange: Exchange) -> Answer:
    """Hold the next run for the caller until the lock runs out; 204 when nothing is left.

    A caller who holds a run gets the same one again, with a new lock.
    """
    item = await exchange.host.feedback.queues.take(
        exchange.tenant, exchange.path["queue_id"], exchange.caller.key_id
    )
    return Answer(204) if item is None else ok(item)


async def finish_item(exchange: Exchange) -> Answer:
    """Take the caller's review of a run: the annotations that the rubric asks for."""
    queues = exchange.host.feedback.queues
    queue = await queues.find(exchange.tenant, exchange.path["queue_id"])
    request = await exchange.document(CreateReview)
    by = exchange.caller.key_id
    return ok(await queues.finish(exchange.tenant, queue, run_id(exchange), by, request))


OPERATIONS = (
    Operation(
        name="createQueue",
        method="POST",
        path="/v1/queues",
        handler=create_queue,
        summary="Open a review queue",
        tag="feedback",
        scope="runs:annotate",
        body=CreateQueue,
        success=201,
        answer=Queue,
        errors=(400, *RUN_ERRORS, 409, 413, 415, 501),
        parameters=(IDEMPOTENCY_KEY,),
        is_extension=True,
        offered=offered,
    ),
    Operation(
        name="listQueues",
        method="GET",
        path="/v1/queues",
        handler=list_queues,
        summary="List review queues",
        tag="feedback",
        scope="runs:read",
        answer=Page,
        errors=(400, 401, 403, 501),
        parameters=PAGING,
        is_extension=True,
        offered=offered,
    ),
    Operation(
        name="getQueue",
        method="GET",
        path="/v1/queues/{queue_id}",
        handler=get_queue,
        summary="Read a review queue and its progress",
        tag="feedback",
        scope="runs:read",
        answer=Queue,
        errors=(*RUN_ERRORS, 501),
        is_extension=True,
        offered=offered,
    ),
    Operation(
        name="nextQueueItem",
        method="POST",
        path="/v1/queues/{queue_id}/items:next",
        handler=next_item,
        summary="Take the next run to review",
        tag="feedback",
        scope="runs:annotate",
        answer=QueueItem,
        other_answers=(204,),
        errors=(400, *RUN_ERRORS, 501),
        parameters=(IDEMPOTENCY_KEY,),
        is_extension=True,
        offered=offered,
    ),
    Operation(
        name="finishQueueItem",
        method="POST",
        path="/v1/queues/{queue_id}/items/{run_id}:done",
        handler=finish_item,
        summary="Finish the review of a run",
        tag="feedback",
        scope="runs:annotate",
        body=CreateReview,
        answer=ReviewTaken,
        errors=(400, *RUN_ERRORS, 409, 413, 415, 501),
        parameters=(IDEMPOTENCY_KEY,),
        is_extension=True,
        offered=offered,
        action=ANNOTATE,
    ),
)
