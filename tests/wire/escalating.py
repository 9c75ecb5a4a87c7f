"""Decisions that are too unsure to be carried out."""

from __future__ import annotations

from tests.wire.agent_definitions import next_worker, supervised, waiting
from tests.wire.client import Wire
from wopr.protocol.documents import Json, JsonObject

UNSURE = next_worker("conformance-noop", confidence=0.3)
OTHER = "conformance-multi-agent-handoff-child"


def escalated(wire: Wire, *plan: JsonObject, **body: Json) -> str:
    """A run whose first decision waits for a person."""
    return waiting(wire, wire.register(supervised(*plan)), **body)
