"""The inbox: everything that waits, the first of it opened, and a yes or a no to many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode

from wopr.console.answering import quick_value
from wopr.console.form import Form
from wopr.console.freshness import list_tag, tagged, unchanged
from wopr.console.page import Page
from wopr.console.visit import Visit
from wopr.console.wait_page import lost, require_read, take, wait_values
from wopr.console.wait_view import RESPOND, Wait, find_wait, look_at, wait_of
from wopr.http.answers import Answer, ok
from wopr.http.paging import read_cursor, write_cursor
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
    "custom": "others",
}
_DONE: Final = {"accept": "accepted", "reject": "rejected"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one answer among many."""

    run_id: str
    node_id: str
    question: str
    tone: str
    text: str


async def list_waits(visit: Visit) -> Answer:
    """List what waits, newest first, and open the first."""
    after = read_cursor(visit.query.get("cursor"))
    page = await visit.host.store.pending(visit.tenant, _filter(visit), after, PAGE_WAITS)
    waits = [wait_of(visit, row) for row in page.suspensions]
    tag = _tag(visit, waits)
    known = unchanged(visit, tag)
    if known is not None:
        return known
    is_whole = visit.exchange.header(b"x-part") is None
    first = await look_at(visit, waits[0]) if waits and is_whole else None
    next_page = ""
    if page.next_after is not None:
        next_page = "/inbox?" + urlencode(visit.query | {"cursor": write_cursor(page.next_after)})
    answer = await visit.page(
        "inbox.html",
        waits=waits,
        first=first,
        kinds=_kinds(visit),
        query=visit.query,
        next_page=next_page,
        is_filtered=any(name not in ("cursor", "done") for name in visit.query),
        is_live="cursor" not in visit.query,
        **wait_values(visit, "/inbox"),
    )
    return tagged(answer, tag)


def _kinds(visit: Visit) -> dict[str, str]:
    """The kinds to choose from; a kind of the host's own is named as it is advertised."""
    own = visit.host.advancer.services.floor.interrupt_kind
    return _KINDS | {own: own} if is_vendor_kind(own) else _KINDS


def _filter(visit: Visit) -> SuspensionFilter:
    kind = visit.query.get("kind")
    if kind and not is_kind(kind):
        raise Refused(f"kind must be one of {KINDS_IN_WORDS}, not {kind!r}", field="kind")
    return SuspensionFilter(
        kinds=(kind,) if kind else (),
        workflow_id=visit.query.get("workflowId"),
        run_id=visit.query.get("runId"),
    )


def _tag(visit: Visit, waits: Sequence[Wait]) -> str:
    shown = [(wait.item.run_id, wait.item.interrupt_id, wait.item.votes or None) for wait in waits]
    return list_tag(visit, shown, is_moving=True)


async def answer_many(visit: Visit) -> Answer:
    """Say yes or no to many, with one reason, and tell what came of each."""
    require_read(visit)
    form = await visit.form()
    name = form.choice("answer", tuple(_DONE))
    picks = _picks(form)
    if not picks:
        raise Refused("choose at least one line first", field="pick")
    if len(picks) > MOST_PICKED:
        raise Refused(f"at most {MOST_PICKED} at once", field="pick")
    reason = form.get("reason")
    outcomes = [await _answer_one(visit, pick, name, reason) for pick in picks]
    return await visit.page("batch.html", outcomes=outcomes, word=_DONE[name])


def _picks(form: Form) -> list[tuple[str, str, str]]:
    """Run, node and interrupt of every line that was chosen."""
    named = [name for name in form.fields if name.startswith(_PICK)]
    parts = [(name.removeprefix(_PICK).partition(":"), form.get(name)) for name in named]
    return [(run_id, node_id, interrupt) for (run_id, _, node_id), interrupt in parts]


async def _answer_one(visit: Visit, pick: tuple[str, str, str], name: str, reason: str) -> Outcome:
    run_id, node_id, interrupt_id = pick
    wait = await find_wait(visit, run_id, node_id)
    question = "" if wait is None else wait.item.question

    def came(tone: str, text: str) -> Outcome:
        return Outcome(run_id, node_id, question, tone, visit.exchange.redactor.text(text))

    value = UNSET if wait is None else quick_value(wait.item, name, reason)
    if wait is not None and isinstance(value, Unset):
        return came("quiet", "needs an answer of its own")
    try:
        is_open = await take(visit, run_id, node_id, interrupt_id, value)
    except WoprError as error:
        beaten = await lost(visit, run_id, node_id, interrupt_id, error)
        return came("bad", beaten)
    return came("held", "your vote is counted") if is_open else came("good", _DONE[name])


async def to_inbox(visit: Visit) -> Answer:
    """The form is on the inbox."""
    return visit.redirect("/inbox")


async def count_waits(visit: Visit) -> Answer:
    """How many wait, for the title of pages that are open already."""
    answer = ok({"waiting": await visit.host.store.pending_count(visit.tenant)})
    return replace(answer, headers={"cache-control": "no-store"})


PAGES: Final = (
    Page(name="inbox", path="/inbox", get=list_waits, scope="runs:read"),
    Page(name="inbox-count", path="/inbox/count", get=count_waits, scope="runs:read"),
    Page(
        name="answer-many",
        path="/inbox/batch",
        get=to_inbox,
        post=answer_many,
        has_large_form=True,
        scope=RESPOND,
        action="interrupt.resolve",
    ),
)
