"""Interrupts: the inbox, and answers by run and node or by token."""

from __future__ import annotations

from typing import Final

from wopr.http.answers import Answer, ok
from wopr.http.exchange import Exchange
from wopr.http.operation import Operation, Parameter
from wopr.http.paging import PAGE_DEFAULT, PAGE_MOST, read_cursor, write_cursor
from wopr.http.runs import RUN_ERRORS
from wopr.protocol.documents import UNSET, Document, JsonObject, Unset
from wopr.protocol.errors import Forbidden, Gone, NotFound, Refused
from wopr.protocol.interrupts import (
    INTERRUPT_KIND,
    KINDS_IN_WORDS,
    AnswerTaken,
    ResolveInterrupt,
    is_kind,
    is_vendor_kind,
)
from wopr.protocol.runs import Page
from wopr.protocol.times import to_iso
from wopr.runtime.inbox import aged, inbox_item
from wopr.runtime.resolving import pending
from wopr.runtime.waits import Resolver
from wopr.security.keys import Principal
from wopr.security.tokens import InterruptToken, read
from wopr.store.port import SuspensionFilter


class InterruptKindMapping(Document, frozen=True, kw_only=True):
    """What an interrupt kind of this host's own means.

    `event_kind` is the `kind` of the events, whose schemas exclude kinds of a host's own.
    `kind_in_events` says where each event has the real kind.
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


async def get_interrupt_kind(exchange: Exchange) -> Answer:
    """Say what this host's own interrupt kind means, and which consumers match on it."""
    floor = exchange.host.advancer.services.floor
    kind = exchange.path["kind"]
    if kind != floor.interrupt_kind or not is_vendor_kind(kind):
        raise NotFound(f"this host has no interrupt kind {kind!r} of its own")
    consumers = exchange.host.settings.vendor_kind_consumers.split(",")
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
    """What the holder of a token may see of the wait."""

    kind: str
    key: str
    data: JsonObject
    requested_at: str
    expires_at: str
    resume_schema: JsonObject | Unset = UNSET
    timeout_ms: int | Unset = UNSET


async def list_interrupts(exchange: Exchange) -> Answer:
    """List everything that waits in the tenant, newest first."""
    limit = exchange.whole_number("limit", PAGE_DEFAULT, least=1, most=PAGE_MOST)
    kinds = exchange.query.get("kind")
    wanted = tuple(kinds.split(",")) if kinds else ()
    for kind in wanted:
        if not is_kind(kind):
            raise Refused(f"kind must be among {KINDS_IN_WORDS}, not {kind!r}", field="kind")
    where = SuspensionFilter(
        kinds=wanted,
        workflow_id=exchange.query.get("workflowId"),
        run_id=exchange.query.get("runId"),
    )
    after = read_cursor(exchange.query.get("cursor"))
    page = await exchange.host.store.pending(exchange.tenant, where, after, limit)
    now = exchange.host.sources.now()
    return ok(
        Page(
            items=[aged(row, now) for row in page.suspensions],
            next_cursor=UNSET if page.next_after is None else write_cursor(page.next_after),
        )
    )


async def answer_interrupt(exchange: Exchange) -> Answer:
    """Answer what a node of a run waits for."""
    run_id, node_id = exchange.path["run_id"], exchange.path["node_id"]
    if await exchange.host.store.run(exchange.tenant, run_id) is None:
        raise NotFound("there is no such run", code="interrupt_not_found")
    request = await exchange.document(ResolveInterrupt)
    caller = exchange.caller
    by = Resolver(
        name=caller.key_id,
        role=caller.role,
        scopes=caller.scopes,
        may_name_voter=await _may_name_voter(exchange, run_id),
    )
    taken = await exchange.host.commands.answer(
        exchange.tenant,
        run_id,
        node_id,
        request.resume_value,
        by,
        interrupt_id=exchange.query.get("interruptId"),
    )
    return ok(taken)


async def _may_name_voter(exchange: Exchange, run_id: str) -> bool:
    """Tell whether the caller may vote under several names: a test of the host, and nothing else.

    It takes a host that is started with `--conformance`, a test key, and a run that a test key
    started. Any other key has one vote under its own name.
    """
    if not (exchange.host.settings.conformance and exchange.caller.is_test):
        return False
    run = await exchange.host.advancer.load(exchange.tenant, run_id)
    owner = None if run is None else run.state.owner
    if owner is None or isinstance(owner.principal, Unset):
        return False
    return await exchange.host.keyring.is_test(exchange.tenant, owner.principal)


async def inspect_token(exchange: Exchange) -> Answer:
    """Show the holder of a token what waits; this resolves nothing."""
    token = await _token(exchange)
    exchange.principal = Principal(
        key_id=f"token:{token.interrupt_id}",
        tenant=token.tenant,
        role="",
        scopes=frozenset(),
        is_test=False,
    )
    run = await exchange.host.advancer.load(token.tenant, token.run_id)
    if run is None:
        raise _unknown()
    interrupt = pending(run.state, token.node_id, token.interrupt_id, by_token=True)
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


async def answer_token(exchange: Exchange) -> Answer:
    """Answer a wait with its token; the token is looked at before the body is."""
    token = await _token(exchange)
    if token.intent != "resolve":
        raise Forbidden("this token lets you look, not answer")
    request = await exchange.document(ResolveInterrupt)
    by = Resolver(name=f"token:{token.interrupt_id}", by_token=True)
    taken = await exchange.host.commands.answer(
        token.tenant,
        token.run_id,
        token.node_id,
        request.resume_value,
        by,
        interrupt_id=token.interrupt_id,
    )
    return ok(taken, 200, cache_control="no-store")


async def _token(exchange: Exchange) -> InterruptToken:
    """The token of the path, if this host signed it, its run is there and its time is not up."""
    token = read(exchange.path["token"], exchange.host.token_keys)
    if token is None or await exchange.host.store.run(token.tenant, token.run_id) is None:
        raise _unknown()
    if token.expires_at <= exchange.host.sources.now():
        raise Gone("this token has expired", code="interrupt_expired")
    return token


def _unknown() -> NotFound:
    return NotFound("there is no such token", code="interrupt_not_found")


_ANSWER_ERRORS = (400, 409, 410, 413, 415, 422)

OPERATIONS = (
    Operation(
        name="listInterrupts",
        method="GET",
        path="/v1/interrupts",
        handler=list_interrupts,
        summary="List everything that waits for an answer",
        tag="interrupts",
        scope="runs:read",
        answer=Page,
        errors=(400, 401, 403),
        parameters=(
            Parameter(name="kind", description="A comma list of kinds.", schema={"type": "string"}),
            Parameter(
                name="workflowId", description="Of this workflow.", schema={"type": "string"}
            ),
            Parameter(name="runId", description="Of this run.", schema={"type": "string"}),
            Parameter(name="cursor", description="Where to go on.", schema={"type": "string"}),
            Parameter(
                name="limit",
                description="How many at most.",
                schema={"type": "integer", "minimum": 1, "maximum": PAGE_MOST},
            ),
        ),
        is_extension=True,
    ),
    Operation(
        name="answerInterrupt",
        method="POST",
        path="/v1/runs/{run_id}/interrupts/{node_id}",
        handler=answer_interrupt,
        summary="Answer what a node waits for",
        tag="interrupts",
        scope="approvals:respond",
        body=ResolveInterrupt,
        answer=AnswerTaken,
        errors=(*RUN_ERRORS, *_ANSWER_ERRORS),
        parameters=(
            Parameter(
                name="interruptId",
                description="Answer only this wait, not one that has taken its place since.",
                schema={"type": "string"},
            ),
        ),
    ),
    Operation(
        name="getInterruptKind",
        method="GET",
        path="/v1/interrupt-kinds/{kind}",
        handler=get_interrupt_kind,
        summary="Read what this host's own interrupt kind means",
        tag="interrupts",
        answer=InterruptKindMapping,
        errors=(404,),
        is_extension=True,
    ),
    Operation(
        name="inspectInterrupt",
        method="GET",
        path="/v1/interrupts/{token}",
        handler=inspect_token,
        summary="See what a token is for",
        tag="interrupts",
        answer=TokenView,
        errors=(404, 409, 410),
        read="sensitive",
    ),
    Operation(
        name="answerByToken",
        method="POST",
        path="/v1/interrupts/{token}",
        handler=answer_token,
        summary="Answer a wait with its token",
        tag="interrupts",
        body=ResolveInterrupt,
        answer=AnswerTaken,
        errors=(403, 404, *_ANSWER_ERRORS),
    ),
)
