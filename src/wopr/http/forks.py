"""Fork, replay, compare and ancestry."""

from __future__ import annotations

from wopr.http.answers import Answer, ok
from wopr.http.exchange import Exchange
from wopr.http.operation import Operation, Parameter
from wopr.http.runs import RUN_ERRORS, run_id
from wopr.protocol.errors import Forbidden, Refused
from wopr.protocol.forks import Ancestry, ForkAccepted, ForkPreview, ForkRun, RunDiff
from wopr.runtime.comparing import ancestry, compare
from wopr.runtime.forking import check_fork, find_source


async def fork_run(exchange: Exchange) -> Answer:
    """Fork a run: replay it without side effects, or branch off from any event."""
    if not exchange.caller.may("runs:read"):
        raise Forbidden("this key lacks the scope runs:read", scopeRequired="runs:read")
    is_preview = exchange.truth("dryRun")
    name = run_id(exchange)
    journal = exchange.host.advancer.journal
    await find_source(journal, exchange.tenant, name)
    request = await exchange.document(ForkRun)
    await check_fork(journal, name, request, exchange.caller, exchange.host.settings)
    commands = exchange.host.commands
    if is_preview:
        return ok(await commands.preview_fork(exchange.tenant, name, request))
    by = exchange.caller.key_id
    answer = await commands.fork(exchange.tenant, name, request, exchange.remember, by=by)
    return Answer(201, answer)


async def diff_runs(exchange: Exchange) -> Answer:
    """Compare two runs: the first difference, all others, and what they came to."""
    name = run_id(exchange)
    await exchange.host.readers.row(exchange.tenant, name)
    other = exchange.query.get("against")
    if not other:
        raise Refused("against must name the run to compare with", field="against")
    await exchange.catch_up(other)
    host = exchange.host
    async with host.heavy_reads.turn(exchange.tenant):
        return ok(await compare(host.advancer.journal, exchange.tenant, name, other))


async def get_ancestry(exchange: Exchange) -> Answer:
    """Read which run started this one."""
    journal = exchange.host.advancer.journal
    return ok(await ancestry(journal, exchange.tenant, run_id(exchange)))


OPERATIONS = (
    Operation(
        name="forkRun",
        method="POST",
        path="/v1/runs/{run_id}:fork",
        handler=fork_run,
        summary="Replay a run or branch off from one of its events",
        tag="forks",
        scope="runs:create",
        body=ForkRun,
        success=201,
        answer=ForkAccepted,
        preview=ForkPreview,
        errors=(400, *RUN_ERRORS, 409, 413, 415, 422),
        parameters=(
            Parameter(
                name="dryRun",
                description="Say what the fork would do, and do nothing.",
                schema={"type": "boolean", "default": False},
            ),
        ),
        remembers=True,
    ),
    Operation(
        name="diffRuns",
        method="GET",
        path="/v1/runs/{run_id}:diff",
        handler=diff_runs,
        summary="Compare two runs",
        tag="forks",
        scope="runs:read",
        answer=RunDiff,
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
        summary="Read which run started this one",
        tag="forks",
        scope="runs:read",
        answer=Ancestry,
        errors=RUN_ERRORS,
    ),
)
