"""Events of a run as a program reads them: the envelope, and the payload as its own type."""

from __future__ import annotations

import msgspec

from wopr.api.errors import HostUnreachable
from wopr.api.stream import Frame
from wopr.protocol.documents import UNSET, Document, Id, Json, Unset
from wopr.protocol.events import RUN_TERMINAL_TYPES
from wopr.protocol.payloads import PAYLOADS


class Event(Document, frozen=True, kw_only=True):
    """One line of a run's log, or a notice that is not on it and has no sequence.

    `payload` is what the wire carried; `data` is the same as a typed struct.
    """

    type: str
    payload: Json = None
    sequence: int | Unset = UNSET
    timestamp: str = ""
    event_id: str = ""
    run_id: Id | Unset = UNSET
    node_id: str = ""
    causation_id: str = ""

    @property
    def data(self) -> msgspec.Struct | None:
        """The payload as the struct of its type; None for types that this version does not know."""
        kind = PAYLOADS.get(self.type)
        if kind is None:
            return None
        try:
            return msgspec.convert(self.payload, kind)
        except msgspec.ValidationError:
            return None

    @property
    def is_terminal(self) -> bool:
        """Tell whether the run ended with this event."""
        return self.type in RUN_TERMINAL_TYPES


def read_event(frame: Frame) -> Event:
    """Read the event that a frame carries."""
    try:
        return msgspec.json.decode(frame.data, type=Event)
    except (msgspec.DecodeError, UnicodeError):
        return _notice(frame)


def _notice(frame: Frame) -> Event:
    """What is not an event of the log comes without an envelope."""
    try:
        payload = msgspec.json.decode(frame.data)
    except (msgspec.DecodeError, UnicodeError) as fault:
        raise HostUnreachable(
            f"the host sent a {frame.event} frame that is not JSON", code="bad_answer"
        ) from fault
    return Event(type=frame.event, payload=payload)
