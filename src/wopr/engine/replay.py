"""The record that a replay follows: the source's log, without what was done to it from outside."""

from __future__ import annotations

from collections.abc import Iterable

from wopr.engine.diff import is_same_event
from wopr.engine.expression_tokens import is_object
from wopr.engine.fold import INTERRUPTIONS
from wopr.protocol.documents import Unset
from wopr.protocol.events import RunEvent
from wopr.protocol.times import to_millis

# What operators did to the source while it ran. A pause is repeated as it stands; a cancellation
# is not: the replay shows how the run would have gone on.
_COMMANDS = frozenset({"run.paused", "run.resumed"})


class Record:
    """A source log as a script: which event comes next, and when it came."""

    def __init__(self, events: Iterable[RunEvent]) -> None:
        self.events = _without_cancellation(list(events))

    def at(self, place: int) -> RunEvent | None:
        """The event at this place of the script; None past its end."""
        return self.events[place] if place < len(self.events) else None

    def time(self, place: int, fallback: int) -> int:
        """When the event at this place came; past the end, time goes on from the last."""
        event = self.at(place)
        return fallback if event is None else to_millis(event.timestamp)


def _without_cancellation(events: list[RunEvent]) -> list[RunEvent]:
    kept = [event for event in events if not event.type.startswith("replay.")]
    if not kept or kept[-1].type != "run.cancelled":
        return kept
    kept.pop()
    while kept and str(kept[-1].type) == "node.cancelled":
        kept.pop()
    return kept


def is_command(event: RunEvent) -> bool:
    """Whether an operator caused this event."""
    if event.type in _COMMANDS:
        return True
    payload = event.payload
    is_interruption = event.type == "node.cancelled" and is_object(payload)
    return is_interruption and payload.get("reason") in INTERRUPTIONS


def divergence(expected: RunEvent | None, actual: RunEvent) -> str | None:
    """How an event differs from the record; None when it does not."""
    if expected is None:
        return "extra"
    if expected.type != actual.type or _node(expected) != _node(actual):
        return "type-mismatch"
    return None if is_same_event(expected, actual) else "output"


def _node(event: RunEvent) -> str | None:
    return None if isinstance(event.node_id, Unset) else event.node_id
