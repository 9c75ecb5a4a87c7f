"""The record that a replay follows: the source's log, without what was done to it from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from wopr.engine.diff import is_same_event
from wopr.engine.expression_tokens import is_object
from wopr.engine.fold import INTERRUPTIONS, fold
from wopr.engine.history import moved_by
from wopr.engine.limits import HostLimits
from wopr.engine.plan import plan
from wopr.engine.state import RunState
from wopr.engine.steps import Finish, Step
from wopr.protocol.documents import Json, Unset
from wopr.protocol.events import RunEvent
from wopr.protocol.times import to_millis

# The field of a log line that holds the key of a model request.
REQUEST_KEY = "requestKey"
# Where a replay differs that would ask a model something else; it takes the recorded answer.
CHANGED_PROMPT = "model-request"
# What operators did to the source while it ran. A pause is repeated as it stands; a cancellation
# is not: the replay shows how the run would have gone on.
_COMMANDS = frozenset({"run.paused", "run.resumed"})


class Record:
    """A source log as a script: which event comes next, and when it came."""

    def __init__(self, events: Iterable[RunEvent]) -> None:
        told = [event for event in events if not event.type.startswith("replay.")]
        end = _before_cancellation(told)
        self.events = told[:end]
        # How the source was cancelled: a replay goes on instead, and differs from there.
        self.cancellation = told[end:]

    def at(self, place: int) -> RunEvent | None:
        """The event at this place of the script; None past its end."""
        return self.events[place] if place < len(self.events) else None

    def cancelled_at(self, place: int) -> RunEvent | None:
        """The event of the source's cancellation at this place, past the end of the script."""
        index = place - len(self.events)
        return self.cancellation[index] if 0 <= index < len(self.cancellation) else None

    def time(self, place: int, fallback: int) -> int:
        """When the event at this place came; past the end, time goes on from the last."""
        event = self.at(place)
        return fallback if event is None else to_millis(event.timestamp)


def _before_cancellation(events: list[RunEvent]) -> int:
    """How many events lie before the source's cancellation; all of them if it had none."""
    end = len(events)
    if not events or events[-1].type != "run.cancelled":
        return end
    end -= 1
    while end and events[end - 1].type == "node.cancelled":
        end -= 1
    return end


def is_command(event: RunEvent) -> bool:
    """Whether an operator caused this event."""
    if event.type in _COMMANDS:
        return True
    payload = event.payload
    is_interruption = event.type == "node.cancelled" and is_object(payload)
    return is_interruption and payload.get("reason") in INTERRUPTIONS


def is_about(step: Step, event: RunEvent) -> bool:
    """Whether an event may be what a step came to."""
    return not isinstance(step, Finish) and step.node_id == event.node_id


def still_planned(
    begin: RunState,
    events: Iterable[RunEvent],
    limits: HostLimits,
    reveal: Callable[[RunState], RunState],
) -> list[Step]:
    """The steps that were planned at once with the last of these events and that come after it.

    All steps of a plan are taken, whatever the first of them change. A replay that begins in the
    midst of them must not plan anew.
    """
    state, left = begin, list[Step]()
    for event in events:
        node = state.nodes.get(str(event.node_id))
        if node is not None and node.status not in ("running", "suspended", "resuming"):
            if not any(is_about(step, event) for step in left):
                now = to_millis(event.timestamp) + moved_by(state.identity, state.next_sequence)
                left = list(plan(reveal(state), now, limits).steps)
            is_planned = any(is_about(step, event) for step in left)
            left = [step for step in left if not is_about(step, event)] if is_planned else []
        state = fold(state, event)
    return left


def asked_key(event: RunEvent) -> str | None:
    """The key of the model request that an event tells of; None for every other event."""
    payload = event.payload
    fields: Json = payload.get("fields") if is_object(payload) else None
    if event.type != "log.appended" or not is_object(fields):
        return None
    key: Json = fields.get(REQUEST_KEY)
    return key if isinstance(key, str) else None


def divergence(expected: RunEvent | None, actual: RunEvent) -> str | None:
    """How an event differs from the record; None when it does not."""
    if expected is None:
        return "extra"
    if expected.type != actual.type or _node(expected) != _node(actual):
        return "type-mismatch"
    return None if is_same_event(expected, actual) else "output"


def _node(event: RunEvent) -> str | None:
    return None if isinstance(event.node_id, Unset) else event.node_id
