"""One wait as its page shows it: the question, the case behind it, the votes and the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wopr.console.answering import offer_of
from wopr.console.case import Case, cases_of
from wopr.console.json_values import object_of
from wopr.console.offer import Offer
from wopr.console.run_log import Entry, RunLog
from wopr.console.story import Sureness, sureness_of
from wopr.console.visit import Visit
from wopr.console.waiting import item_of, who_answers
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset
from wopr.protocol.interrupts import is_vendor_kind
from wopr.protocol.times import to_millis
from wopr.runtime.entitled import governance_of, held_decision, may_answer
from wopr.runtime.inbox import InboxItem
from wopr.runtime.waits import Resolver
from wopr.store.port import Suspension, SuspensionFilter

RESPOND: Final = "approvals:respond"
_AT_ONCE: Final = 100
# The beats of an agent's story that say why it did what it did.
_REASONS: Final = ("reasoning", "reasoned", "decided")
_KINDS: Final = {
    "approval": "Approval",
    "clarification": "Questions",
    "external-event": "Event",
    "low-confidence": "Low confidence",
    "conversation.exchange": "Conversation",
}


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait as a line of the inbox."""

    item: InboxItem
    kind: str
    who: str
    sureness: Sureness | None
    since: int
    until: int | None

    @property
    def asker(self) -> str:
        """The agent that asks, or the node."""
        agent = self.item.asked_by.agent_id
        return self.item.asked_by.node_name if isinstance(agent, Unset) else agent

    @property
    def is_quick(self) -> bool:
        """Whether a yes or a no is an answer, so that many can be answered together."""
        kind = self.item.kind
        return kind in ("approval", "low-confidence") or is_vendor_kind(kind)


@dataclass(frozen=True, slots=True)
class Vote:
    """One vote on a gate, the last of its voter."""

    voter: str
    word: str
    reason: str
    at: int


@dataclass(frozen=True, slots=True)
class Said:
    """One turn of a conversation."""

    speaker: str
    is_person: bool
    content: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitView:
    """What the page of one wait shows. `refusal` says why the visitor cannot answer it."""

    wait: Wait
    shown: Json
    votes: Sequence[Vote]
    turns: Sequence[Said]
    # The case of the run that waits, then those of its parent runs.
    cases: Sequence[Case]
    offer: Offer | None
    refusal: str

    @property
    def excerpt(self) -> str:
        """The last reason that the agent gave: the node's own agent, else the last one before it.

        A model wrote it, so the page marks it as untrusted.
        """
        turns = [turn for case in self.cases[:1] for turn in case.turns]
        own = [turn for turn in turns if turn.node_id == self.wait.item.node_id]
        beats = [beat for turn in (own or turns)[-1:] for beat in turn.beats]
        given = [beat.text for beat in beats if beat.text and beat.kind in _REASONS]
        return given[-1] if given else ""


def resolver_of(visit: Visit) -> Resolver:
    """Who answers: whoever is signed in, in their own name."""
    caller = visit.caller
    return Resolver(name=caller.key_id, role=caller.role, scopes=caller.scopes)


def wait_of(visit: Visit, row: Suspension) -> Wait:
    """A pending interrupt as a line."""
    item = item_of(row)
    return Wait(
        item=item,
        kind=_kind(item),
        who=who_answers(item.kind, item.data),
        sureness=_sureness(item, visit.host.advancer.services.floor.threshold),
        since=to_millis(item.requested_at),
        until=None if isinstance(item.expires_at, Unset) else to_millis(item.expires_at),
    )


async def find_wait(visit: Visit, run_id: str, node_id: str) -> Wait | None:
    """What a node of a run waits for now; None when it does not wait."""
    after: tuple[int, str] | None = None
    while True:
        where = SuspensionFilter(run_id=run_id)
        page = await visit.host.store.pending(visit.tenant, where, after, _AT_ONCE)
        for row in page.suspensions:
            if row.node_id == node_id:
                return wait_of(visit, row)
        after = page.next_after
        if after is None:
            return None


async def look_at(visit: Visit, wait: Wait) -> WaitView:
    """Read what the page of a wait shows."""
    item = wait.item
    log = await visit.desk.logs.read(visit.host.readers, visit.tenant, item.run_id)
    return WaitView(
        wait=wait,
        shown=_shown(item),
        votes=_votes(log, item),
        turns=_turns(log, item),
        cases=await cases_of(visit, item.run_id, item.interrupt_id),
        offer=offer_of(item),
        refusal=_refusal(visit, item),
    )


def _kind(item: InboxItem) -> str:
    if governance_of(item.data) is not None:
        return "Governance"
    return _KINDS.get(item.kind) or str(item.data.get("customKind", item.kind))


def _sureness(item: InboxItem, floor: float) -> Sureness | None:
    data = item.data
    if item.kind == "low-confidence":
        return sureness_of(data.get("observed"), data.get("threshold"))
    return sureness_of(held_decision(data).get("confidence"), floor)


def _shown(item: InboxItem) -> Json:
    """What is to be judged, if the wait brings anything along."""
    data = item.data
    for member in ("artifactData", "decision", "payload", "correlation"):
        if member in data:
            return data[member]
    return UNSET


def _refusal(visit: Visit, item: InboxItem) -> str:
    if not visit.may(RESPOND):
        return f"Your key may look at this and not answer it: it lacks the scope {RESPOND}."
    is_theirs = may_answer(item.kind, item.data, resolver_of(visit))
    return "" if is_theirs else "This gate is for others; your key is not among them."


# What the log says of a wait


def _since_asked(log: RunLog, item: InboxItem) -> list[Entry]:
    """The node's events from the one on by which it asked."""
    own = [entry for entry in log.entries if entry.node_id == item.node_id]
    for place in range(len(own) - 1, -1, -1):
        asked = own[place].payload.get("interruptId") == item.interrupt_id
        if asked and own[place].event.type == "node.suspended":
            return own[place:]
    return []


_BALLOTS: Final = {
    "approval.granted": "yes",
    "approval.rejected": "no",
    "approval.overridden": "override",
}


def _votes(log: RunLog, item: InboxItem) -> list[Vote]:
    votes: dict[str, Vote] = {}
    for entry in _since_asked(log, item):
        word = _BALLOTS.get(entry.event.type)
        if word is not None:
            voter = str(entry.payload.get("principal", ""))
            reason = str(entry.payload.get("reason", ""))
            votes[voter] = Vote(voter, word, reason, entry.at)
    return list(votes.values())


def _turns(log: RunLog, item: InboxItem) -> list[Said]:
    members = {"conversation.opened": "initialTurn", "conversation.exchanged": "turn"}
    return [
        _said(object_of(entry.payload.get(members[entry.event.type])))
        for entry in _since_asked(log, item)
        if entry.event.type in members
    ]


def _said(turn: JsonObject) -> Said:
    is_person = turn.get("role") == "user"
    speaker = str(turn.get("speakerId" if is_person else "from", ""))
    return Said(speaker, is_person, turn.get("content"))
