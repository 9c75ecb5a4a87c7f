"""Routes of runs: create, read, list, cancel, pause, resume, artifacts and debug bundle."""

from __future__ import annotations

import hashlib
from functools import partial

from wopr.http.operation import PAGING, Operation, Parameter, page_limit, read_cursor, write_cursor
from wopr.http.request import TRANSPORT, Request
from wopr.http.response import Response, ok, redact_response
from wopr.kahn.observed.service import run_source
from wopr.process.tenant_slots import INLINE_BYTES, run_by_size
from wopr.protocol.documents import UNSET, Unset, to_iso, to_millis
from wopr.protocol.errors import NotFound, Refused
from wopr.protocol.runs import (
    RUN_STATUSES,
    BulkCancel,
    BulkCancelAnswer,
    CancelAnswer,
    CancelRun,
    CreateRun,
    Page,
    PauseAnswer,
    PauseRun,
    ResumeAnswer,
    ResumeRun,
    RunAccepted,
    RunFeedback,
    RunListItem,
    RunSnapshot,
)
from wopr.runs.requests import check_request
from wopr.runs.run_reader import missing_code, quarantine
from wopr.services.debug_bundle import build_debug_bundle
from wopr.store.port import RunFilter, RunRow
from wopr.store.port.feedback import FeedbackCount

RUN_FILTERS = (
    Parameter(
        name="status", description="Statuses, separated by commas.", schema={"type": "string"}
    ),
    Parameter(name="workflowId", description="Runs of this workflow.", schema={"type": "string"}),
    Parameter(name="tag", description="Runs with this tag.", schema={"type": "string"}),
    Parameter(name="parentRunId", description="Child runs of this run.", schema={"type": "string"}),
    Parameter(name="sourceRunId", description="Forks of this run.", schema={"type": "string"}),
    Parameter(
        name="waitingForCode",
        description="With true: only runs that wait for a process with the code of a node. "
        "With false: all runs.",
        schema={"type": "boolean"},
    ),
    Parameter(
        name="quarantined",
        description="Runs that are in quarantine, or with `false` those that are not.",
        schema={"type": "string", "enum": ["true", "false"]},
    ),
    Parameter(
        name="since",
        description="Created at or after this time.",
        schema={"type": "string", "format": "date-time"},
    ),
    Parameter(
        name="until",
        description="Created before this time.",
        schema={"type": "string", "format": "date-time"},
    ),
    *(
        Parameter(
            name=name,
            description=f"Runs that were {name}, or with `false` those that were not.",
            schema={"type": "string", "enum": ["true", "false"]},
        )
        for name in ("flagged", "rated", "corrected")
    ),
    Parameter(
        name="label",
        description="Runs with an annotation of this label.",
        schema={"type": "string", "minLength": 1},
    ),
)


def run_filter(request: Request) -> RunFilter:
    """Read the filter of runs from the query."""
    query = request.query
    return RunFilter(
        statuses=_statuses(query.get("status")),
        workflow_id=query.get("workflowId"),
        tag=query.get("tag"),
        parent_run_id=query.get("parentRunId"),
        source_run_id=query.get("sourceRunId"),
        created_from=time_parameter(request, "since"),
        created_before=time_parameter(request, "until"),
        flagged=request.boolean("flagged"),
        rated=request.boolean("rated"),
        corrected=request.boolean("corrected"),
        label=_label(request),
        waits_for_code=request.boolean("waitingForCode") is True,
        quarantined=request.boolean("quarantined"),
    )


def _statuses(raw: str | None) -> tuple[str, ...]:
    if raw is None:
        return ()
    statuses = tuple(status.strip() for status in raw.split(","))
    if any(status not in RUN_STATUSES for status in statuses):
        raise Refused(
            f"each status must be one of {', '.join(RUN_STATUSES)}, not {raw[:40]!r}",
            field="status",
        )
    return statuses


def _label(request: Request) -> str | None:
    raw = request.query.get("label")
    if raw is None:
        return None
    if not raw:
        raise Refused("label must not be empty", field="label")
    # Labels were redacted when they were stored.
    return request.redactor.text(raw)


def time_parameter(request: Request, name: str) -> int | None:
    """Return a query parameter that must be a time."""
    raw = request.query.get(name)
    if raw is None:
        return None
    try:
        return to_millis(raw.replace(" ", "+"))
    except (ValueError, OverflowError):
        raise Refused(f"{name} must be an ISO 8601 time, not {raw[:40]!r}", field=name) from None


MAX_ID_LENGTH = 128
MAX_RUN_IDS = 100


def run_id_of(request: Request) -> str:
    """Return the run id in the path. Raises `NotFound` if no run can have it."""
    value = request.path["run_id"]
    if len(value) > MAX_ID_LENGTH:
        raise NotFound("there is no such run")
    return value


async def create_run(request: Request) -> Response:
    """Start a run of a workflow."""
    document = await request.document(CreateRun)
    new = await check_request(
        document,
        principal=request.caller,
        library=request.host.library,
        settings=request.host.settings,
        force_engine_version=request.header(b"x-force-engine-version"),
        traceparent=request.traceparent,
        dedup=(request.header(b"x-dedup") or "").lower() == "enforce",
        transport=request.scope.get(TRANSPORT, ""),
    )
    return Response(201, await request.host.commands.create(new, request.build_record))


async def get_run(request: Request) -> Response:
    """Read a run's snapshot; with `If-None-Match` only if it has changed."""
    keys = request.host.token_keys if request.caller.may("approvals:respond") else ()
    found = await request.host.run_reader.snapshot_with_slot(
        request.tenant, run_id_of(request), token_key=keys[0] if keys else None
    )
    body = found.body
    if len(body) < INLINE_BYTES:
        digest = hashlib.sha256(body)
    else:
        digest = await run_by_size(len(body), partial(hashlib.sha256, body))
    # The sequence alone is not enough: a snapshot also shows the status of child runs.
    tag = f'"{found.sequence}-{digest.hexdigest()[:16]}"'
    if request.matches_etag(tag):
        return Response(304, headers={"etag": tag})
    # A token is a credential and must not be cached.
    cache_control = "no-store" if found.has_token else "no-cache"
    return Response(200, body, headers={"etag": tag, "cache-control": cache_control})


async def list_runs(request: Request) -> Response:
    """List the tenant's runs, newest first."""
    limit = page_limit(request)
    after = read_cursor(request.query.get("cursor"))
    where = run_filter(request)
    await request.host.fleet.observed.catch_up_all(request.tenant)
    store = request.host.store
    page = await store.runs(request.tenant, where, after, limit)
    feedback = await store.run_feedback(request.tenant, [row.run_id for row in page.runs])
    return ok(
        Page(
            items=[list_item(row, feedback.get(row.run_id)) for row in page.runs],
            next_cursor=UNSET if page.next_after is None else write_cursor(page.next_after),
        )
    )


def list_item(row: RunRow, feedback: FeedbackCount | None = None) -> RunListItem:
    """Return a run as an item of a list."""
    return RunListItem(
        run_id=row.run_id,
        workflow_id=row.workflow_id,
        workflow_version=row.workflow_version,
        status=row.status,  # type: ignore[arg-type]  # the store keeps what the fold gave
        created_at=to_iso(row.created_at),
        updated_at=to_iso(row.updated_at),
        ended_at=UNSET if row.ended_at is None else to_iso(row.ended_at),
        tags=list(row.tags),
        parent_run_id=row.parent_run_id or UNSET,
        metadata=run_source(row.run_id) or UNSET,
        feedback=UNSET if feedback is None else _feedback(feedback),
        waiting_for_code=missing_code(row) or UNSET,
        quarantine=quarantine(row),
    )


def _feedback(feedback: FeedbackCount) -> RunFeedback:
    return RunFeedback(
        annotations=feedback.size,
        ratings=feedback.ratings,
        corrections=feedback.corrections,
        labels=feedback.labels,
        flags=feedback.flags,
        mean_rating=UNSET if feedback.mean is None else feedback.mean,
    )


async def cancel_run(request: Request) -> Response:
    """Cancel a run and its child runs. A run that has ended keeps its status."""
    run_id = run_id_of(request)
    await request.host.run_reader.row(request.tenant, run_id)
    document = await request.document(CancelRun, optional=CancelRun())
    reason = "" if isinstance(document.reason, Unset) else document.reason
    by = request.caller.key_id
    return ok(await request.host.commands.cancel(request.tenant, run_id, reason, by=by))


async def bulk_cancel(request: Request) -> Response:
    """Cancel up to a hundred runs, each with a separate result."""
    try:
        document = await request.document(BulkCancel)
    except Refused as refused:
        refused.details["maxRunIds"] = MAX_RUN_IDS
        raise
    await request.catch_up(*document.run_ids)
    by = request.caller.key_id
    response = ok(await request.host.commands.bulk_cancel(request.tenant, document, by=by))
    return await redact_response(response, request.redactor)


async def pause_run(request: Request) -> Response:
    """Pause a run, immediately or when its active nodes have ended."""
    run_id = run_id_of(request)
    await request.host.run_reader.row(request.tenant, run_id)
    document = await request.document(PauseRun, optional=PauseRun())
    by = request.caller.key_id
    return ok(await request.host.commands.pause(request.tenant, run_id, document, by=by), 202)


async def resume_run(request: Request) -> Response:
    """Resume a paused run."""
    run_id = run_id_of(request)
    await request.host.run_reader.row(request.tenant, run_id)
    document = await request.document(ResumeRun, optional=ResumeRun())
    by = request.caller.key_id
    reason = document.reason or ""
    return ok(await request.host.commands.resume(request.tenant, run_id, reason, by=by), 202)


async def get_artifact(request: Request) -> Response:
    """Read a document that a run produced."""
    artifact_id = request.path["artifact_id"]
    found = await request.host.store.artifact(request.tenant, run_id_of(request), artifact_id)
    if found is None:
        raise NotFound(f"there is no artifact {artifact_id[:MAX_ID_LENGTH]!r}")
    return Response(200, found.body, headers={"cache-control": "no-store"})


RUN_ERRORS = (401, 403, 404)
IDEMPOTENCY_KEY = Parameter(
    name="Idempotency-Key",
    description="A repeated request with the same key gets the response to the first one.",
    schema={"type": "string", "minLength": 1, "maxLength": 255},
    where="header",
)
RUN_OPERATIONS = (
    Operation(
        name="createRun",
        method="POST",
        path="/v1/runs",
        handler=create_run,
        summary="Start a run of a workflow",
        tag="runs",
        scope="runs:create",
        body=CreateRun,
        success=201,
        response=RunAccepted,
        errors=(400, 401, 403, 404, 409, 413, 415, 429, 503),
        parameters=(
            IDEMPOTENCY_KEY,
            Parameter(
                name="X-Dedup",
                description="`enforce` refuses a second active run of the same workflow.",
                schema={"type": "string", "enum": ["enforce"]},
                where="header",
            ),
            Parameter(
                name="X-Force-Engine-Version",
                description="Test keys only: the engine version of the run.",
                schema={"type": "string"},
                where="header",
            ),
        ),
        stores_response=True,
    ),
    Operation(
        name="getRun",
        method="GET",
        path="/v1/runs/{run_id}",
        handler=get_run,
        summary="Read a run's snapshot",
        tag="runs",
        scope="runs:read",
        response=RunSnapshot,
        other_statuses=(304,),
        errors=RUN_ERRORS,
    ),
    Operation(
        name="cancelRun",
        method="POST",
        path="/v1/runs/{run_id}/cancel",
        handler=cancel_run,
        summary="Cancel a run and its children",
        tag="runs",
        scope="runs:cancel",
        body=CancelRun,
        body_is_optional=True,
        response=CancelAnswer,
        errors=(400, *RUN_ERRORS, 409, 413, 415),
        parameters=(IDEMPOTENCY_KEY,),
    ),
    Operation(
        name="pauseRun",
        method="POST",
        path="/v1/runs/{run_id}:pause",
        handler=pause_run,
        summary="Pause a run",
        tag="runs",
        scope="runs:cancel",
        body=PauseRun,
        body_is_optional=True,
        success=202,
        response=PauseAnswer,
        errors=(400, *RUN_ERRORS, 409, 413, 415, 422),
        parameters=(IDEMPOTENCY_KEY,),
    ),
    Operation(
        name="resumeRun",
        method="POST",
        path="/v1/runs/{run_id}:resume",
        handler=resume_run,
        summary="Resume a paused run",
        tag="runs",
        scope="runs:cancel",
        body=ResumeRun,
        body_is_optional=True,
        success=202,
        response=ResumeAnswer,
        errors=(400, *RUN_ERRORS, 409, 413, 415),
        parameters=(IDEMPOTENCY_KEY,),
    ),
    Operation(
        name="bulkCancelRuns",
        method="POST",
        path="/v1/runs:bulk-cancel",
        handler=bulk_cancel,
        summary="Cancel many runs",
        tag="runs",
        scope="runs:cancel",
        body=BulkCancel,
        response=BulkCancelAnswer,
        errors=(400, 401, 403, 409, 413, 415),
        parameters=(IDEMPOTENCY_KEY,),
    ),
    Operation(
        name="listRuns",
        method="GET",
        path="/v1/runs",
        handler=list_runs,
        summary="List runs, newest first",
        tag="runs",
        scope="runs:read",
        response=Page,
        errors=(400, 401, 403),
        parameters=(*RUN_FILTERS, *PAGING),
        is_extension=True,
    ),
    Operation(
        name="getArtifact",
        method="GET",
        path="/v1/runs/{run_id}/artifacts/{artifact_id}",
        handler=get_artifact,
        summary="Read a document that a run produced",
        tag="runs",
        scope="artifacts:read",
        errors=RUN_ERRORS,
        read_level="sensitive",
    ),
)


_MAX_EVENTS = 1_000_000


async def get_debug_bundle(request: Request) -> Response:
    """Export one run for diagnosis: snapshot, log, spans, metrics and annotations."""
    run_id = run_id_of(request)
    host = request.host
    most = request.whole_number("maxEvents", _MAX_EVENTS, most=_MAX_EVENTS)
    async with host.heavy_reads.slot(request.tenant):
        body = await build_debug_bundle(
            host.run_reader,
            host.store,
            request.tenant,
            run_id,
            now=host.sources.now(),
            most_events=most if "maxEvents" in request.query else None,
        )
    await host.audit.record(request.tenant, request.caller.key_id, "run.export", run_id)
    return Response(200, body, headers={"cache-control": "no-store"})


BUNDLE_OPERATIONS = (
    Operation(
        name="getDebugBundle",
        method="GET",
        path="/v1/runs/{run_id}/debug-bundle",
        handler=get_debug_bundle,
        summary="Export a run for diagnosis",
        tag="runs",
        scope="runs:read",
        errors=(400, *RUN_ERRORS),
        parameters=(
            Parameter(
                name="maxEvents",
                description="Maximum number of events, counted from the first.",
                schema={"type": "integer", "minimum": 0, "maximum": _MAX_EVENTS},
            ),
        ),
        read_level="recorded",
    ),
)

OPERATIONS = (*RUN_OPERATIONS, *BUNDLE_OPERATIONS)
