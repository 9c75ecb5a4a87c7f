"""Routes of feedback: annotations (RFC 0056), summaries, review queues, judges and exports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import accumulate

from wopr.feedback.annotations import ANNOTATE_ACTION, Author
from wopr.http.operation import (
    MAX_PAGE_SIZE,
    PAGING,
    Operation,
    Parameter,
    page_limit,
    read_cursor,
    write_cursor,
)
from wopr.http.request import Request, whole_number
from wopr.http.response import JSON, Response, StreamResponse, ok
from wopr.http.routes.runs import (
    IDEMPOTENCY_KEY,
    RUN_ERRORS,
    RUN_FILTERS,
    run_filter,
    run_id_of,
    time_parameter,
)
from wopr.process.settings import Settings
from wopr.protocol.documents import UNSET, Unset
from wopr.protocol.errors import Forbidden, NotProvided, Refused
from wopr.protocol.resources.annotations import ActingAnnotationCreate, Annotation, AnnotationList
from wopr.protocol.resources.reviews import (
    EXPORT_FORMATS,
    SUMMARY_BY,
    CreateJudge,
    CreateQueue,
    CreateReview,
    ExportFormat,
    FeedbackSummary,
    Judge,
    Queue,
    QueueItem,
    ReviewTaken,
    SummaryBy,
)
from wopr.protocol.runs import Page
from wopr.store.port.feedback import AnnotationRow

# An annotation can have 200 kB, so longer lists are streamed, and a page ends with the annotation
# that reaches PAGE_BYTES.
LISTED_AT_ONCE = 50
PAGE_BYTES = 1024 * 1024
CAPABILITY = "host.feedback"
# No role includes this scope. An operator grants it by name.
ACTOR_SCOPE = "annotations:actor"
_GROUPINGS: dict[str, SummaryBy] = {name: name for name in SUMMARY_BY}


def check_feedback_enabled(settings: Settings) -> None:
    """Raise `NotProvided` if feedback is disabled on this host."""
    if not settings.feedback:
        raise NotProvided("feedback is disabled on this host", requiredCapability=CAPABILITY)


async def annotate_run(request: Request) -> Response:
    """Annotate a run, one of its events or one of its nodes.

    The run may be active or ended, and does not change. Its stream gets a `run.annotated` frame. A
    key with the scope `annotations:actor` may name another `actor`, such as the id of an agent.
    """
    run = await request.host.run_reader.row(request.tenant, run_id_of(request))
    document = await request.document(ActingAnnotationCreate)
    body = await request.host.feedback.annotator.annotate(
        request.tenant, run, _author(request, document), document, request.build_record
    )
    return Response(201, body)


def _author(request: Request, document: ActingAnnotationCreate) -> Author:
    """Return the author: the caller's key, or the named actor if the key may name one."""
    credential = request.caller.key_id
    if isinstance(document.actor, Unset):
        return Author(actor=credential)
    if not request.caller.may(ACTOR_SCOPE):
        raise Refused(
            f"unknown field `actor`: only a key with the scope {ACTOR_SCOPE} may name one",
            field="actor",
        )
    return Author(actor=document.actor.principal_ref, credential=credential, source="agent")


async def list_annotations(request: Request) -> Response | StreamResponse:
    """List a run's annotations, oldest first.

    Without `limit`, the list is complete. With `limit`, it is one page, and a `Link` header with
    `rel="next"` has the URL of the next page.
    """
    run_id = run_id_of(request)
    await request.host.run_reader.row(request.tenant, run_id)
    after = read_cursor(request.query.get("cursor"))
    if "limit" in request.query:
        return await _page(request, run_id, after)
    store = request.host.store
    rows = await store.annotations(request.tenant, run_id, after, LISTED_AT_ONCE)
    if len(rows) < LISTED_AT_ONCE:
        return Response(200, _list_body(rows), headers={"cache-control": "no-store"})
    return StreamResponse(_stream_list(request, run_id, rows), JSON, is_document=True)


async def _page(request: Request, run_id: str, after: tuple[int, str] | None) -> Response:
    limit = request.whole_number("limit", MAX_PAGE_SIZE, least=1, most=MAX_PAGE_SIZE)
    rows = await request.host.store.annotations(request.tenant, run_id, after, limit + 1)
    sizes = accumulate(len(row.body) for row in rows)
    page = rows[: 1 + sum(size < PAGE_BYTES for size in sizes)][:limit]
    headers = {"cache-control": "no-store"}
    if len(page) < len(rows):
        cursor = write_cursor(_position(page[-1]))
        path = f"/v1/runs/{run_id}/annotations?limit={limit}&cursor={cursor}"
        headers["link"] = f'<{path}>; rel="next"'
    return Response(200, _list_body(page), headers=headers)


async def _stream_list(
    request: Request, run_id: str, rows: list[AnnotationRow]
) -> AsyncIterator[bytes]:
    """Stream a long list in parts."""
    opening = b'{"annotations":['
    while rows:
        yield opening + _bodies(rows)
        opening = b","
        rows = await request.host.store.annotations(
            request.tenant, run_id, _position(rows[-1]), LISTED_AT_ONCE
        )
    yield b"]}"


def _list_body(rows: list[AnnotationRow]) -> bytes:
    return b'{"annotations":[%b]}' % _bodies(rows)


def _bodies(rows: list[AnnotationRow]) -> bytes:
    return b",".join(row.body for row in rows)


def _position(row: AnnotationRow) -> tuple[int, str]:
    return row.created_at, row.annotation_id


async def feedback_summary(request: Request) -> Response:
    """Count annotations, and compute the mean rating and rates.

    The rates are those of corrections, flags and interventions. A rate is the fraction of the runs
    created in the window. The window is extended to whole hours; without `since` it is the last
    thirty days.
    """
    asked = request.query.get("by", "workflow")
    by = _GROUPINGS.get(asked)
    if by is None:
        raise Refused(f"by must be one of {', '.join(SUMMARY_BY)}, not {asked[:40]!r}", field="by")
    await request.host.fleet.observed.catch_up_all(request.tenant)
    summary = await request.host.feedback.summaries.read(
        request.tenant,
        by,
        since=time_parameter(request, "since"),
        until=time_parameter(request, "until"),
        workflow_id=request.query.get("workflowId"),
        agent_id=request.query.get("agentId"),
    )
    return ok(summary)


_TIME = {"type": "string", "format": "date-time"}

ANNOTATION_OPERATIONS = (
    Operation(
        name="annotateRun",
        method="POST",
        path="/v1/runs/{run_id}/annotations",
        handler=annotate_run,
        summary="Annotate a run",
        tag="feedback",
        scope="runs:annotate",
        body=ActingAnnotationCreate,
        success=201,
        response=Annotation,
        errors=(400, *RUN_ERRORS, 409, 413, 415, 501),
        parameters=(IDEMPOTENCY_KEY,),
        stores_response=True,
        check_enabled=check_feedback_enabled,
        action=ANNOTATE_ACTION,
    ),
    Operation(
        name="listAnnotations",
        method="GET",
        path="/v1/runs/{run_id}/annotations",
        handler=list_annotations,
        summary="List a run's annotations",
        tag="feedback",
        scope="runs:read",
        response=AnnotationList,
        errors=(400, *RUN_ERRORS, 501),
        parameters=(
            Parameter(name="cursor", description="Start of the page.", schema={"type": "string"}),
            Parameter(
                name="limit",
                description="Maximum number of annotations. Default: all.",
                schema={"type": "integer", "minimum": 1, "maximum": MAX_PAGE_SIZE},
            ),
        ),
        check_enabled=check_feedback_enabled,
    ),
    Operation(
        name="feedbackSummary",
        method="GET",
        path="/v1/feedback/summary",
        handler=feedback_summary,
        summary="Count annotations by workflow, agent, node, signal or time",
        tag="feedback",
        scope="runs:read",
        response=FeedbackSummary,
        errors=(400, 401, 403, 501),
        parameters=(
            Parameter(
                name="by",
                description=f"One of {', '.join(SUMMARY_BY)}.",
                schema={"type": "string", "enum": list(SUMMARY_BY), "default": "workflow"},
            ),
            Parameter(
                name="since", description="Annotations stored at or after this time.", schema=_TIME
            ),
            Parameter(
                name="until", description="Annotations stored before this time.", schema=_TIME
            ),
            Parameter(
                name="workflowId",
                description="Annotations of runs of this workflow.",
                schema={"type": "string"},
            ),
            Parameter(
                name="agentId",
                description="Annotations of work of this agent.",
                schema={"type": "string"},
            ),
        ),
        is_extension=True,
        check_enabled=check_feedback_enabled,
    ),
)


async def create_queue(request: Request) -> Response:
    """Create a queue of the given runs, or of all current and later runs that match a filter."""
    document = await request.document(CreateQueue)
    await request.catch_up(*(document.run_ids or ()))
    queues = request.host.feedback.queues
    return ok(await queues.create(request.tenant, request.caller.key_id, document), 201)


async def list_queues(request: Request) -> Response:
    """List the tenant's queues, newest first."""
    limit = page_limit(request)
    after = read_cursor(request.query.get("cursor"))
    queues, last = await request.host.feedback.queues.page(request.tenant, after, limit)
    cursor = UNSET if last is None else write_cursor(last)
    return ok(Page(items=queues, next_cursor=cursor))


async def get_queue(request: Request) -> Response:
    """Read a queue, its progress and the agreement of its reviewers."""
    queues = request.host.feedback.queues
    return ok(await queues.read(request.tenant, request.path["queue_id"]))


async def next_item(request: Request) -> Response:
    """Lock the next run for the caller until the lock expires; 204 if no run is left.

    A caller with a locked run gets the same run again, with a new lock.
    """
    item = await request.host.feedback.queues.take(
        request.tenant, request.path["queue_id"], request.caller.key_id
    )
    return Response(204) if item is None else ok(item)


async def finish_item(request: Request) -> Response:
    """Store the caller's review of a run: the annotations that the rubric requires."""
    queues = request.host.feedback.queues
    queue = await queues.find(request.tenant, request.path["queue_id"])
    document = await request.document(CreateReview)
    by = request.caller.key_id
    return ok(await queues.finish(request.tenant, queue, run_id_of(request), by, document))


QUEUE_OPERATIONS = (
    Operation(
        name="createQueue",
        method="POST",
        path="/v1/queues",
        handler=create_queue,
        summary="Create a review queue",
        tag="feedback",
        scope="runs:annotate",
        body=CreateQueue,
        success=201,
        response=Queue,
        errors=(400, *RUN_ERRORS, 409, 413, 415, 501),
        parameters=(IDEMPOTENCY_KEY,),
        is_extension=True,
        check_enabled=check_feedback_enabled,
    ),
    Operation(
        name="listQueues",
        method="GET",
        path="/v1/queues",
        handler=list_queues,
        summary="List review queues",
        tag="feedback",
        scope="runs:read",
        response=Page,
        errors=(400, 401, 403, 501),
        parameters=PAGING,
        is_extension=True,
        check_enabled=check_feedback_enabled,
    ),
    Operation(
        name="getQueue",
        method="GET",
        path="/v1/queues/{queue_id}",
        handler=get_queue,
        summary="Read a review queue and its progress",
        tag="feedback",
        scope="runs:read",
        response=Queue,
        errors=(*RUN_ERRORS, 501),
        is_extension=True,
        check_enabled=check_feedback_enabled,
    ),
    Operation(
        name="nextQueueItem",
        method="POST",
        path="/v1/queues/{queue_id}/items:next",
        handler=next_item,
        summary="Take the next run to review",
        tag="feedback",
        scope="runs:annotate",
        response=QueueItem,
        other_statuses=(204,),
        errors=(400, *RUN_ERRORS, 501),
        parameters=(IDEMPOTENCY_KEY,),
        is_extension=True,
        check_enabled=check_feedback_enabled,
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
        response=ReviewTaken,
        errors=(400, *RUN_ERRORS, 409, 413, 415, 501),
        parameters=(IDEMPOTENCY_KEY,),
        is_extension=True,
        check_enabled=check_feedback_enabled,
        action=ANNOTATE_ACTION,
    ),
)


# A judge starts runs and annotates other runs, so its caller needs this scope too.
ANNOTATE_SCOPE = "runs:annotate"


async def create_judge(request: Request) -> Response:
    """Let a workflow judge finished runs. The results are stored as annotations of an agent.

    One run of the workflow is started for each finished run. Its outputs have a `rating`, `label`,
    `correction` or `flag`, and optionally a `note`.
    """
    if not request.caller.may(ANNOTATE_SCOPE):
        raise Forbidden(f"this key lacks the scope {ANNOTATE_SCOPE}", scopeRequired=ANNOTATE_SCOPE)
    document = await request.document(CreateJudge)
    feedback = request.host.feedback
    judge = await feedback.judges.create(request.tenant, request.caller.key_id, document)
    await request.host.audit.record(
        request.tenant,
        request.caller.key_id,
        "judge.create",
        judge.judge_id,
        agentId=judge.agent_id,
        workflowId=judge.workflow_id,
    )
    feedback.judge_task.wake()
    return ok(judge, 202)


async def get_judge(request: Request) -> Response:
    """Read the progress of a judge and the result of each run, or why it was skipped or failed."""
    limit = page_limit(request)
    cursor = request.query.get("cursor")
    after = -1 if cursor is None else whole_number("cursor", cursor)
    judge_id = request.path["judge_id"]
    judges = request.host.feedback.judges
    return ok(await judges.read(request.tenant, judge_id, after=after, limit=limit))


JUDGE_OPERATIONS = (
    Operation(
        name="createJudge",
        method="POST",
        path="/v1/judges",
        handler=create_judge,
        summary="Let a workflow judge finished runs",
        tag="feedback",
        scope="runs:create",
        body=CreateJudge,
        success=202,
        response=Judge,
        errors=(400, *RUN_ERRORS, 409, 413, 415, 501),
        parameters=(IDEMPOTENCY_KEY,),
        is_extension=True,
        check_enabled=check_feedback_enabled,
        action="judge.create",
    ),
    Operation(
        name="getJudge",
        method="GET",
        path="/v1/judges/{judge_id}",
        handler=get_judge,
        summary="Read the progress and results of a judge",
        tag="feedback",
        scope="runs:read",
        response=Judge,
        errors=(400, *RUN_ERRORS, 501),
        parameters=PAGING,
        is_extension=True,
        check_enabled=check_feedback_enabled,
    ),
)


_FORMATS: dict[str, ExportFormat] = {name: name for name in EXPORT_FORMATS}


async def export_runs(request: Request) -> StreamResponse:
    """Export runs, newest first: JSON lines with snapshot and annotations, or flat rows.

    The file is streamed, so its size is not limited. Parquet needs the extra `parquet`; without it
    the response is 501. If the connection is closed early, the file is incomplete.
    """
    asked = request.query.get("format", "jsonl")
    export_format = _FORMATS.get(asked)
    if export_format is None:
        raise Refused(
            f"format must be one of {', '.join(EXPORT_FORMATS)}, not {asked[:40]!r}", field="format"
        )
    where = run_filter(request)
    chunks = request.host.feedback.exports.chunks(request.tenant, where, export_format)
    return StreamResponse(chunks, EXPORT_FORMATS[export_format], is_document=True)


EXPORT_OPERATIONS = (
    Operation(
        name="exportRuns",
        method="GET",
        path="/v1/export/runs",
        handler=export_runs,
        summary="Export runs with their annotations",
        tag="feedback",
        scope="runs:read",
        content_type=EXPORT_FORMATS["jsonl"],
        other_content_types=(EXPORT_FORMATS["csv"], EXPORT_FORMATS["parquet"]),
        errors=(400, 401, 403, 501),
        parameters=(
            Parameter(
                name="format",
                description=f"One of {', '.join(EXPORT_FORMATS)}.",
                schema={"type": "string", "enum": list(EXPORT_FORMATS), "default": "jsonl"},
            ),
            *RUN_FILTERS,
        ),
        is_extension=True,
        read_level="sensitive",
    ),
)

OPERATIONS = (
    *ANNOTATION_OPERATIONS,
    *QUEUE_OPERATIONS,
    *JUDGE_OPERATIONS,
    *EXPORT_OPERATIONS,
)
