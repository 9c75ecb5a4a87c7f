"""The payload struct of every event type, and the check of a payload against it.

The structs of one family are in one module of this package. Vendor event types are not in
`PAYLOADS`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wopr.protocol.documents import Json
from wopr.protocol.events import (
    access,
    agent,
    channel,
    conversation,
    interrupt,
    is_known_type,
    memory,
    model,
    node,
    orchestrator,
    other,
    replay,
    run,
    voice,
)

PAYLOADS: Final[dict[str, type[msgspec.Struct]]] = {
    **run.PAYLOADS,
    **node.PAYLOADS,
    **interrupt.PAYLOADS,
    **channel.PAYLOADS,
    **agent.PAYLOADS,
    **model.PAYLOADS,
    **orchestrator.PAYLOADS,
    **conversation.PAYLOADS,
    **memory.PAYLOADS,
    **replay.PAYLOADS,
    **access.PAYLOADS,
    **other.PAYLOADS,
    **voice.PAYLOADS,
}


def payload_fault(event_type: str, payload: Json) -> str | None:
    """Return the fault of a payload, or None. Payloads of vendor event types may be any JSON."""
    struct = PAYLOADS.get(event_type)
    if struct is None:
        return None if is_known_type(event_type) else f"{event_type} is not an event type"
    try:
        msgspec.convert(payload, struct)
    except msgspec.ValidationError as fault:
        return f"{event_type}: {fault}"
    return None
