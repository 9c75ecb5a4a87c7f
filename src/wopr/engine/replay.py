"""The record that a replay follows: the source's log without operators' commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from wopr.engine.diff import is_same_event
from wopr.engine.fold.fold import INTERRUPTIONS, fold
from wopr.engine.limits import HostLimits
from wopr.engine.plan import Finish, Step, plan
from wopr.engine.state import RunState, time_shift
from wopr.protocol.documents import Json, Unset, is_object, to_millis
from wopr.protocol.events import RunEvent

# The field of a log line that holds the key of a model request.
REQUEST_KEY = "requestKey"
# The path of a divergence in a model request. The replay uses the recorded response.
CHANGED_PROMPT = "model-request"
# Events of operators' commands that a replay repeats as recorded. It does not repeat a
# cancellation: the replay shows how the run would have continued.
_COMMANDS = frozenset({"run.paused", "run.resumed"})


class ReplayRecord:
    """The source log that a replay follows."""

    def __init__(self, events: Iterable[RunEvent]) -> None:
        recorded = [event for event in events if not event.type.startswith("replay.")]
        end = _before_cancellation(recorded)
        self.events = recorded[:end]
        # The cancellation of the source. A replay continues instead, and diverges there.
        self.cancellation = recorded[end:]

    def at(self, place: int) -> RunEvent | None:
        """Return the event at a position, or None past the end."""
        return self.events[place] if place < len(self.events) else None

    def cancellation_at(self, place: int) -> RunEvent | None:
        """Return the source's cancellation at a position past the end of `events`, or None."""
        index = place - len(self.events)
        return self.cancellation[index] if 0 <= index < len(self.cancellation) else None

    def time(self, place: int, fallback: int) -> int:
        """Return the time of the event at a position; past the end, `fallback`."""
        event = self.at(place)
        return fallback if event is None else to_millis(event.timestamp)


def _before_cancellation(events: list[RunEvent]) -> int:
    """Return the number of events before the source's cancellation; all if it was not cancelled."""
    end = len(events)
    if not events or events[-1].type != "run.cancelled":
        return end
    end -= 1
    while end and events[end - 1].type == "node.cancelled":
        end -= 1
    return end


def is_command(event: RunEvent) -> bool:
    """Return whether an operator caused this event."""
    if event.type in _COMMANDS:
        return True
    payload = event.payload
    is_interruption = event.type == "node.cancelled" and is_object(payload)
    return is_interruption and payload.get("reason") in INTERRUPTIONS


def is_about(step: Step, event: RunEvent) -> bool:
    """Return whether an event may be the result of a step."""
    return not isinstance(step, Finish) and step.node_id == event.node_id


def remaining_steps(
    begin: RunState,
    events: Iterable[RunEvent],
    limits: HostLimits,
    unmask: Callable[[RunState], RunState],
) -> list[Step]:
    """Return the steps of the last plan that were not taken before the last event.

    All steps of a plan are taken, even if the first steps change the state. A replay that begins in
    the middle of a plan must not plan again. `unmask` restores sensitive values of a state.
    """
    state, left = begin, list[Step]()
    for event in events:
        node = state.nodes.get(str(event.node_id))
        if node is not None and node.status not in ("running", "suspended", "resuming"):
            if not any(is_about(step, event) for step in left):
                now = to_millis(event.timestamp) + time_shift(state.identity, state.next_sequence)
                left = list(plan(unmask(state), now, limits).steps)
            is_planned = any(is_about(step, event) for step in left)
            left = [step for step in left if not is_about(step, event)] if is_planned else []
        state = fold(state, event)
    return left


def request_key_of(event: RunEvent) -> str | None:
    """Return the key of the model request that an event records, or None for other events."""
    payload = event.payload
    fields: Json = payload.get("fields") if is_object(payload) else None
    if event.type != "log.appended" or not is_object(fields):
        return None
    key: Json = fields.get(REQUEST_KEY)
    return key if isinstance(key, str) else None


def divergence(expected: RunEvent | None, actual: RunEvent) -> str | None:
    """Return how an event differs from the record, or None if it does not."""
    if expected is None:
        return "extra"
    if expected.type != actual.type or _node(expected) != _node(actual):
        return "type-mismatch"
    return None if is_same_event(expected, actual) else "output"


def _node(event: RunEvent) -> str | None:
    return None if isinstance(event.node_id, Unset) else event.node_id
