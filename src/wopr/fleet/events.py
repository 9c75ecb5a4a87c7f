"""The nine KAHN events as structs: decoding a line is checking it (contract sections 1 to 3).

Fields that the structs do not know pass through: a line is checked here and kept as the bytes
that came. `null` is legal in one place only, `audit_checkpoint.agent_id`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from wopr.fleet.instants import require_instant
from wopr.protocol.documents import UNSET, JsonObject, NonEmpty, Unset
from wopr.protocol.fleet import AgentOutcome as AgentOutcome

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


# What the patterns of this module want, in words, by pattern.
PATTERN_WORDS: Final[dict[str, str]] = {}


def _matching(pattern: str, words: str, **more: str) -> msgspec.Meta:
    """A pattern to the real end of the string, in the dialects of Python and JSON Schema alike.

    In Python a lone `$` would let a final newline through.
    """
    whole = rf"^{pattern}$(?!\n)"
    PATTERN_WORDS[whole] = words
    return msgspec.Meta(pattern=whole, extra_json_schema=more or None)


Timestamp = Annotated[
    str,
    _matching(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z",
        "a time in UTC with milliseconds, such as 2026-01-31T08:00:00.000Z",
        format="date-time",
    ),
]
RunId = Annotated[
    str,
    _matching(
        r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}",
        "1 to 64 letters, digits, '_' or '-', the first a letter or digit",
    ),
]
AgentId = Annotated[
    str,
    _matching(
        r"[a-z0-9][a-z0-9:-]{0,63}",
        "1 to 64 lower-case letters, digits, ':' or '-', the first a letter or digit",
    ),
]
CheckpointId = Annotated[
    str,
    _matching(
        r"[a-z0-9][a-z0-9:.-]{0,127}",
        "1 to 128 lower-case letters, digits, ':', '.' or '-', the first a letter or digit",
    ),
]
NodeId = Annotated[
    str,
    _matching(
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


# Nothing that is decoded refers to itself, so the collector of cycles need not look at events.
class Envelope(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", gc=False):
    """What every event has besides its name."""

    ts: Timestamp
    run_id: RunId

    def __post_init__(self) -> None:
        require_instant(self.ts)


class RunStart(Envelope, frozen=True, kw_only=True, tag="run_start"):
    """A graph of nodes begins to run."""

    total_nodes: Count


class NodeTransition(
    Envelope, frozen=True, kw_only=True, tag="node_transition", rename={"from_": "from"}
):
    """A node of the graph changed its status."""

    node_id: NodeId
    from_: NodeStatus
    to: NodeStatus
    attempt: Ordinal | Unset = UNSET
    reason: str | Unset = UNSET


class DoneWhenResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one of a node's checks ended."""

    cmd: str
    rc: int
    duration_s: Seconds
    tail: Tail | Unset = UNSET
    truncated: bool | Unset = UNSET


class NodeAttempt(Envelope, frozen=True, kw_only=True, tag="node_attempt"):
    """An attempt at a node ended."""

    node_id: NodeId
    attempt: Ordinal
    duration_s: Seconds
    converged: bool
    done_when_results: list[DoneWhenResult]
    backoff_s: Seconds | Unset = UNSET


class RunEnd(Envelope, frozen=True, kw_only=True, tag="run_end"):
    """The graph is done, one way or the other."""

    outcome: CiOutcome
    done: Count
    failed: Count
    blocked: Count
    total_duration_s: Seconds
    total_attempts: Count | Unset = UNSET
    flake_retries: Count | Unset = UNSET
    exit_code: int | Unset = UNSET


class AgentRunStart(Envelope, frozen=True, kw_only=True, tag="agent_run_start"):
    """An agent was given a task."""

    agent_id: AgentId
    task: NonEmpty
    model: str | Unset = UNSET


class AgentTransition(
    Envelope, frozen=True, kw_only=True, tag="agent_transition", rename={"from_": "from"}
):
    """An agent changed its status."""

    agent_id: AgentId
    step: Count
    from_: AgentStatus
    to: AgentStatus
    reason: str | Unset = UNSET


class ToolInvocation(Envelope, frozen=True, kw_only=True, tag="tool_invocation"):
    """A tool answered an agent, or failed to."""

    agent_id: AgentId
    step: Count
    tool_name: NonEmpty
    duration_s: Seconds
    ok: bool
    input_summary: str | Unset = UNSET
    output_summary: Summary | Unset = UNSET
    error: str | Unset = UNSET


class AuditCheckpoint(Envelope, frozen=True, kw_only=True, tag="audit_checkpoint"):
    """Somebody checked something; without an agent it is about the run."""

    checkpoint_id: CheckpointId
    result: AuditResult
    duration_s: Seconds
    agent_id: AgentId | None = None
    evidence: JsonObject | Unset = UNSET


class AgentRunEnd(Envelope, frozen=True, kw_only=True, tag="agent_run_end"):
    """An agent is done, and its totals."""

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

CI_EVENTS: Final[tuple[type[Envelope], ...]] = (RunStart, NodeTransition, NodeAttempt, RunEnd)
AGENT_EVENTS: Final[tuple[type[Envelope], ...]] = (
    AgentRunStart,
    AgentTransition,
    ToolInvocation,
    AuditCheckpoint,
    AgentRunEnd,
)


def variant(event: Envelope | type[Envelope]) -> str:
    """The event's name on the wire."""
    return str(event.__struct_config__.tag)


VARIANTS: Final = frozenset(variant(kind) for kind in (*CI_EVENTS, *AGENT_EVENTS))
