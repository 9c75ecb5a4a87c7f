"""Decisions that are below the confidence floor."""

from __future__ import annotations

from tests.support.agent_definitions import next_worker, supervised, waiting_run
from tests.support.client import Wire
from wopr.protocol.documents import Json, JsonObject

UNSURE = next_worker("conformance-noop", confidence=0.3)
OTHER = "conformance-multi-agent-handoff-child"


def escalated(wire: Wire, *plan: JsonObject, **body: Json) -> str:
    """Start a run whose first decision waits for a person."""
    return waiting_run(wire, wire.register(supervised(*plan)), **body)
