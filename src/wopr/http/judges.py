"""Judges: workflows that annotate finished runs as an agent."""

from __future__ import annotations

from wopr.http.answers import Answer, ok
from wopr.http.exchange import Exchange, whole_number
from wopr.http.feedback import offered
from wopr.http.operation import Operation
from wopr.http.paging import PAGE_DEFAULT, PAGE_MOST, PAGING
from wopr.http.runs import IDEMPOTENCY_KEY, RUN_ERRORS
from wopr.protocol.errors import Forbidden
from wopr.protocol.reviews import CreateJudge, Judge

# A judge starts runs and annotates others, so its caller must be allowed to do both.
ALSO_NEEDED = "runs:annotate"


async def create_judge(exchange: Exchange) -> Answer:
    """Have a workflow judge finished runs; what it says is stored in the name of an agent.

    One run of the workflow is started for each. Its outputs name a `rating`, `label`,
    `correction` or `flag`, and perhaps a `note`.
    """
    if not exchange.caller.may(ALSO_NEEDED):
        raise Forbidden(f"this key lacks the scope {ALSO_NEEDED}", scopeRequired=ALSO_NEEDED)
    request = await exchange.document(CreateJudge)
    feedback = exchange.host.feedback
    judge = await feedback.judges.create(exchange.tenant, exchange.caller.key_id, request)
    await exchange.host.audit.record(
        exchange.tenant,
        exchange.caller.key_id,
        "judge.create",
        judge.judge_id,
        agentId=judge.agent_id,
        workflowId=judge.workflow_id,
    )
    feedback.judge_work.ordered()
    return ok(judge, 202)


async def get_judge(exchange: Exchange) -> Answer:
    """Read how far a judge is, and what came of each run: skipped and failed ones say why."""
    limit = exchange.whole_number("limit", PAGE_DEFAULT, least=1, most=PAGE_MOST)
    cursor = exchange.query.get("cursor")
    after = -1 if cursor is None else whole_number("cursor", cursor)
    name = exchange.path["judge_id"]
    judges = exchange.host.feedback.judges
    return ok(await judges.read(exchange.tenant, name, after=after, limit=limit))


OPERATIONS = (
    Operation(
        name="createJudge",
        method="POST",
        path="/v1/judges",
        handler=create_judge,
        summary="Have a workflow judge finished runs",
        tag="feedback",
        scope="runs:create",
        body=CreateJudge,
        success=202,
        answer=Judge,
        errors=(400, *RUN_ERRORS, 409, 413, 415, 501),
        parameters=(IDEMPOTENCY_KEY,),
        is_extension=True,
        offered=offered,
        action="judge.create",
    ),
    Operation(
        name="getJudge",
        method="GET",
        path="/v1/judges/{judge_id}",
        handler=get_judge,
        summary="Read what came of a judge's runs",
        tag="feedback",
        scope="runs:read",
        answer=Judge,
        errors=(400, *RUN_ERRORS, 501),
        parameters=PAGING,
        is_extension=True,
        offered=offered,
    ),
)
