"""Open interrupts of a run, and who may answer them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from wopr.protocol.documents import Json, JsonObject, Unset, list_of, to_millis
from wopr.protocol.interrupts import InboxItem
from wopr.runs.interrupts.approvals import governance_of
from wopr.store.port import Suspension, SuspensionFilter, Suspensions

SHOWN: Final = 20
_ITEM: Final = msgspec.json.Decoder(InboxItem)
_WHAT: Final = {
    "approval": "an approval",
    "clarification": "an answer",
    "external-event": "an event",
    "low-confidence": "a person to ratify a decision",
    "conversation.exchange": "the next turn of a conversation",
}


@dataclass(frozen=True, slots=True)
class OpenInterrupt:
    """One open interrupt of a run."""

    run_id: str
    node_id: str
    interrupt_id: str
    node_name: str
    what: str
    who: str
    question: str
    since: int
    until: int | None
    votes: str


async def open_interrupts_of(store: Suspensions, tenant: str, run_id: str) -> list[OpenInterrupt]:
    """Return the open interrupts of one run."""
    page = await store.pending_interrupts(tenant, SuspensionFilter(run_id=run_id), None, SHOWN)
    return [_open_interrupt(row) for row in page.suspensions]


def item_of(row: Suspension) -> InboxItem:
    """Decode the inbox item of a suspension."""
    return _ITEM.decode(row.body)


def _open_interrupt(row: Suspension) -> OpenInterrupt:
    item = item_of(row)
    votes = item.votes
    return OpenInterrupt(
        run_id=item.run_id,
        node_id=item.node_id,
        interrupt_id=item.interrupt_id,
        node_name=item.asked_by.node_name,
        what=_WHAT.get(item.kind, item.kind),
        who=who_answers(item.kind, item.data),
        question=item.question,
        since=to_millis(item.requested_at),
        until=None if isinstance(item.expires_at, Unset) else to_millis(item.expires_at),
        votes="" if isinstance(votes, Unset) else f"{votes.granted} of {votes.required}",
    )


def who_answers(kind: str, data: JsonObject) -> str:
    """Return who may answer, as text."""
    if kind == "external-event":
        return "an external system"
    rule = governance_of(data)
    if rule is not None:
        return _governors(msgspec.to_builtins(rule))
    named = [
        *_texts(data.get("approversList")),
        *(f"role {name}" for name in _texts(data.get("approverRoleRefs"))),
        *(f"group {name}" for name in _texts(data.get("approverGroupRefs"))),
    ]
    return ", ".join(named) or "anyone with the scope approvals:respond"


def _governors(rule: JsonObject) -> str:
    named = (("role", "requiredRole"), ("scope", "requiredScope"))
    needed = " with ".join(f"{word} {rule[name]}" for word, name in named if name in rule)
    override = f"; {rule['overrideRole']} may override" if "overrideRole" in rule else ""
    return needed + override


def _texts(value: Json) -> list[str]:
    return [str(each) for each in list_of(value)]
