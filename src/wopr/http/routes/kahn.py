"""Routes of KAHN: the fleet, KAHN lines in and out, and OpenTelemetry traces in."""

from __future__ import annotations

import zlib
from typing import Final, Literal

from msgspec.structs import replace

from wopr.http.operation import PAGING, Operation, Parameter, page_limit, read_cursor, write_cursor
from wopr.http.request import Request, WrongMediaType
from wopr.http.response import JSON, Response, StreamResponse, error_envelope, error_response, ok
from wopr.http.routes.runs import RUN_ERRORS, run_id_of
from wopr.kahn.otlp.service import ExportResult
from wopr.kahn.otlp.spans import Encoding
from wopr.kahn.statistics import DEFAULT_WINDOW, WINDOWS, read_window
from wopr.kahn.views import add_interrupts
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import Refused, TooLarge, WoprError
from wopr.protocol.resources.fleet import (
    MAX_ROWS,
    AgentRuns,
    Aggregate,
    Flakiness,
    FleetRuns,
    Ingested,
    RunSteps,
    Sort,
    TenantSelf,
    Window,
)

NDJSON: Final = "application/x-ndjson"
LINE_MEDIA_TYPES: Final = (NDJSON, "application/json-lines", "text/plain")
_INGEST_ERRORS: Final = (400, 401, 403, 409, 410, 413, 415)


async def ingest_transitions(request: Request) -> Response:
    """Store KAHN lines of both families, one JSON object per line.

    All lines are stored or none. Lines that are already stored are counted as duplicates, so that a
    push can be repeated, whole or in other parts. A line that contradicts a stored line is refused.
    """
    return await _ingest(request, "any")


async def ingest_agent_transitions(request: Request) -> Response:
    """Store KAHN lines of the agent family only."""
    return await _ingest(request, "agent")


async def _ingest(request: Request, family: Literal["any", "agent"]) -> Response:
    fleet = request.host.fleet
    fleet.pushes.take(request.tenant)
    request.host.quotas.check_push(request.tenant)
    _require_media_type(request)
    body = await request.body(fleet.max_push_bytes)
    return ok(await fleet.ingest.push(request.tenant, body, family))


def _require_media_type(request: Request) -> None:
    media = NDJSON if request.media_type is None else request.media_type
    if media not in LINE_MEDIA_TYPES:
        raise WrongMediaType(
            f"Content-Type must be one of {', '.join(LINE_MEDIA_TYPES)}, not {media!r}",
            field="Content-Type",
        )


INGEST_OPERATIONS = (
    Operation(
        name="ingestTransitions",
        method="POST",
        path="/v1/ingest/transitions",
        handler=ingest_transitions,
        summary="Push KAHN lines of either family",
        tag="fleet",
        scope="fleet:ingest",
        body_types=LINE_MEDIA_TYPES,
        response=Ingested,
        errors=_INGEST_ERRORS,
        is_extension=True,
    ),
    Operation(
        name="ingestAgentTransitions",
        method="POST",
        path="/v1/ingest/agent-transitions",
        handler=ingest_agent_transitions,
        summary="Push KAHN lines of the agent family",
        tag="fleet",
        scope="fleet:ingest",
        body_types=LINE_MEDIA_TYPES,
        response=Ingested,
        errors=_INGEST_ERRORS,
        is_extension=True,
    ),
)


async def get_transitions(request: Request) -> StreamResponse:
    """Read a run as KAHN lines: the work and results of its agents, and its feedback.

    An active run has the lines so far. An observed run has exactly the lines that were pushed; its
    producer's run id is accepted too.
    """
    transitions = request.host.fleet.transitions
    run = await transitions.find(request.tenant, run_id_of(request))
    return StreamResponse(transitions.chunks(request.tenant, run.run_id), NDJSON, is_document=True)


TRANSITION_OPERATIONS = (
    Operation(
        name="getTransitions",
        method="GET",
        path="/v1/runs/{run_id}/transitions",
        handler=get_transitions,
        summary="Read a run as KAHN lines",
        tag="fleet",
        scope="runs:read",
        content_type=NDJSON,
        errors=RUN_ERRORS,
        is_extension=True,
        read_level="sensitive",
    ),
)


PROTOBUF: Final = "application/x-protobuf"
OTLP_MEDIA_TYPES: Final[dict[str, Encoding]] = {PROTOBUF: "protobuf", JSON: "json"}
# Each gzip member causes a copy of the rest. Exporters write only one.
MAX_GZIP_MEMBERS: Final = 16
_GZIP: Final = 16 + zlib.MAX_WBITS
# HTTP statuses as `google.rpc` codes; all others are `_INTERNAL`.
_CODES: Final = {400: 3, 413: 3, 415: 3, 429: 8, 503: 14}
_INTERNAL: Final = 13


async def export_traces(request: Request) -> Response:
    """Store an OTLP export of traces. Spans of agents become observed runs of the fleet.

    The response has the encoding of the request. Other spans are ignored. An export may be
    repeated, and spans may arrive in any order.
    """
    encoding = _encoding(request)
    try:
        result = await _ingest_traces(request, encoding)
    except WoprError as error:
        if encoding == "json":
            raise
        return _protobuf_error(request, error)
    return _export_response(result, encoding)


def _encoding(request: Request) -> Encoding:
    declared = request.header(b"content-type") or PROTOBUF
    media = declared.partition(";")[0].strip().lower()
    if media not in OTLP_MEDIA_TYPES:
        raise WrongMediaType(
            f"Content-Type must be {PROTOBUF} or {JSON}, not {media!r}", field="Content-Type"
        )
    return OTLP_MEDIA_TYPES[media]


async def _ingest_traces(request: Request, encoding: Encoding) -> ExportResult:
    fleet = request.host.fleet
    fleet.pushes.take(request.tenant)
    request.host.quotas.check_push(request.tenant)
    body = await request.body()
    content_encoding = (request.header(b"content-encoding") or "identity").strip().lower()
    if content_encoding == "gzip":
        body = decompress_gzip(body, request.host.settings.max_body_bytes)
    elif content_encoding != "identity":
        raise WrongMediaType(
            f"Content-Encoding must be gzip or identity, not {content_encoding!r}",
            field="Content-Encoding",
        )
    return await fleet.trace_intake.take(request.tenant, body, encoding)


def decompress_gzip(compressed: bytes, limit: int) -> bytes:
    """Decompress gzip. Raises `TooLarge` as soon as the result is above the limit."""
    pieces: list[bytes] = []
    left = limit + 1
    for _ in range(MAX_GZIP_MEMBERS):
        stream = zlib.decompressobj(_GZIP)
        try:
            piece = stream.decompress(compressed, left)
        except zlib.error as fault:
            raise Refused("the body is not gzip", field="body") from fault
        pieces.append(piece)
        left -= len(piece)
        if left <= 0:
            raise TooLarge(
                f"the decompressed body may have at most {limit} bytes", field="body", limit=limit
            )
        if not stream.eof:
            raise Refused("the gzip body is incomplete", field="body")
        compressed = stream.unused_data
        if not compressed:
            return b"".join(pieces)
    raise Refused(f"the gzip body may have at most {MAX_GZIP_MEMBERS} members", field="body")


def _export_response(result: ExportResult, encoding: Encoding) -> Response:
    if encoding == "json":
        partial: JsonObject = {
            # 64-bit integers are strings in this encoding.
            "rejectedSpans": str(result.rejected),
            "errorMessage": result.message,
        }
        return ok({"partialSuccess": partial} if result.rejected else {})
    if not result.rejected:
        # An empty message has no bytes, so the content type is set here.
        return Response(200, headers={"content-type": PROTOBUF})
    # Imported here, because the import is slow.
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = result.rejected
    response.partial_success.error_message = result.message
    return Response(200, response.SerializeToString(), PROTOBUF)


def _protobuf_error(request: Request, error: WoprError) -> Response:
    """Return the error as a `google.rpc.Status`, with its usual status and headers."""
    from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # it has no stubs

    plain = error_response(error, request.redactor)
    code = _CODES.get(error.status, _INTERNAL)
    message = error_envelope(error, request.redactor).message
    body: bytes = Status(code=code, message=message).SerializeToString()
    return Response(plain.status, body, PROTOBUF, plain.headers)


OTLP_OPERATIONS = (
    Operation(
        name="exportTraces",
        method="POST",
        path="/v1/fleet/otlp/v1/traces",
        handler=export_traces,
        summary="Export OpenTelemetry traces into the fleet",
        tag="fleet",
        scope="fleet:ingest",
        body_types=tuple(OTLP_MEDIA_TYPES),
        content_type=PROTOBUF,
        other_content_types=(JSON,),
        error_types=(PROTOBUF,),
        errors=(400, 413, 415),
        is_extension=True,
    ),
)


DEFAULT_LINES, MAX_LINES = 200, 1000
_SORTS: Final[dict[str, Sort]] = {"runs": "runs", "severity": "severity"}
_READ_ERRORS: Final = (400, 401, 403)


async def aggregate_agents(request: Request) -> Response:
    """Show one row per agent: number of runs, outcomes, durations and convergence scores.

    Agents with the most runs come first. With `sort=severity`, those with the highest severity do.
    """
    asked = request.query.get("sort", "runs")
    sort = _SORTS.get(asked)
    if sort is None:
        raise Refused(f"sort must be one of {', '.join(_SORTS)}, not {asked[:40]!r}", field="sort")
    views = request.host.fleet.views
    return ok(await views.aggregate(request.tenant, _window(request), sort, _start(request)))


async def audit_flakiness(request: Request) -> Response:
    """Show one row per audit checkpoint, the highest flakiness first."""
    views = request.host.fleet.views
    return ok(await views.flakiness(request.tenant, _window(request), _start(request)))


async def list_agent_runs(request: Request) -> Response:
    """List an agent's runs, newest first."""
    views = request.host.fleet.views
    window, limit = _window(request), page_limit(request)
    agent_id, after = request.path["agent_id"], fleet_cursor(request)
    found = await views.agent_runs(request.tenant, agent_id, window, after, limit + 1)
    page = found[:limit]
    return ok(
        AgentRuns(
            agent_id=agent_id,
            window=window,
            runs=await add_interrupts(
                request.host.store, request.tenant, [views.agent_document(each) for each in page]
            ),
            next_cursor=(
                write_cursor((page[-1].last_event, page[-1].run_id)) if len(found) > limit else None
            ),
        )
    )


async def list_fleet_runs(request: Request) -> Response:
    """List KAHN runs, newest first."""
    limit = page_limit(request)
    found = await request.host.store.fleet_runs(request.tenant, fleet_cursor(request), limit + 1)
    page = found[:limit]
    views = request.host.fleet.views
    return ok(
        FleetRuns(
            runs=[views.run_document(request.tenant, each) for each in page],
            next_cursor=(
                write_cursor((page[-1].last_event, page[-1].run_id)) if len(found) > limit else None
            ),
        )
    )


async def get_fleet_run(request: Request) -> Response:
    """Read the history of a KAHN run, and the current state of its agents."""
    start = request.whole_number("line", 0)
    limit = request.whole_number("limit", DEFAULT_LINES, least=1, most=MAX_LINES)
    views = request.host.fleet.views
    found = await views.steps(request.tenant, run_id_of(request), start, limit)
    agents = await add_interrupts(request.host.store, request.tenant, found.agents)
    return ok(replace(found, agents=agents))


async def get_fleet_lines(request: Request) -> StreamResponse:
    """Read the lines of a KAHN run byte for byte, also of a run that retention has hidden."""
    run = await request.host.fleet.views.find(request.tenant, run_id_of(request), hidden=True)
    lines = request.host.store.fleet_lines(request.tenant, run.run_id)
    return StreamResponse(lines, NDJSON, is_document=True)


async def export_transitions(request: Request) -> StreamResponse:
    """Export all KAHN lines byte for byte, by run, including runs that retention has hidden."""
    return StreamResponse(request.host.fleet.views.export(request.tenant), NDJSON, is_document=True)


async def get_tenant_self(request: Request) -> Response:
    """Read the number of the tenant's runs in the fleet, and how much it may push now."""
    return ok(
        TenantSelf(
            agent_archived_runs=await request.host.store.fleet_size(request.tenant),
            rate_limit=request.host.fleet.pushes.snapshot(request.tenant),
        )
    )


def _window(request: Request) -> Window:
    return read_window(request.query.get("window", DEFAULT_WINDOW))


def _start(request: Request) -> int:
    return request.whole_number("start", 0)


def fleet_cursor(request: Request) -> tuple[int, str] | None:
    """Return the start of a page of runs."""
    # The times of producers may be negative.
    return read_cursor(request.query.get("cursor"), least=-(2**63))


WINDOW = Parameter(
    name="window",
    description="24h, 7d or all: runs whose last event is not older than this.",
    schema={"type": "string", "enum": list(WINDOWS), "default": DEFAULT_WINDOW},
)
START = Parameter(
    name="start",
    description=f"Number of rows to skip. A response has at most {MAX_ROWS}; see `next_start`.",
    schema={"type": "integer", "minimum": 0, "default": 0},
)

FLEET_OPERATIONS = (
    Operation(
        name="aggregateAgents",
        method="GET",
        path="/api/agent-runs/aggregate",
        handler=aggregate_agents,
        summary="Show statistics of every agent",
        tag="fleet",
        scope="fleet:read",
        response=Aggregate,
        errors=_READ_ERRORS,
        parameters=(
            WINDOW,
            Parameter(
                name="sort",
                description="`runs`: most runs first; `severity`: highest severity first.",
                schema={"type": "string", "enum": list(_SORTS), "default": "runs"},
            ),
            START,
        ),
        is_extension=True,
    ),
    Operation(
        name="auditFlakiness",
        method="GET",
        path="/api/audit-checkpoints/flakiness",
        handler=audit_flakiness,
        summary="Show the flakiness of every audit checkpoint",
        tag="fleet",
        scope="fleet:read",
        response=Flakiness,
        errors=_READ_ERRORS,
        parameters=(WINDOW, START),
        is_extension=True,
    ),
    Operation(
        name="listAgentRuns",
        method="GET",
        path="/api/agents/{agent_id}/agent-runs",
        handler=list_agent_runs,
        summary="List an agent's runs",
        tag="fleet",
        scope="fleet:read",
        response=AgentRuns,
        errors=(*_READ_ERRORS, 404),
        parameters=(WINDOW, *PAGING),
        is_extension=True,
    ),
    Operation(
        name="listFleetRuns",
        method="GET",
        path="/api/runs",
        handler=list_fleet_runs,
        summary="List KAHN runs",
        tag="fleet",
        scope="fleet:read",
        response=FleetRuns,
        errors=_READ_ERRORS,
        parameters=PAGING,
        is_extension=True,
    ),
    Operation(
        name="getFleetRun",
        method="GET",
        path="/api/runs/{run_id}",
        handler=get_fleet_run,
        summary="Read the history of a KAHN run",
        tag="fleet",
        scope="fleet:read",
        response=RunSteps,
        errors=(*_READ_ERRORS, 404),
        parameters=(
            Parameter(
                name="line",
                description="First line, counted from 0.",
                schema={"type": "integer", "minimum": 0, "default": 0},
            ),
            Parameter(
                name="limit",
                description="Maximum number of lines.",
                schema={
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_LINES,
                    "default": DEFAULT_LINES,
                },
            ),
        ),
        is_extension=True,
    ),
    Operation(
        name="getFleetLines",
        method="GET",
        path="/api/runs/{run_id}/transitions",
        handler=get_fleet_lines,
        summary="Read the lines of a KAHN run byte for byte",
        tag="fleet",
        scope="fleet:read",
        content_type=NDJSON,
        errors=(401, 403, 404),
        is_extension=True,
        read_level="sensitive",
    ),
    Operation(
        name="exportTransitions",
        method="GET",
        path="/v1/export/transitions",
        handler=export_transitions,
        summary="Export all KAHN lines",
        tag="fleet",
        scope="fleet:read",
        content_type=NDJSON,
        errors=(401, 403),
        is_extension=True,
        read_level="sensitive",
    ),
    Operation(
        name="getTenantSelf",
        method="GET",
        path="/api/self/tenant",
        handler=get_tenant_self,
        summary="Read how much the caller's tenant may push",
        tag="fleet",
        scope="",
        response=TenantSelf,
        errors=(401,),
        is_extension=True,
    ),
)

OPERATIONS = (
    *TRANSITION_OPERATIONS,
    *INGEST_OPERATIONS,
    *OTLP_OPERATIONS,
    *FLEET_OPERATIONS,
)
