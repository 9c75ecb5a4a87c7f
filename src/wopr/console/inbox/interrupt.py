"""The page of one interrupt: question, background, votes, and the form to answer it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

from wopr.console.forms import Form
from wopr.console.inbox.answer_forms import AnswerForm, answer_form_of
from wopr.console.inbox.background import Background, backgrounds_of
from wopr.console.inbox.pending import item_of, who_answers
from wopr.console.page import Page, PageRequest, local_path
from wopr.console.runs.agent_steps import DecisionConfidence, confidence_of
from wopr.console.runs.log import DecodedLog, Entry
from wopr.http.response import Response
from wopr.http.routes.runs import run_id_of
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, object_of, to_millis
from wopr.protocol.errors import (
    Conflict,
    Gone,
    NotFound,
    Refused,
    Unprocessable,
    WoprError,
)
from wopr.protocol.interrupts import InboxItem, is_vendor_kind
from wopr.runs.interrupts.approvals import Resolver, governance_of, held_decision, may_resolve
from wopr.store.port import RunRow, Suspension, SuspensionFilter

_ACTIONS: Final = {
    "accept": "accepted",
    "reject": "rejected",
    "refine": "sent it back",
    "edit-accept": "accepted an edited version",
    "granted": "granted",
    "rejected": "rejected",
    "close": "closed the conversation",
}


@dataclass(frozen=True, slots=True)
class InterruptResolution:
    """The answer to an interrupt: by whom, when and with which value."""

    by: str
    at: int
    word: str
    reason: str
    value: Json
    sequence: int


def resolution_of(
    entries: Sequence[Entry], node_id: str, interrupt_id: str
) -> InterruptResolution | None:
    """Return the answer to an interrupt; None if it has none.

    An empty `interrupt_id` stands for the last answered interrupt of the node.
    """
    for entry in reversed(entries):
        payload = entry.payload
        is_answer = entry.event.type == "interrupt.resolved" and entry.node_id == node_id
        if is_answer and interrupt_id in ("", payload.get("interruptId")):
            value: Json = payload.get("resumeValue")
            return InterruptResolution(
                by=str(payload.get("resolvedBy", "")),
                at=entry.at,
                word=word_of(value),
                reason=_reason(value),
                value=value,
                sequence=entry.sequence,
            )
    return None


def word_of(value: Json) -> str:
    """Return an answer in one or two words."""
    answer = object_of(value)
    named: Json = answer.get("action") or answer.get("operation")
    if named is None and isinstance(answer.get("decision"), str):
        named = answer["decision"]
    known = _ACTIONS.get(named) if isinstance(named, str) else None
    if known is not None:
        return known
    return "decided differently" if "decision" in answer else "answered"


def _reason(value: Json) -> str:
    answer = object_of(value)
    refined = object_of(answer.get("refineFeedback")).get("text")
    found: Json = answer.get("feedback") or answer.get("reason") or refined
    return found if isinstance(found, str) else ""


RESPOND: Final = "approvals:respond"
_AT_ONCE: Final = 100
# Kinds of steps that contain an agent's reasons.
_REASONS: Final = ("reasoning", "reasoned", "decided")
_KINDS: Final = {
    "approval": "Approval",
    "clarification": "Questions",
    "external-event": "Event",
    "low-confidence": "Low confidence",
    "conversation.exchange": "Conversation",
}


@dataclass(frozen=True, slots=True)
class InboxLine:
    """An open interrupt as a line of the inbox."""

    item: InboxItem
    kind: str
    who: str
    confidence: DecisionConfidence | None
    since: int
    until: int | None

    @property
    def asker(self) -> str:
        """The agent that asks; the node if there is no agent."""
        agent = self.item.asked_by.agent_id
        return self.item.asked_by.node_name if isinstance(agent, Unset) else agent

    @property
    def is_quick(self) -> bool:
        """Return whether accept and reject are answers, so that a batch can contain it."""
        kind = self.item.kind
        return kind in ("approval", "low-confidence") or is_vendor_kind(kind)


@dataclass(frozen=True, slots=True)
class VoteLine:
    """The last vote of one person on a gate."""

    voter: str
    word: str
    reason: str
    at: int


@dataclass(frozen=True, slots=True)
class TurnLine:
    """One turn of a conversation."""

    speaker: str
    is_person: bool
    content: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptView:
    """The content of the page of one interrupt. `refusal` says why the key cannot answer it."""

    line: InboxLine
    subject: Json
    votes: Sequence[VoteLine]
    turns: Sequence[TurnLine]
    # The background of the waiting run, then that of each parent run.
    backgrounds: Sequence[Background]
    answer_form: AnswerForm | None
    refusal: str

    @property
    def excerpt(self) -> str:
        """The last reason given by the node's agent, or by the last agent before the node.

        A model wrote the text, so the page marks it as untrusted.
        """
        turns = [turn for background in self.backgrounds[:1] for turn in background.turns]
        own = [turn for turn in turns if turn.node_id == self.line.item.node_id]
        steps = [step for turn in (own or turns)[-1:] for step in turn.steps]
        given = [step.text for step in steps if step.text and step.kind in _REASONS]
        return given[-1] if given else ""


def resolver_of(request: PageRequest) -> Resolver:
    """Return the signed-in key as the resolver."""
    caller = request.caller
    return Resolver(name=caller.key_id, role=caller.role, scopes=caller.scopes)


def inbox_line(request: PageRequest, row: Suspension) -> InboxLine:
    """Return an open interrupt as a line."""
    item = item_of(row)
    return InboxLine(
        item=item,
        kind=_kind(item),
        who=who_answers(item.kind, item.data),
        confidence=_confidence(item, request.host.advancer.services.floor.threshold),
        since=to_millis(item.requested_at),
        until=None if isinstance(item.expires_at, Unset) else to_millis(item.expires_at),
    )


async def find_inbox_line(request: PageRequest, run_id: str, node_id: str) -> InboxLine | None:
    """Return the open interrupt of a node; None if it has none."""
    after: tuple[int, str] | None = None
    while True:
        where = SuspensionFilter(run_id=run_id)
        page = await request.host.store.pending_interrupts(request.tenant, where, after, _AT_ONCE)
        for row in page.suspensions:
            if row.node_id == node_id:
                return inbox_line(request, row)
        after = page.next_after
        if after is None:
            return None


async def load_interrupt_view(request: PageRequest, line: InboxLine) -> InterruptView:
    """Read the content of the page of an interrupt."""
    item = line.item
    log = await request.state.logs.read(request.host.run_reader, request.tenant, item.run_id)
    return InterruptView(
        line=line,
        subject=_subject(item),
        votes=_votes(log, item),
        turns=_turns(log, item),
        backgrounds=await backgrounds_of(request, item.run_id, item.interrupt_id),
        answer_form=answer_form_of(item),
        refusal=_refusal(request, item),
    )


def _kind(item: InboxItem) -> str:
    if governance_of(item.data) is not None:
        return "Governance"
    return _KINDS.get(item.kind) or str(item.data.get("customKind", item.kind))


def _confidence(item: InboxItem, threshold: float) -> DecisionConfidence | None:
    data = item.data
    if item.kind == "low-confidence":
        return confidence_of(data.get("observed"), data.get("threshold"))
    return confidence_of(held_decision(data).get("confidence"), threshold)


def _subject(item: InboxItem) -> Json:
    """Return the subject of the interrupt; `UNSET` if it has none."""
    data = item.data
    for member in ("artifactData", "decision", "payload", "correlation"):
        if member in data:
            return data[member]
    return UNSET


def _refusal(request: PageRequest, item: InboxItem) -> str:
    if not request.may(RESPOND):
        return f"Your key cannot answer this: it lacks the scope {RESPOND}."
    is_allowed = may_resolve(item.kind, item.data, resolver_of(request))
    return "" if is_allowed else "Your key is not among the keys that may answer this."


# Events of an interrupt in the log


def _since_asked(log: DecodedLog, item: InboxItem) -> list[Entry]:
    """Return the events of the node from the request of the interrupt on."""
    own = [entry for entry in log.entries if entry.node_id == item.node_id]
    for place in range(len(own) - 1, -1, -1):
        is_request = own[place].payload.get("interruptId") == item.interrupt_id
        if is_request and own[place].event.type == "node.suspended":
            return own[place:]
    return []


_VOTE_WORDS: Final = {
    "approval.granted": "yes",
    "approval.rejected": "no",
    "approval.overridden": "override",
}


def _votes(log: DecodedLog, item: InboxItem) -> list[VoteLine]:
    votes: dict[str, VoteLine] = {}
    for entry in _since_asked(log, item):
        word = _VOTE_WORDS.get(entry.event.type)
        if word is not None:
            voter = str(entry.payload.get("principal", ""))
            reason = str(entry.payload.get("reason", ""))
            votes[voter] = VoteLine(voter, word, reason, entry.at)
    return list(votes.values())


def _turns(log: DecodedLog, item: InboxItem) -> list[TurnLine]:
    members = {"conversation.opened": "initialTurn", "conversation.exchanged": "turn"}
    return [
        _conversation_turn(object_of(entry.payload.get(members[entry.event.type])))
        for entry in _since_asked(log, item)
        if entry.event.type in members
    ]


def _conversation_turn(turn: JsonObject) -> TurnLine:
    is_person = turn.get("role") == "user"
    speaker = str(turn.get("speakerId" if is_person else "from", ""))
    return TurnLine(speaker, is_person, turn.get("content"))


READ: Final = "runs:read"
INBOX: Final = "/inbox"
# The messages for answers that do not close the interrupt.
_LEFT_OPEN: Final = {"ask": "asked", "exchange": "said"}


async def show_interrupt(request: PageRequest) -> Response:
    """Show the open interrupt of a node, or how it was closed."""
    row, node_id = await _run_and_node(request)
    line = await find_inbox_line(request, row.run_id, node_id)
    asked = request.query.get("interruptId", "")
    if line is None or asked not in ("", line.item.interrupt_id):
        return await _closed_page(request, row, node_id, asked)
    return await _open_page(request, line, local_path(request.query.get("next", INBOX)))


async def answer(request: PageRequest) -> Response:
    """Submit an answer. An invalid or late answer is shown again, with the reason."""
    request.require(READ)
    row, node_id = await _run_and_node(request)
    form = await request.form()
    interrupt_id, back = form.get("interruptId"), local_path(form.get("next") or INBOX)
    line = await find_inbox_line(request, row.run_id, node_id)
    if line is None or line.item.interrupt_id != interrupt_id:
        return await _closed_page(request, row, node_id, interrupt_id, form, 409)
    view = await load_interrupt_view(request, line)
    if view.answer_form is None:
        raise Refused(
            "This node waits for an external event. It cannot be answered here.", field="answer"
        )
    try:
        value = view.answer_form.value(form)
        is_open = await submit_answer(request, row.run_id, node_id, interrupt_id, value)
    except Refused as refused:
        return await _open_page(request, line, back, form, refused)
    except (Conflict, Gone, Unprocessable, NotFound):
        return await _closed_page(request, row, node_id, interrupt_id, form, 409)
    if not is_open:
        return request.redirect(_with_done(back, "answered"))
    done = _LEFT_OPEN.get(form.get("answer"), "voted")
    stay = f"/inbox/{quote(row.run_id, safe='')}/{quote(node_id, safe='')}"
    return request.redirect(_with_done(stay if back == INBOX else back, done))


async def submit_answer(
    request: PageRequest, run_id: str, node_id: str, interrupt_id: str, value: Json
) -> bool:
    """Submit an answer and return whether the interrupt is still open."""
    await request.host.commands.resolve_interrupt(
        request.tenant,
        run_id,
        node_id,
        None if isinstance(value, Unset) else value,
        resolver_of(request),
        interrupt_id=interrupt_id,
    )
    left = await find_inbox_line(request, run_id, node_id)
    return left is not None and left.item.interrupt_id == interrupt_id


async def rejection_text(
    request: PageRequest, run_id: str, node_id: str, interrupt_id: str, error: WoprError
) -> str:
    """Return why an answer was rejected: an earlier answer, or an error in it."""
    if not isinstance(error, Conflict):
        return error.message
    log = await request.state.logs.read(request.host.run_reader, request.tenant, run_id)
    past = resolution_of(log.entries, node_id, interrupt_id)
    if past is None:
        return error.message
    why = f": {past.reason}" if past.reason else ""
    return f"{past.by} answered first: {past.word}{why}"


def interrupt_values(request: PageRequest, back: str) -> dict[str, object]:
    """Return the other values for the template of an interrupt."""
    return {"back": back, "problem": "", "me_id": request.caller.key_id}


async def _run_and_node(request: PageRequest) -> tuple[RunRow, str]:
    """Return the run and node of the path, which must belong to the tenant."""
    row = await request.host.run_reader.row(request.tenant, run_id_of(request.http))
    node_id = request.http.path["node_id"]
    compiled = await request.host.library.version(
        request.tenant, row.workflow_id, row.workflow_version
    )
    if node_id not in compiled.graph.nodes:
        raise NotFound("This node does not exist.")
    return row, node_id


async def _open_page(
    request: PageRequest,
    line: InboxLine,
    back: str,
    form: Form | None = None,
    refused: Refused | None = None,
) -> Response:
    view = await load_interrupt_view(request, line)
    values = interrupt_values(request, back)
    if form is not None and refused is not None and view.answer_form is not None:
        answer_form = view.answer_form.with_submitted(form, refused)
        problem = "" if answer_form.has_problem else refused.message
        values |= {"answer_form": answer_form, "problem": request.http.redactor.text(problem)}
    status = 200 if refused is None else refused.status
    return await request.page(
        "interrupt.html", status, view=view, **({"answer_form": view.answer_form} | values)
    )


async def _closed_page(
    request: PageRequest,
    row: RunRow,
    node_id: str,
    interrupt_id: str,
    form: Form | None = None,
    status: int = 200,
) -> Response:
    """Return the page of a closed interrupt. `form` is an answer that came too late."""
    log = await request.state.logs.read(request.host.run_reader, request.tenant, row.run_id)
    past = resolution_of(log.entries, node_id, interrupt_id)
    return await request.page(
        "resolved.html",
        status,
        run=row,
        node_id=node_id,
        past=past,
        is_mine=past is not None and past.by == request.caller.key_id,
        late=None if form is None else _late_answer(form),
    )


def _late_answer(form: Form) -> dict[str, str]:
    """Return the fields of an answer that came too late, to show them again."""
    kept = {
        name: value
        for name, value in form.fields.items()
        if value.strip() and name not in ("csrf", "interruptId", "next", "answer")
    }
    return {"answer": form.get("answer"), **kept}


def _with_done(path: str, done: str) -> str:
    parts = urlsplit(path)
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    query = f"{parts.query}&" if parts.query else ""
    return f"{parts.path}?{query}done={done}{fragment}"


PAGES: Final = (
    Page(
        # Published as `console.wait` in metrics and the audit log.
        name="wait",
        path="/inbox/{run_id}/{node_id}",
        get=show_interrupt,
        post=answer,
        has_large_form=True,
        scope=READ,
        post_scope=RESPOND,
        action="interrupt.resolve",
    ),
)
