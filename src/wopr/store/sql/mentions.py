"""Find an event by its id among those that mention it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from wopr.store.port import StoredEvent
from wopr.store.sql.dialect import Row


class _EventId(msgspec.Struct, rename="camel"):
    """What is read of an event to tell it from those that mention it."""

    event_id: str = ""


_event_id = msgspec.json.Decoder(_EventId)


def event_of(rows: Sequence[Row], event_id: str) -> StoredEvent | None:
    """The event with that id among rows of sequence, type and body."""
    for sequence, kind, body in rows:
        if _event_id.decode(body).event_id == event_id:
            return StoredEvent(sequence=sequence, type=kind, body=body)
    return None
