"""The list of open interrupts, and answers to several at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode

from wopr.console.forms import Form
from wopr.console.inbox.answer_forms import quick_value
from wopr.console.inbox.wait import (
    READ,
    RESPOND,
    InboxWait,
    find_wait,
    load_wait_view,
    rejection_text,
    submit_answer,
    wait_of,
    wait_values,
)
from wopr.console.page import Page, PageRequest, list_tag, redirect_to, tagged, unchanged
from wopr.http.operation import read_cursor, write_cursor
from wopr.http.response import Response, ok
from wopr.protocol.documents import UNSET, Unset
from wopr.protocol.errors import Refused, WoprError
from wopr.protocol.interrupts import KINDS_IN_WORDS, is_kind, is_vendor_kind
from wopr.store.port import SuspensionFilter

PAGE_WAITS: Final = 50
MOST_PICKED: Final = 200
_PICK: Final = "pick:"
_KINDS: Final = {
    "approval": "approvals",
    "low-confidence": "low confidence",
    "clarification": "questions",
    "conversation.exchange": "conversations",
    "external-event": "events",
    "custom": "other",
}
_DONE: Final = {"accept": "accepted", "reject": "rejected"}


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of one answer of a batch."""

    run_id: str
    node_id: str
    question: str
    tone: str
    text: str


async def list_waits(request: PageRequest) -> Response:
    """List the open interrupts, newest first, and open the first."""
    after = read_cursor(request.query.get("cursor"))
    page = await request.host.store.pending(request.tenant, _filter(request), after, PAGE_WAITS)
    waits = [wait_of(request, row) for row in page.suspensions]
    tag = _tag(request, waits)
    known = unchanged(request, tag)
    if known is not None:
        return known
    is_whole = request.http.header(b"x-part") is None
    first = await load_wait_view(request, waits[0]) if waits and is_whole else None
    next_page = ""
    if page.next_after is not None:
        next_page = "/inbox?" + urlencode(request.query | {"cursor": write_cursor(page.next_after)})
    answer = await request.page(
        "inbox.html",
        waits=waits,
        first=first,
        kinds=_kinds(request),
        query=request.query,
        next_page=next_page,
        is_filtered=any(name not in ("cursor", "done") for name in request.query),
        is_live="cursor" not in request.query,
        **wait_values(request, "/inbox"),
    )
    return tagged(answer, tag)


def _kinds(request: PageRequest) -> dict[str, str]:
    """Return the kinds of the filter, with the host's vendor kind if it has one."""
    own = request.host.advancer.services.floor.interrupt_kind
    return _KINDS | {own: own} if is_vendor_kind(own) else _KINDS


def _filter(request: PageRequest) -> SuspensionFilter:
    kind = request.query.get("kind")
    if kind and not is_kind(kind):
        raise Refused(f"kind must be one of {KINDS_IN_WORDS}, not {kind!r}", field="kind")
    return SuspensionFilter(
        kinds=(kind,) if kind else (),
        workflow_id=request.query.get("workflowId"),
        run_id=request.query.get("runId"),
    )


def _tag(request: PageRequest, waits: Sequence[InboxWait]) -> str:
    shown = [(wait.item.run_id, wait.item.interrupt_id, wait.item.votes or None) for wait in waits]
    return list_tag(request, shown, shows_durations=True)


async def answer_many(request: PageRequest) -> Response:
    """Accept or reject many interrupts with one reason, and show the result of each."""
    request.require(READ)
    form = await request.form()
    name = form.choice("answer", tuple(_DONE))
    picks = _picks(form)
    if not picks:
        raise Refused("Select at least one item.", field="pick")
    if len(picks) > MOST_PICKED:
        raise Refused(f"Select at most {MOST_PICKED} items.", field="pick")
    reason = form.get("reason")
    results = [await _answer_one(request, pick, name, reason) for pick in picks]
    return await request.page("batch.html", results=results, word=_DONE[name])


def _picks(form: Form) -> list[tuple[str, str, str]]:
    """Return run, node and interrupt of each selected line."""
    named = [name for name in form.fields if name.startswith(_PICK)]
    parts = [(name.removeprefix(_PICK).partition(":"), form.get(name)) for name in named]
    return [(run_id, node_id, interrupt) for (run_id, _, node_id), interrupt in parts]


async def _answer_one(
    request: PageRequest, pick: tuple[str, str, str], name: str, reason: str
) -> BatchResult:
    run_id, node_id, interrupt_id = pick
    wait = await find_wait(request, run_id, node_id)
    question = "" if wait is None else wait.item.question

    def result(tone: str, text: str) -> BatchResult:
        return BatchResult(run_id, node_id, question, tone, request.http.redactor.text(text))

    value = UNSET if wait is None else quick_value(wait.item, name, reason)
    if wait is not None and isinstance(value, Unset):
        return result("quiet", "cannot be answered in a batch")
    try:
        is_open = await submit_answer(request, run_id, node_id, interrupt_id, value)
    except WoprError as error:
        reason_text = await rejection_text(request, run_id, node_id, interrupt_id, error)
        return result("bad", reason_text)
    return result("held", "vote counted") if is_open else result("good", _DONE[name])


async def count_waits(request: PageRequest) -> Response:
    """Return the number of open interrupts, for the title of open pages."""
    answer = ok({"waiting": await request.host.store.pending_count(request.tenant)})
    return replace(answer, headers={"cache-control": "no-store"})


PAGES: Final = (
    Page(name="inbox", path="/inbox", get=list_waits, scope="runs:read"),
    Page(name="inbox-count", path="/inbox/count", get=count_waits, scope="runs:read"),
    Page(
        name="answer-many",
        path="/inbox/batch",
        get=redirect_to("/inbox"),
        post=answer_many,
        has_large_form=True,
        scope=RESPOND,
        action="interrupt.resolve",
    ),
)
