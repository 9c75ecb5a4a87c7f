"""How a wait ended: told to whoever comes too late to answer it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wopr.console.json_values import object_of
from wopr.console.run_log import Entry
from wopr.protocol.documents import Json

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
class Settled:
    """Who ended a wait, when and with what."""

    by: str
    at: int
    word: str
    reason: str
    value: Json
    sequence: int


def settled(entries: Sequence[Entry], node_id: str, interrupt_id: str) -> Settled | None:
    """How a wait was answered; without its id, the last one of the node. None when nobody did."""
    for entry in reversed(entries):
        payload = entry.payload
        is_answer = entry.event.type == "interrupt.resolved" and entry.node_id == node_id
        if is_answer and interrupt_id in ("", payload.get("interruptId")):
            value: Json = payload.get("resumeValue")
            return Settled(
                by=str(payload.get("resolvedBy", "")),
                at=entry.at,
                word=word_of(value),
                reason=_reason(value),
                value=value,
                sequence=entry.sequence,
            )
    return None


def word_of(value: Json) -> str:
    """An answer in a word or two."""
    said = object_of(value)
    named: Json = said.get("action") or said.get("operation")
    if named is None and isinstance(said.get("decision"), str):
        named = said["decision"]
    known = _ACTIONS.get(named) if isinstance(named, str) else None
    if known is not None:
        return known
    return "decided otherwise" if "decision" in said else "answered"


def _reason(value: Json) -> str:
    said = object_of(value)
    refined = object_of(said.get("refineFeedback")).get("text")
    found: Json = said.get("feedback") or said.get("reason") or refined
    return found if isinstance(found, str) else ""
