"""The nine KAHN events as structs, and their JSON Schemas (sections 1 to 3).

Decoding validates a line. Unknown fields are allowed, because a line is stored byte for byte.
`null` is valid only in `audit_checkpoint.agent_id`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from wopr.kahn.timestamps import require_valid_time
from wopr.protocol.documents import UNSET, JsonObject, NonEmpty, Unset
from wopr.protocol.resources.fleet import AgentOutcome

NodeStatus: TypeAlias = Literal["pending", "ready", "running", "done", "failed", "blocked"]
CiOutcome: TypeAlias = Literal["clean", "clean_with_flake", "partial", "stuck", "catastrophic"]
AgentStatus: TypeAlias = Literal[
    "thinking",
    "tool_call",
    "tool_result",
    "response",
    "reflect",
    "blocked-on-clarification",
    "converged",
    "failed",
]
AuditResult: TypeAlias = Literal["pass", "fail", "warn"]

SUMMARY_LENGTH: Final = 2048
TAIL_LENGTH: Final = 4096


# The description of each pattern of this module, for error messages.
PATTERN_DESCRIPTIONS: Final[dict[str, str]] = {}


def _string_pattern(pattern: str, description: str, **more: str) -> msgspec.Meta:
    """Return a pattern for the whole string that works in Python and in JSON Schema.

    In Python `$` alone would also match before a final newline.
    """
    whole = rf"^{pattern}$(?!\n)"
    PATTERN_DESCRIPTIONS[whole] = description
    return msgspec.Meta(pattern=whole, extra_json_schema=more or None)


Timestamp = Annotated[
    str,
    _string_pattern(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z",
        "a time in UTC with milliseconds, such as 2026-01-31T08:00:00.000Z",
        format="date-time",
    ),
]
RunId = Annotated[
    str,
    _string_pattern(
        r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}",
        "1 to 64 letters, digits, '_' or '-', the first a letter or digit",
    ),
]
AgentId = Annotated[
    str,
    _string_pattern(
        r"[a-z0-9][a-z0-9:-]{0,63}",
        "1 to 64 lower-case letters, digits, ':' or '-', the first a letter or digit",
    ),
]
CheckpointId = Annotated[
    str,
    _string_pattern(
        r"[a-z0-9][a-z0-9:.-]{0,127}",
        "1 to 128 lower-case letters, digits, ':', '.' or '-', the first a letter or digit",
    ),
]
NodeId = Annotated[
    str,
    _string_pattern(
        r"[a-z0-9][a-z0-9-]{0,63}",
        "1 to 64 lower-case letters, digits or '-', the first a letter or digit",
    ),
]
Count = Annotated[int, msgspec.Meta(ge=0)]
Ordinal = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
Summary = Annotated[str, msgspec.Meta(max_length=SUMMARY_LENGTH)]
Tail = Annotated[str, msgspec.Meta(max_length=TAIL_LENGTH)]


# Events have no reference cycles, so the garbage collector need not track them.
class EventBase(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", gc=False):
    """The fields of every event besides its name."""

    ts: Timestamp
    run_id: RunId

    def __post_init__(self) -> None:
        require_valid_time(self.ts)


class RunStart(EventBase, frozen=True, kw_only=True, tag="run_start"):
    """A run of a graph of nodes started."""

    total_nodes: Count


class NodeTransition(
    EventBase, frozen=True, kw_only=True, tag="node_transition", rename={"from_": "from"}
):
    """A node of the graph changed its status."""

    node_id: NodeId
    from_: NodeStatus
    to: NodeStatus
    attempt: Ordinal | Unset = UNSET
    reason: str | Unset = UNSET


class DoneWhenResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one of a node's checks."""

    cmd: str
    rc: int
    duration_s: Seconds
    tail: Tail | Unset = UNSET
    truncated: bool | Unset = UNSET


class NodeAttempt(EventBase, frozen=True, kw_only=True, tag="node_attempt"):
    """An attempt at a node ended."""

    node_id: NodeId
    attempt: Ordinal
    duration_s: Seconds
    converged: bool
    done_when_results: list[DoneWhenResult]
    backoff_s: Seconds | Unset = UNSET


class RunEnd(EventBase, frozen=True, kw_only=True, tag="run_end"):
    """The run of the graph ended."""

    outcome: CiOutcome
    done: Count
    failed: Count
    blocked: Count
    total_duration_s: Seconds
    total_attempts: Count | Unset = UNSET
    flake_retries: Count | Unset = UNSET
    exit_code: int | Unset = UNSET


class AgentRunStart(EventBase, frozen=True, kw_only=True, tag="agent_run_start"):
    """An agent was given a task."""

    agent_id: AgentId
    task: NonEmpty
    model: str | Unset = UNSET


class AgentTransition(
    EventBase, frozen=True, kw_only=True, tag="agent_transition", rename={"from_": "from"}
):
    """An agent changed its status."""

    agent_id: AgentId
    step: Count
    from_: AgentStatus
    to: AgentStatus
    reason: str | Unset = UNSET


class ToolInvocation(EventBase, frozen=True, kw_only=True, tag="tool_invocation"):
    """A tool call of an agent returned or failed."""

    agent_id: AgentId
    step: Count
    tool_name: NonEmpty
    duration_s: Seconds
    ok: bool
    input_summary: str | Unset = UNSET
    output_summary: Summary | Unset = UNSET
    error: str | Unset = UNSET


class AuditCheckpoint(EventBase, frozen=True, kw_only=True, tag="audit_checkpoint"):
    """The result of a checkpoint. Without an agent the run was checked."""

    checkpoint_id: CheckpointId
    result: AuditResult
    duration_s: Seconds
    agent_id: AgentId | None = None
    evidence: JsonObject | Unset = UNSET


class AgentRunEnd(EventBase, frozen=True, kw_only=True, tag="agent_run_end"):
    """An agent ended, with its totals."""

    agent_id: AgentId
    outcome: AgentOutcome
    total_steps: Count
    total_tool_calls: Count
    total_audit_checkpoints: Count
    audits_passed: Count
    audits_failed: Count
    total_duration_s: Seconds
    convergence_score: Ratio | Unset = UNSET


CiEvent: TypeAlias = RunStart | NodeTransition | NodeAttempt | RunEnd
AgentEvent: TypeAlias = (
    AgentRunStart | AgentTransition | ToolInvocation | AuditCheckpoint | AgentRunEnd
)
KahnEvent: TypeAlias = CiEvent | AgentEvent

CI_EVENTS: Final[tuple[type[EventBase], ...]] = (RunStart, NodeTransition, NodeAttempt, RunEnd)
AGENT_EVENTS: Final[tuple[type[EventBase], ...]] = (
    AgentRunStart,
    AgentTransition,
    ToolInvocation,
    AuditCheckpoint,
    AgentRunEnd,
)


def event_name(event: EventBase | type[EventBase]) -> str:
    """Return the event's name in a line."""
    return str(event.__struct_config__.tag)


EVENT_NAMES: Final = frozenset(event_name(kind) for kind in (*CI_EVENTS, *AGENT_EVENTS))


# Outcomes of a CI run that need an exit code.
EXIT_CODE_OUTCOMES: Final = ("stuck", "catastrophic")


Schema: TypeAlias = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
AGENT_SCHEMA: Final = "kahn-agent-event"
CI_SCHEMA: Final = "kahn-ci-event"

# Conditions between fields, which the types cannot express.
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
        "if": {
            "properties": {"outcome": {"enum": list(EXIT_CODE_OUTCOMES)}},
            "required": ["outcome"],
        },
        "then": {"required": ["exit_code"]},
    },
}


def export_schemas() -> dict[str, Schema]:
    """Return the JSON Schema of each family, by its name."""
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
