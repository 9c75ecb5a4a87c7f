"""The list of open interrupts, and answers to several at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode

from wopr.console.forms import Form
from wopr.console.inbox.answer_forms import quick_value
from wopr.console.inbox.interrupt import (
    READ,
    RESPOND,
    InboxLine,
    find_inbox_line,
    inbox_line,
    interrupt_values,
    load_interrupt_view,
    rejection_text,
    submit_answer,
)
from wopr.console.page import (
    Page,
    PageRequest,
    list_etag,
    not_modified_response,
    redirect_to,
    with_etag,
)
from wopr.http.operation import read_cursor, write_cursor
from wopr.http.response import Response, ok
from wopr.protocol.documents import UNSET, Unset
from wopr.protocol.errors import Refused, WoprError
from wopr.protocol.interrupts import KINDS_IN_WORDS, is_interrupt_kind, is_vendor_kind
from wopr.store.port import SuspensionFilter

PAGE_INTERRUPTS: Final = 50
MAX_PICKED: Final = 200
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


async def list_interrupts(request: PageRequest) -> Response:
    """List the open interrupts, newest first, and open the first."""
    after = read_cursor(request.query.get("cursor"))
    page = await request.host.store.pending_interrupts(
        request.tenant, _filter(request), after, PAGE_INTERRUPTS
    )
    lines = [inbox_line(request, row) for row in page.suspensions]
    tag = _tag(request, lines)
    not_modified = not_modified_response(request, tag)
    if not_modified is not None:
        return not_modified
    is_whole = request.http.header(b"x-part") is None
    first = await load_interrupt_view(request, lines[0]) if lines and is_whole else None
    next_page = ""
    if page.next_after is not None:
        next_page = "/inbox?" + urlencode(request.query | {"cursor": write_cursor(page.next_after)})
    response = await request.page(
        "inbox.html",
        lines=lines,
        first=first,
        kinds=_kinds(request),
        query=request.query,
        next_page=next_page,
        is_filtered=any(name not in ("cursor", "done") for name in request.query),
        is_live="cursor" not in request.query,
        **interrupt_values(request, "/inbox"),
    )
    return with_etag(response, tag)


def _kinds(request: PageRequest) -> dict[str, str]:
    """Return the kinds of the filter, with the host's vendor kind if it has one."""
    own = request.host.advancer.services.floor.interrupt_kind
    return _KINDS | {own: own} if is_vendor_kind(own) else _KINDS


def _filter(request: PageRequest) -> SuspensionFilter:
    kind = request.query.get("kind")
    if kind and not is_interrupt_kind(kind):
        raise Refused(f"kind must be one of {KINDS_IN_WORDS}, not {kind!r}", field="kind")
    return SuspensionFilter(
        kinds=(kind,) if kind else (),
        workflow_id=request.query.get("workflowId"),
        run_id=request.query.get("runId"),
    )


def _tag(request: PageRequest, lines: Sequence[InboxLine]) -> str:
    shown = [(line.item.run_id, line.item.interrupt_id, line.item.votes or None) for line in lines]
    return list_etag(request, shown, shows_durations=True)


async def answer_many(request: PageRequest) -> Response:
    """Accept or reject many interrupts with one reason, and show the result of each."""
    request.require(READ)
    form = await request.form()
    name = form.choice("answer", tuple(_DONE))
    picks = _picks(form)
    if not picks:
        raise Refused("Select at least one item.", field="pick")
    if len(picks) > MAX_PICKED:
        raise Refused(f"Select at most {MAX_PICKED} items.", field="pick")
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
    line = await find_inbox_line(request, run_id, node_id)
    question = "" if line is None else line.item.question

    def result(tone: str, text: str) -> BatchResult:
        return BatchResult(run_id, node_id, question, tone, request.http.redactor.text(text))

    value = UNSET if line is None else quick_value(line.item, name, reason)
    if line is not None and isinstance(value, Unset):
        return result("quiet", "cannot be answered in a batch")
    try:
        is_open = await submit_answer(request, run_id, node_id, interrupt_id, value)
    except WoprError as error:
        reason_text = await rejection_text(request, run_id, node_id, interrupt_id, error)
        return result("bad", reason_text)
    return result("held", "vote counted") if is_open else result("good", _DONE[name])


async def count_interrupts(request: PageRequest) -> Response:
    """Return the number of open interrupts, for the title of open pages."""
    response = ok({"waiting": await request.host.store.count_pending_interrupts(request.tenant)})
    return replace(response, headers={"cache-control": "no-store"})


PAGES: Final = (
    Page(name="inbox", path="/inbox", get=list_interrupts, scope="runs:read"),
    Page(name="inbox-count", path="/inbox/count", get=count_interrupts, scope="runs:read"),
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
