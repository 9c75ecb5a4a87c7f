"""A supervisor's decisions: how one is read, and what a person may say to one."""

from __future__ import annotations

from typing import Final

import msgspec

from wopr.engine.outcome import NodeFailure
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.payloads.orchestrator import OrchestratorDecision

(_DECISION,), _DEFS = msgspec.json.schema_components([OrchestratorDecision])
# The schema of a decision, for use inside the schemas that `answers` makes.
DECISION: Final[JsonObject] = _DECISION
YES_OR_NO: Final[JsonObject] = {"enum": ["accept", "reject"]}


def read_decision(value: Json) -> OrchestratorDecision:
    """Read a decision. Raises `msgspec.ValidationError`."""
    read: OrchestratorDecision = msgspec.convert(value, OrchestratorDecision)
    return read


def given_instead(value: Json) -> JsonObject:
    """A decision that a person gave in place of the supervisor's."""
    try:
        read_decision(value)
    except msgspec.ValidationError as fault:
        raise NodeFailure(
            f"the decision given instead: {fault}", code="validation_error", retryable=False
        ) from fault
    decision: JsonObject = value
    return decision


def answers(*forms: JsonObject) -> JsonObject:
    """The schema of an answer in one of these forms; one in another leaves the run waiting."""
    return {"anyOf": list(forms), "$defs": _DEFS}


def members(**schemas: JsonObject) -> JsonObject:
    """The schema of an object with at least these members."""
    return {"type": "object", "required": list(schemas), "properties": schemas}
