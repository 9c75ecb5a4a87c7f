"""The payload of every event type, as structs; one module per family.

`PAYLOADS` names the struct of each protocol type. A vendor's own types are not in it. The
families that this host only reads are found through it alone.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wopr.protocol.payloads import (
    access,
    agent,
    channel,
    conversation,
    interrupt,
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
