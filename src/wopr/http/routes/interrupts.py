"""Routes of interrupts: the inbox, and answers by run and node or by token."""

from __future__ import annotations

from typing import Final

from wopr.http.operation import (
    PAGING,
    Operation,
    Parameter,
    page_limit,
    read_cursor,
    write_cursor,
)
from wopr.http.request import Request
from wopr.http.response import Response, ok
from wopr.http.routes.runs import RUN_ERRORS
from wopr.protocol.documents import UNSET, Document, JsonObject, Unset, to_iso
from wopr.protocol.errors import Forbidden, Gone, NotFound, Refused
from wopr.protocol.interrupts import (
    INTERRUPT_KIND,
    KINDS_IN_WORDS,
    AnswerTaken,
    ResolveInterrupt,
    is_interrupt_kind,
    is_vendor_kind,
)
from wopr.protocol.runs import Page
from wopr.runs.interrupts.approvals import Resolver
from wopr.runs.interrupts.inbox import inbox_item, with_age
from wopr.runs.interrupts.resolve import require_pending
from wopr.security.api_keys import Principal
from wopr.security.tokens import InterruptToken, read_interrupt_token
from wopr.store.port import SuspensionFilter


class InterruptKindMapping(Document, frozen=True, kw_only=True):
    """The meaning of this host's own interrupt kind.

    `event_kind` is the `kind` in events, because their schemas exclude a host's own kinds.
    `kind_in_events` is the path of the real kind in each event.
    """

    kind: str
    escalation_kind: str
    waiting_status: str
    consumers: list[str]
    event_kind: str
    kind_in_events: dict[str, str]


_KIND_IN_EVENTS: Final = {
    "node.suspended": f"payload.{INTERRUPT_KIND}",
    "interrupt.requested": "payload.data.customKind",
    "interrupt.resolved": f"payload.{INTERRUPT_KIND}",
}


async def get_interrupt_kind(request: Request) -> Response:
    """Return the meaning of this host's own interrupt kind, and the consumers that match on it."""
    floor = request.host.advancer.services.floor
    kind = request.path["kind"]
    if kind != floor.interrupt_kind or not is_vendor_kind(kind):
        raise NotFound(f"this host does not define the interrupt kind {kind!r}")
    consumers = request.host.settings.vendor_kind_consumers.split(",")
    mapping = InterruptKindMapping(
        kind=kind,
        escalation_kind=floor.escalation_kind,
        waiting_status=floor.waiting_status,
        consumers=[name.strip() for name in consumers],
        event_kind=floor.event_kind,
        kind_in_events=dict.fromkeys(_KIND_IN_EVENTS, "payload.kind")
        if floor.is_literal
        else _KIND_IN_EVENTS,
    )
    return ok(mapping)


class TokenView(Document, frozen=True, kw_only=True):
    """The interrupt as the owner of its token sees it."""

    kind: str
    key: str
    data: JsonObject
    requested_at: str
    expires_at: str
    resume_schema: JsonObject | Unset = UNSET
    timeout_ms: int | Unset = UNSET


async def list_interrupts(request: Request) -> Response:
    """List the tenant's open interrupts, newest first."""
    limit = page_limit(request)
    kinds = request.query.get("kind")
    wanted = tuple(kinds.split(",")) if kinds else ()
    for kind in wanted:
        if not is_interrupt_kind(kind):
            raise Refused(f"kind must be one of {KINDS_IN_WORDS}, not {kind!r}", field="kind")
    where = SuspensionFilter(
        kinds=wanted,
        workflow_id=request.query.get("workflowId"),
        run_id=request.query.get("runId"),
    )
    after = read_cursor(request.query.get("cursor"))
    page = await request.host.store.pending_interrupts(request.tenant, where, after, limit)
    now = request.host.sources.now()
    return ok(
        Page(
            items=[with_age(row, now) for row in page.suspensions],
            next_cursor=UNSET if page.next_after is None else write_cursor(page.next_after),
        )
    )


async def answer_interrupt(request: Request) -> Response:
    """Answer the interrupt of a node of a run."""
    run_id, node_id = request.path["run_id"], request.path["node_id"]
    if await request.host.store.run(request.tenant, run_id) is None:
        raise NotFound("there is no such run", code="interrupt_not_found")
    document = await request.document(ResolveInterrupt)
    caller = request.caller
    by = Resolver(
        name=caller.key_id,
        role=caller.role,
        scopes=caller.scopes,
        may_name_voter=await _may_name_voter(request, run_id),
    )
    taken = await request.host.commands.resolve_interrupt(
        request.tenant,
        run_id,
        node_id,
        document.resume_value,
        by,
        interrupt_id=request.query.get("interruptId"),
    )
    return ok(taken)


async def _may_name_voter(request: Request, run_id: str) -> bool:
    """Return whether the caller may vote under several names. Only conformance tests may.

    The host must be started with `--conformance`, the key must be a test key, and a test key must
    have started the run. Any other key has one vote under its own name.
    """
    if not (request.host.settings.conformance and request.caller.is_test):
        return False
    run = await request.host.advancer.active.load(request.tenant, run_id)
    owner = None if run is None else run.state.owner
    if owner is None or isinstance(owner.principal, Unset):
        return False
    return await request.host.keyring.is_test(request.tenant, owner.principal)


async def inspect_token(request: Request) -> Response:
    """Read the interrupt of a token, without resolving it."""
    token = await _token(request)
    request.principal = Principal(
        key_id=f"token:{token.interrupt_id}",
        tenant=token.tenant,
        role="",
        scopes=frozenset(),
        is_test=False,
    )
    run = await request.host.advancer.active.load(token.tenant, token.run_id)
    if run is None:
        raise _token_not_found()
    interrupt = require_pending(run.state, token.node_id, token.interrupt_id, by_token=True)
    item = inbox_item(run.state, token.node_id, interrupt)
    view = TokenView(
        kind=item.kind,
        key=item.key,
        data=item.data,
        requested_at=item.requested_at,
        expires_at=to_iso(token.expires_at),
        resume_schema=item.resume_schema,
        timeout_ms=item.timeout_ms,
    )
    return ok(view, 200, cache_control="no-store")


async def answer_token(request: Request) -> Response:
    """Answer an interrupt with its token. The token is checked before the body."""
    token = await _token(request)
    if token.intent != "resolve":
        raise Forbidden("this token allows reading the interrupt, but not answering it")
    document = await request.document(ResolveInterrupt)
    by = Resolver(name=f"token:{token.interrupt_id}", by_token=True)
    taken = await request.host.commands.resolve_interrupt(
        token.tenant,
        token.run_id,
        token.node_id,
        document.resume_value,
        by,
        interrupt_id=token.interrupt_id,
    )
    return ok(taken, 200, cache_control="no-store")


async def _token(request: Request) -> InterruptToken:
    """Return the token in the path, if this host signed it, its run exists and it is valid."""
    token = read_interrupt_token(request.path["token"], request.host.token_keys)
    if token is None or await request.host.store.run(token.tenant, token.run_id) is None:
        raise _token_not_found()
    if token.expires_at <= request.host.sources.now():
        raise Gone("this token has expired", code="interrupt_expired")
    return token


def _token_not_found() -> NotFound:
    return NotFound("this token does not exist", code="interrupt_not_found")


_ANSWER_ERRORS = (400, 409, 410, 413, 415, 422)

OPERATIONS = (
    Operation(
        name="listInterrupts",
        method="GET",
        path="/v1/interrupts",
        handler=list_interrupts,
        summary="List open interrupts",
        tag="interrupts",
        scope="runs:read",
        response=Page,
        errors=(400, 401, 403),
        parameters=(
            Parameter(
                name="kind",
                description="Kinds, separated by commas.",
                schema={"type": "string"},
            ),
            Parameter(
                name="workflowId",
                description="Interrupts of this workflow.",
                schema={"type": "string"},
            ),
            Parameter(
                name="runId", description="Interrupts of this run.", schema={"type": "string"}
            ),
            *PAGING,
        ),
        is_extension=True,
    ),
    Operation(
        name="answerInterrupt",
        method="POST",
        path="/v1/runs/{run_id}/interrupts/{node_id}",
        handler=answer_interrupt,
        summary="Answer the interrupt of a node",
        tag="interrupts",
        scope="approvals:respond",
        body=ResolveInterrupt,
        response=AnswerTaken,
        errors=(*RUN_ERRORS, *_ANSWER_ERRORS),
        parameters=(
            Parameter(
                name="interruptId",
                description="Answer only this interrupt, not a later one of the same node.",
                schema={"type": "string"},
            ),
        ),
    ),
    Operation(
        name="getInterruptKind",
        method="GET",
        path="/v1/interrupt-kinds/{kind}",
        handler=get_interrupt_kind,
        summary="Read the meaning of this host's own interrupt kind",
        tag="interrupts",
        response=InterruptKindMapping,
        errors=(404,),
        is_extension=True,
    ),
    Operation(
        name="inspectInterrupt",
        method="GET",
        path="/v1/interrupts/{token}",
        handler=inspect_token,
        summary="Read the interrupt of a token",
        tag="interrupts",
        response=TokenView,
        errors=(404, 409, 410),
        read_level="sensitive",
    ),
    Operation(
        name="answerByToken",
        method="POST",
        path="/v1/interrupts/{token}",
        handler=answer_token,
        summary="Answer an interrupt with its token",
        tag="interrupts",
        body=ResolveInterrupt,
        response=AnswerTaken,
        errors=(403, 404, *_ANSWER_ERRORS),
    ),
)
