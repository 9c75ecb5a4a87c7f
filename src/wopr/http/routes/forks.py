"""Routes of forks: fork, replay, compare and ancestry."""

from __future__ import annotations

from wopr.http.operation import Operation, Parameter
from wopr.http.request import Request
from wopr.http.response import Response, ok
from wopr.http.routes.runs import RUN_ERRORS, run_id_of
from wopr.protocol.errors import Forbidden, Refused
from wopr.protocol.forks import Ancestry, ForkAccepted, ForkPreview, ForkRun, RunDiff
from wopr.runs.forks.compare import ancestry, compare
from wopr.runs.forks.create import check_fork, find_source


async def fork_run(request: Request) -> Response:
    """Fork a run: replay it without side effects, or branch from any event."""
    if not request.caller.may("runs:read"):
        raise Forbidden("this key lacks the scope runs:read", scopeRequired="runs:read")
    is_preview = request.boolean("dryRun")
    run_id = run_id_of(request)
    journal = request.host.advancer.journal
    await find_source(journal, request.tenant, run_id)
    document = await request.document(ForkRun)
    await check_fork(journal, run_id, document, request.caller, request.host.settings)
    commands = request.host.commands
    if is_preview:
        return ok(await commands.preview_fork(request.tenant, run_id, document))
    by = request.caller.key_id
    response = await commands.fork(request.tenant, run_id, document, request.build_record, by=by)
    return Response(201, response)


async def diff_runs(request: Request) -> Response:
    """Compare two runs: the first difference, all other differences, and the results."""
    run_id = run_id_of(request)
    await request.host.run_reader.row(request.tenant, run_id)
    other = request.query.get("against")
    if not other:
        raise Refused("against is required: the id of the run to compare with", field="against")
    await request.catch_up(other)
    host = request.host
    async with host.heavy_reads.slot(request.tenant):
        return ok(await compare(host.advancer.journal, request.tenant, run_id, other))


async def get_ancestry(request: Request) -> Response:
    """Read the run that started this run, if any."""
    journal = request.host.advancer.journal
    return ok(await ancestry(journal, request.tenant, run_id_of(request)))


OPERATIONS = (
    Operation(
        name="forkRun",
        method="POST",
        path="/v1/runs/{run_id}:fork",
        handler=fork_run,
        summary="Replay a run or branch from one of its events",
        tag="forks",
        scope="runs:create",
        body=ForkRun,
        success=201,
        response=ForkAccepted,
        preview=ForkPreview,
        errors=(400, *RUN_ERRORS, 409, 413, 415, 422),
        parameters=(
            Parameter(
                name="dryRun",
                description="Return what the fork would do, without creating it.",
                schema={"type": "boolean", "default": False},
            ),
        ),
        stores_response=True,
    ),
    Operation(
        name="diffRuns",
        method="GET",
        path="/v1/runs/{run_id}:diff",
        handler=diff_runs,
        summary="Compare two runs",
        tag="forks",
        scope="runs:read",
        response=RunDiff,
        errors=(400, *RUN_ERRORS, 409),
        parameters=(
            Parameter(
                name="against",
                description="The run to compare with.",
                schema={"type": "string"},
                required=True,
            ),
        ),
    ),
    Operation(
        name="getAncestry",
        method="GET",
        path="/v1/runs/{run_id}/ancestry",
        handler=get_ancestry,
        summary="Read the run that started this run",
        tag="forks",
        scope="runs:read",
        response=Ancestry,
        errors=RUN_ERRORS,
    ),
)
