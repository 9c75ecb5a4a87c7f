"""The check of a payload against the struct of its event type."""

from __future__ import annotations

import msgspec

from wopr.protocol.documents import Json
from wopr.protocol.events import is_known_type
from wopr.protocol.payloads import PAYLOADS


def faults(event_type: str, payload: Json) -> str | None:
    """Say what is wrong with a payload, or `None`; a vendor's own types may hold any JSON."""
    struct = PAYLOADS.get(event_type)
    if struct is None:
        return None if is_known_type(event_type) else f"{event_type} is no event type"
    try:
        msgspec.convert(payload, struct)
    except msgspec.ValidationError as fault:
        return f"{event_type}: {fault}"
    return None
