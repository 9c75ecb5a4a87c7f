"""What the log shows of an answer to a node whose outputs are sensitive.

What leads to such outputs is sensitive too, and there are often few answers that it could be, so
that even a hash would tell. The protocol's own words stay: they say what happened, not what about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wopr.engine.expression_tokens import is_object
from wopr.protocol.documents import Json, JsonObject
from wopr.security.shapes import MASK

_VERDICTS: Final = ("accept", "reject")
# By kind of wait: members of its answer that may hold a word of the protocol.
_WORDS: Final[Mapping[str, Mapping[str, tuple[Json, ...]]]] = {
    "approval": {
        "action": (*_VERDICTS, "refine", "edit-accept", "ask"),
        # The answer to a governance gate.
        "decision": ("granted", "rejected"),
    },
    "low-confidence": {"action": _VERDICTS, "ratified": (True,), "rejected": (True,)},
    "conversation.exchange": {"operation": ("exchange", "close")},
}
# Members of events, beside the answer itself, that repeat what somebody said.
_SAID: Final[Mapping[str, tuple[str, ...]]] = {
    "clarification.resolved": ("answers",),
    "approval.received": ("comment", "feedback", "refineFeedback", "editedArtifactData"),
    "interrupt.resolved": ("refineFeedback", "editedArtifactData"),
    "approval.rejected": ("reason",),
    "approval.overridden": ("reason",),
    "conversation.exchanged": ("turn",),
    "conversation.closed": ("finalTurn", "outcome"),
}


def private_part(kind: str, value: Json) -> Json:
    """An answer without the protocol's words; all of it where it has none."""
    if not is_object(value):
        return value
    words = _words(kind, value)
    return {name: said for name, said in value.items() if name not in words}


def shown_answer(kind: str, value: Json) -> Json:
    """An answer as the log has it: its form stays, so that a replay can read it."""
    if not is_object(value):
        return MASK
    words = _words(kind, value)
    # A decision instead of the agent's is told no more than the agent's own.
    if kind == "low-confidence" and not words and "decision" not in value:
        return MASK
    return {name: said if name in words else _masked(name, said) for name, said in value.items()}


def true_answer(shown: Json, private: Json) -> Json:
    """The answer as it was given, from what the log shows and what it hides."""
    return {**shown, **private} if is_object(shown) and is_object(private) else private


def shown_members(event_type: str, payload: JsonObject) -> JsonObject:
    """The members of an event that repeat what somebody said or a supervisor decided, masked."""
    if event_type == "runOrchestrator.decided":
        return {"decision": _shown_choice(payload["decision"])}
    names = _SAID.get(event_type, ())
    return {name: _masked(name, payload[name]) for name in names if name in payload}


def said_in(turn: Json) -> Json:
    """What was said in a turn of a conversation; None in anything else."""
    return turn.get("content") if is_object(turn) and "turnIndex" in turn else None


def shown_turn(turn: Json) -> Json:
    """A turn of a conversation without what was said; whatever else it is given stays."""
    return turn if said_in(turn) is None else {**turn, "content": MASK}


def _words(kind: str, value: JsonObject) -> set[str]:
    known = _WORDS.get(kind, {})
    return {name for name, said in value.items() if said in known.get(name, ())}


def _masked(name: str, said: Json) -> Json:
    """A mask in the form that the member must have."""
    match name:
        case "answers" if is_object(said):
            return dict.fromkeys(said, MASK)
        case "refineFeedback" if is_object(said):
            return {"scope": said["scope"]} | ({"text": MASK} if len(said) > 1 else {})
        case "turn" | "finalTurn":
            return shown_turn(said)
        case _:
            return MASK


def _shown_choice(decision: JsonObject) -> JsonObject:
    """A supervisor's decision of which only the kind is told, and how many workers it names."""
    shown: JsonObject = {"kind": decision["kind"]}
    if "nextWorkerIds" in decision:
        shown["nextWorkerIds"] = [MASK] * len(decision["nextWorkerIds"])
    if "prompt" in decision:
        shown["prompt"] = MASK
    return shown
