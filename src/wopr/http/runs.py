"""Runs: create, read, list, cancel, pause, resume, and their artifacts."""

from __future__ import annotations

import hashlib
from functools import partial

from wopr.http.answers import Answer, ok, redacted
from wopr.http.exchange import Exchange
from wopr.http.operation import Operation, Parameter
from wopr.http.paging import PAGE_DEFAULT, PAGE_MOST, PAGING, read_cursor, write_cursor
from wopr.http.run_filters import RUN_FILTERS, run_filter
from wopr.protocol.documents import UNSET, Unset
from wopr.protocol.errors import NotFound, Refused
from wopr.protocol.runs import (
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
from wopr.protocol.times import to_iso
from wopr.runtime.heavy_reads import NEAR_BYTES, off_loop
from wopr.runtime.observing import origin
from wopr.runtime.readers import missing_code, quarantine
from wopr.runtime.requests import check_request
from wopr.store.port import RunRow
from wopr.store.port.feedback import FeedbackCount

LONGEST_ID = 128
MOST_RUN_IDS = 100
# Where a request that came by another way than this API says so; no client can write there.
TRANSPORT = "wopr.transport"


def run_id(exchange: Exchange) -> str:
    """The run that the path names; an id that no run can have is simply not found."""
    value = exchange.path["run_id"]
    if len(value) > LONGEST_ID:
        raise NotFound("there is no such run")
    return value


async def create_run(exchange: Exchange) -> Answer:
    """Start a run of a workflow."""
    request = await exchange.document(CreateRun)
    new = await check_request(
        request,
        principal=exchange.caller,
        library=exchange.host.library,
        settings=exchange.host.settings,
        force_engine_version=exchange.header(b"x-force-engine-version"),
        traceparent=exchange.traceparent,
        dedup=(exchange.header(b"x-dedup") or "").lower() == "enforce",
        transport=exchange.scope.get(TRANSPORT, ""),
    )
    return Answer(201, await exchange.host.commands.create(new, exchange.remember))


async def get_run(exchange: Exchange) -> Answer:
    """Read a run's snapshot; with `If-None-Match` only when it has changed."""
    keys = exchange.host.token_keys if exchange.caller.may("approvals:respond") else ()
    found = await exchange.host.readers.snapshot_in_turn(
        exchange.tenant, run_id(exchange), token_key=keys[0] if keys else None
    )
    body = found.body
    if len(body) < NEAR_BYTES:
        digest = hashlib.sha256(body)
    else:
        digest = await off_loop(len(body), partial(hashlib.sha256, body))
    # The sequence alone is not enough: a snapshot also shows where the run's children stand.
    tag = f'"{found.sequence}-{digest.hexdigest()[:16]}"'
    if exchange.already_has(tag):
        return Answer(304, headers={"etag": tag})
    # A token is a credential: what holds one is kept nowhere on the way.
    kept = "no-store" if found.has_token else "no-cache"
    return Answer(200, body, headers={"etag": tag, "cache-control": kept})


async def list_runs(exchange: Exchange) -> Answer:
    """List the tenant's runs, newest first."""
    limit = exchange.whole_number("limit", PAGE_DEFAULT, least=1, most=PAGE_MOST)
    after = read_cursor(exchange.query.get("cursor"))
    where = run_filter(exchange)
    await exchange.host.fleet.observers.catch_up_all(exchange.tenant)
    store = exchange.host.store
    page = await store.runs(exchange.tenant, where, after, limit)
    said = await store.run_feedback(exchange.tenant, [row.run_id for row in page.runs])
    return ok(
        Page(
            items=[list_item(row, said.get(row.run_id)) for row in page.runs],
            next_cursor=UNSET if page.next_after is None else write_cursor(page.next_after),
        )
    )


def list_item(row: RunRow, said: FeedbackCount | None = None) -> RunListItem:
    """A run as lists show it."""
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
        metadata=origin(row.run_id) or UNSET,
        feedback=UNSET if said is None else _feedback(said),
        waiting_for_code=missing_code(row) or UNSET,
        quarantine=quarantine(row),
    )


def _feedback(said: FeedbackCount) -> RunFeedback:
    return RunFeedback(
        annotations=said.size,
        ratings=said.ratings,
        corrections=said.corrections,
        labels=said.labels,
        flags=said.flags,
        mean_rating=UNSET if said.mean is None else said.mean,
    )


async def cancel_run(exchange: Exchange) -> Answer:
    """Cancel a run and its children; a run that has ended keeps its status."""
    name = run_id(exchange)
    await exchange.host.readers.row(exchange.tenant, name)
    request = await exchange.document(CancelRun, optional=CancelRun())
    reason = "" if isinstance(request.reason, Unset) else request.reason
    by = exchange.caller.key_id
    return ok(await exchange.host.commands.cancel(exchange.tenant, name, reason, by=by))


async def bulk_cancel(exchange: Exchange) -> Answer:
    """Cancel up to a hundred runs, each with its own answer."""
    try:
        request = await exchange.document(BulkCancel)
    except Refused as refused:
        refused.details["maxRunIds"] = MOST_RUN_IDS
        raise
    await exchange.catch_up(*request.run_ids)
    by = exchange.caller.key_id
    answer = ok(await exchange.host.commands.bulk_cancel(exchange.tenant, request, by=by))
    return await redacted(answer, exchange.redactor)


async def pause_run(exchange: Exchange) -> Answer:
    """Pause a run, at once or when the nodes in flight have ended."""
    name = run_id(exchange)
    await exchange.host.readers.row(exchange.tenant, name)
    request = await exchange.document(PauseRun, optional=PauseRun())
    by = exchange.caller.key_id
    return ok(await exchange.host.commands.pause(exchange.tenant, name, request, by=by), 202)


async def resume_run(exchange: Exchange) -> Answer:
    """Let a paused run go on."""
    name = run_id(exchange)
    await exchange.host.readers.row(exchange.tenant, name)
    request = await exchange.document(ResumeRun, optional=ResumeRun())
    by = exchange.caller.key_id
    reason = request.reason or ""
    return ok(await exchange.host.commands.resume(exchange.tenant, name, reason, by=by), 202)


async def get_artifact(exchange: Exchange) -> Answer:
    """Read a document that a run produced."""
    name = exchange.path["artifact_id"]
    found = await exchange.host.store.artifact(exchange.tenant, run_id(exchange), name)
    if found is None:
        raise NotFound(f"there is no artifact {name[:LONGEST_ID]!r}")
    return Answer(200, found.body, headers={"cache-control": "no-store"})


RUN_ERRORS = (401, 403, 404)
IDEMPOTENCY_KEY = Parameter(
    name="Idempotency-Key",
    description="Repeats of a request with the same key get the first answer.",
    schema={"type": "string", "minLength": 1, "maxLength": 255},
    where="header",
)
OPERATIONS = (
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
        answer=RunAccepted,
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
        remembers=True,
    ),
    Operation(
        name="getRun",
        method="GET",
        path="/v1/runs/{run_id}",
        handler=get_run,
        summary="Read a run's snapshot",
        tag="runs",
        scope="runs:read",
        answer=RunSnapshot,
        other_answers=(304,),
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
        answer=CancelAnswer,
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
        answer=PauseAnswer,
        errors=(400, *RUN_ERRORS, 409, 413, 415, 422),
        parameters=(IDEMPOTENCY_KEY,),
    ),
    Operation(
        name="resumeRun",
        method="POST",
        path="/v1/runs/{run_id}:resume",
        handler=resume_run,
        summary="Let a paused run go on",
        tag="runs",
        scope="runs:cancel",
        body=ResumeRun,
        body_is_optional=True,
        success=202,
        answer=ResumeAnswer,
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
        answer=BulkCancelAnswer,
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
        answer=Page,
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
        read="sensitive",
    ),
)
