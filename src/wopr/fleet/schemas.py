"""The JSON Schemas of both KAHN families, generated from the structs that check the lines."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from wopr.fleet.events import AgentEvent, CiEvent
from wopr.fleet.reading import TOLD_OUTCOMES

Schema: TypeAlias = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
AGENT_SCHEMA: Final = "kahn-agent-event"
CI_SCHEMA: Final = "kahn-ci-event"

# What no type can say: which fields are there only because of another one.
_CONDITIONS: Final[dict[str, Schema]] = {
    "NodeTransition": {
        "if": {"properties": {"to": {"const": "running"}}, "required": ["to"]},
        "then": {"required": ["attempt"]},
        "else": {"not": {"required": ["attempt"]}},
    },
    "NodeAttempt": {
        "if": {"properties": {"attempt": {"const": 1}}, "required": ["attempt"]},
        "then": {"not": {"required": ["backoff_s"]}},
    },
    "DoneWhenResult": {
        "if": {"properties": {"rc": {"const": 0}}, "required": ["rc"]},
        "then": {"not": {"required": ["tail"]}},
        "dependentRequired": {"truncated": ["tail"]},
    },
    "RunEnd": {
        "if": {"properties": {"outcome": {"enum": list(TOLD_OUTCOMES)}}, "required": ["outcome"]},
        "then": {"required": ["exit_code"]},
    },
}


def export() -> dict[str, Schema]:
    """Generate the schema of each family, by its stable name."""
    return {
        AGENT_SCHEMA: _schema(AGENT_SCHEMA, "A line of the agent family.", AgentEvent),
        CI_SCHEMA: _schema(CI_SCHEMA, "A line of the CI family.", CiEvent),
    }


def _schema(name: str, description: str, family: Any) -> Schema:
    generated = msgspec.json.schema(family)
    for shape, conditions in _CONDITIONS.items():
        if shape in generated["$defs"]:
            generated["$defs"][shape] |= conditions
    head = {"$schema": DIALECT, "$id": f"/v1/schemas/{name}.json", "description": description}
    return head | generated
