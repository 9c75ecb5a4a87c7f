"""Annotations of runs (RFC 0056), and what they add up to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import accumulate

from wopr.http.answers import JSON, Answer, Stream, ok
from wopr.http.exchange import Exchange
from wopr.http.operation import Operation, Parameter
from wopr.http.paging import PAGE_MOST, read_cursor, write_cursor
from wopr.http.run_filters import instant
from wopr.http.runs import IDEMPOTENCY_KEY, RUN_ERRORS, run_id
from wopr.protocol.annotations import ActingAnnotationCreate, Annotation, AnnotationList
from wopr.protocol.documents import Unset
from wopr.protocol.errors import NotProvided, Refused
from wopr.protocol.reviews import SUMMARY_BY, FeedbackSummary, SummaryBy
from wopr.runtime.feedback import ANNOTATE, Author
from wopr.runtime.settings import Settings
from wopr.store.port.feedback import AnnotationRow

# An annotation can have 200 kB: longer lists are sent in parts, and a page ends with the annotation
# that brings it to so many bytes.
LISTED_AT_ONCE = 50
PAGE_BYTES = 1024 * 1024
CAPABILITY = "host.feedback"
# In no role: an operator grants it by name.
ACTOR_SCOPE = "annotations:actor"
_GROUPINGS: dict[str, SummaryBy] = {name: name for name in SUMMARY_BY}


def offered(settings: Settings) -> None:
    """Answer 501 on a host where feedback is switched off."""
    if not settings.feedback:
        raise NotProvided("feedback is switched off on this host", requiredCapability=CAPABILITY)


async def annotate_run(exchange: Exchange) -> Answer:
    """Say what the caller thinks of a run, one of its events or one of its nodes.

    The run may be live or over; it is not changed. Readers that stream the run get a
    `run.annotated` frame. A key with the scope `annotations:actor` may name another `actor`, such
    as the id of an agent.
    """
    run = await exchange.host.readers.row(exchange.tenant, run_id(exchange))
    request = await exchange.document(ActingAnnotationCreate)
    body = await exchange.host.feedback.annotator.annotate(
        exchange.tenant, run, _author(exchange, request), request, exchange.remember
    )
    return Answer(201, body)


def _author(exchange: Exchange, request: ActingAnnotationCreate) -> Author:
    """Who annotates: the caller's key, or whom the request names if the key may name anybody."""
    credential = exchange.caller.key_id
    if isinstance(request.actor, Unset):
        return Author(actor=credential)
    if not exchange.caller.may(ACTOR_SCOPE):
        raise Refused(
            f"unknown field `actor`: only a key with the scope {ACTOR_SCOPE} may name one",
            field="actor",
        )
    return Author(actor=request.actor.principal_ref, credential=credential, source="agent")


async def list_annotations(exchange: Exchange) -> Answer | Stream:
    """List a run's annotations, oldest first.

    All of them, unless `limit` asks for a page; then a `Link` header with `rel="next"` leads to
    the next one.
    """
    name = run_id(exchange)
    await exchange.host.readers.row(exchange.tenant, name)
    after = read_cursor(exchange.query.get("cursor"))
    if "limit" in exchange.query:
        return await _page(exchange, name, after)
    store = exchange.host.store
    rows = await store.annotations(exchange.tenant, name, after, LISTED_AT_ONCE)
    if len(rows) < LISTED_AT_ONCE:
        return Answer(200, _list(rows), headers={"cache-control": "no-store"})
    return Stream(_whole_list(exchange, name, rows), JSON, is_document=True)


async def _page(exchange: Exchange, name: str, after: tuple[int, str] | None) -> Answer:
    limit = exchange.whole_number("limit", PAGE_MOST, least=1, most=PAGE_MOST)
    rows = await exchange.host.store.annotations(exchange.tenant, name, after, limit + 1)
    sizes = accumulate(len(row.body) for row in rows)
    page = rows[: 1 + sum(size < PAGE_BYTES for size in sizes)][:limit]
    headers = {"cache-control": "no-store"}
    if len(page) < len(rows):
        cursor = write_cursor(_place(page[-1]))
        path = f"/v1/runs/{name}/annotations?limit={limit}&cursor={cursor}"
        headers["link"] = f'<{path}>; rel="next"'
    return Answer(200, _list(page), headers=headers)


async def _whole_list(
    exchange: Exchange, name: str, rows: list[AnnotationRow]
) -> AsyncIterator[bytes]:
    """A list that is too long to hold, sent page after page."""
    opening = b'{"annotations":['
    while rows:
        yield opening + _bodies(rows)
        opening = b","
        rows = await exchange.host.store.annotations(
            exchange.tenant, name, _place(rows[-1]), LISTED_AT_ONCE
        )
    yield b"]}"


def _list(rows: list[AnnotationRow]) -> bytes:
    return b'{"annotations":[%b]}' % _bodies(rows)


def _bodies(rows: list[AnnotationRow]) -> bytes:
    return b",".join(row.body for row in rows)


def _place(row: AnnotationRow) -> tuple[int, str]:
    return row.created_at, row.annotation_id


async def feedback_summary(exchange: Exchange) -> Answer:
    """Count annotations, with the mean rating and the rates of corrections, flags and interventions.

    A rate is a share of the runs that were created in the window. The window is widened to whole
    hours; without `since` it is the last thirty days.
    """
    asked = exchange.query.get("by", "workflow")
    by = _GROUPINGS.get(asked)
    if by is None:
        raise Refused(f"by must be one of {', '.join(SUMMARY_BY)}", field="by")
    await exchange.host.fleet.observers.catch_up_all(exchange.tenant)
    summary = await exchange.host.feedback.summaries.read(
        exchange.tenant,
        by,
        since=instant(exchange, "since"),
        until=instant(exchange, "until"),
        workflow_id=exchange.query.get("workflowId"),
        agent_id=exchange.query.get("agentId"),
    )
    return ok(summary)


_TIME = {"type": "string", "format": "date-time"}

OPERATIONS = (
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
        answer=Annotation,
        errors=(400, *RUN_ERRORS, 409, 413, 415, 501),
        parameters=(IDEMPOTENCY_KEY,),
        remembers=True,
        offered=offered,
        action=ANNOTATE,
    ),
    Operation(
        name="listAnnotations",
        method="GET",
        path="/v1/runs/{run_id}/annotations",
        handler=list_annotations,
        summary="List a run's annotations",
        tag="feedback",
        scope="runs:read",
        answer=AnnotationList,
        errors=(400, *RUN_ERRORS, 501),
        parameters=(
            Parameter(name="cursor", description="Where to go on.", schema={"type": "string"}),
            Parameter(
                name="limit",
                description="How many at most; without it, all of them.",
                schema={"type": "integer", "minimum": 1, "maximum": PAGE_MOST},
            ),
        ),
        offered=offered,
    ),
    Operation(
        name="feedbackSummary",
        method="GET",
        path="/v1/feedback/summary",
        handler=feedback_summary,
        summary="Count annotations by workflow, agent, node, signal or time",
        tag="feedback",
        scope="runs:read",
        answer=FeedbackSummary,
        errors=(400, 401, 403, 501),
        parameters=(
            Parameter(
                name="by",
                description=f"One of {', '.join(SUMMARY_BY)}.",
                schema={"type": "string", "enum": list(SUMMARY_BY), "default": "workflow"},
            ),
            Parameter(name="since", description="Stored at or after it.", schema=_TIME),
            Parameter(name="until", description="Stored before it.", schema=_TIME),
            Parameter(name="workflowId", description="Of its runs.", schema={"type": "string"}),
            Parameter(name="agentId", description="Of its work.", schema={"type": "string"}),
        ),
        is_extension=True,
        offered=offered,
    ),
)
