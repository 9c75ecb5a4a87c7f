"""The handlers of agent events: each adds lines for the agent (14.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

from wopr.engine.escalation import DEFAULT_THRESHOLD
from wopr.kahn.bridge.agent import AgentState, EventLines, ToolCall, ToolReturn
from wopr.kahn.bridge.facts import (
    DEFAULT_FLOOR,
    duration_of,
    input_summary,
    output_summary,
    to_agent_id,
    tool_error,
)
from wopr.kahn.events import AuditResult
from wopr.kahn.lifecycle import BLOCKED
from wopr.kahn.timestamps import seconds_between
from wopr.protocol.documents import Json, JsonObject, object_of
from wopr.protocol.payload_members import (
    present_members,
    ratio_member,
    text_member,
    to_agent,
    tool_name_of,
)

_VERDICTS: Final[dict[str, AuditResult]] = {"pass": "pass", "fail": "fail", "revise": "warn"}
_UNKNOWN_TOOL: Final = "unknown"


def _no_manifest(agent_id: str, version: str | None, at: int) -> float | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceThresholds:
    """The confidence that agents need, as configured on the host. The log does not contain it.

    `manifest` returns the threshold in an agent's manifest, by the agent's name, its pinned version
    and the start of the run in milliseconds. `floor` is the threshold of supervisors' decisions.
    """

    manifest: Callable[[str, str | None, int], float | None] = _no_manifest
    floor: float = DEFAULT_FLOOR


@dataclass(slots=True)
class ProjectionContext:
    """The state of a projection that handlers share: thresholds, and the agents behind events."""

    # Replaces all other thresholds, if set.
    given: float | None = None
    thresholds: ConfidenceThresholds = ConfidenceThresholds()
    # The threshold in the run's options, and when the run started.
    of_run: float | None = None
    started_at: int = 0
    # The agent of each event by event id, and of each tool call by call id.
    authors: dict[str, AgentState] = field(default_factory=dict[str, AgentState])
    callers: dict[str, AgentState] = field(default_factory=dict[str, AgentState])
    # The supervisor that made the last decision. A wait for low confidence is about this decision.
    supervisor: AgentState | None = None

    def threshold(self, agent: AgentState) -> float:
        """Return the confidence that an agent needs: by the run's option, its manifest, or the default."""
        if self.given is not None:
            return self.given
        if self.of_run is not None:
            return self.of_run
        by_manifest = self.thresholds.manifest(agent.name, agent.version, self.started_at)
        return DEFAULT_THRESHOLD if by_manifest is None else by_manifest

    @property
    def floor(self) -> float:
        """The confidence that a supervisor needs."""
        return self.thresholds.floor if self.given is None else self.given


EventHandler: TypeAlias = Callable[[EventLines, AgentState, JsonObject, ProjectionContext], None]


def _on_reasoned(
    output: EventLines, agent: AgentState, payload: JsonObject, context: ProjectionContext
) -> None:
    agent.last_act = "other"
    agent.move_to(output, "thinking", "reasoned")


def _on_reasoning_delta(
    output: EventLines, agent: AgentState, payload: JsonObject, context: ProjectionContext
) -> None:
    agent.last_act = "other"


def _on_tool_called(
    output: EventLines, agent: AgentState, payload: JsonObject, context: ProjectionContext
) -> None:
    agent.last_act = "other"
    tool = tool_name_of(payload) or _UNKNOWN_TOOL
    call_id = text_member(payload, "callId")
    agent.move_to(output, "tool_call", f"tool_call:{tool}")
    # A call without an id is identified by its tool.
    agent.calls[call_id or tool] = ToolCall(tool, output.ts, call_id, input_summary(payload))
    context.callers[call_id or tool] = agent


def _on_tool_returned(
    output: EventLines, agent: AgentState, payload: JsonObject, context: ProjectionContext
) -> None:
    agent.last_act = "other"
    tool = tool_name_of(payload) or _UNKNOWN_TOOL
    call_id = text_member(payload, "callId")
    call = agent.calls.pop(call_id or tool, None) or ToolCall(tool, output.ts, call_id)
    context.callers[call_id or tool] = agent
    logged = duration_of(payload)
    returned = ToolReturn(
        call,
        duration_s=seconds_between(call.ts, output.ts) if logged is None else logged,
        error=tool_error(payload),
        input_summary=call.input_summary or input_summary(payload),
        output_summary=output_summary(payload),
    )
    agent.write_tool_return(output, returned)
    agent.is_forbidden = agent.is_forbidden or payload.get("status") == "forbidden"
    if agent.status == "tool_call" and not agent.calls:
        agent.transition(output, "tool_result", None)


def _on_handoff(
    output: EventLines, agent: AgentState, payload: JsonObject, context: ProjectionContext
) -> None:
    agent.last_act = "handoff"
    to = to_agent(payload)
    agent.move_to(output, "response", f"handoff:{to_agent_id(to)}" if to else "handoff")


def _on_decided(
    output: EventLines, agent: AgentState, payload: JsonObject, context: ProjectionContext
) -> None:
    _decide(output, agent, ratio_member(payload, "confidence"), context.threshold(agent))


def _decide(
    output: EventLines, agent: AgentState, confidence: float | None, threshold: float
) -> None:
    agent.decide(output, "decided", confidence, threshold)
    if confidence is not None:
        evidence = {"confidence": confidence, "threshold": threshold}
        is_confident = agent.is_confident()
        agent.audit(output, "openwop:confidence", "pass" if is_confident else "fail", evidence)


def _on_orchestrator_decided(
    output: EventLines, agent: AgentState, payload: JsonObject, context: ProjectionContext
) -> None:
    decision = object_of(payload.get("decision"))
    _decide(output, agent, ratio_member(decision, "confidence"), context.floor)
    context.supervisor = agent
    if decision.get("kind") == "terminate":
        _judge_criteria(output, agent, decision.get("successCriteria"))
    elif decision.get("kind") == "ask-user":
        agent.is_asking = True
        agent.move_to(output, BLOCKED, "ask-user")


def _judge_criteria(output: EventLines, agent: AgentState, criteria: Json) -> None:
    listed = cast("list[object]", criteria) if isinstance(criteria, list) else []
    for criterion in map(object_of, listed):
        key = text_member(criterion, "key")
        if key is None:
            continue
        is_met = criterion.get("met") is True
        agent.audit(output, f"criteria:{key}", "pass" if is_met else "fail")
        agent.criteria_met += is_met
        agent.criteria_unmet += not is_met
        agent.needs_revision = agent.needs_revision or not is_met


def _on_verified(
    output: EventLines, agent: AgentState, payload: JsonObject, context: ProjectionContext
) -> None:
    verdict = text_member(payload, "verdict") or ""
    if verdict not in _VERDICTS:
        return
    threshold = context.threshold(agent)
    agent.decide(output, f"verified:{verdict}", ratio_member(payload, "confidence"), threshold)
    evidence = present_members(payload, "target", "criteria", "confidence")
    agent.audit(output, "verify:verdict", _VERDICTS[verdict], evidence)
    target = text_member(payload, "target") or ""
    judged = context.authors.get(target) or context.callers.get(target)
    if judged is not None:
        judged.needs_revision = verdict != "pass"
        judged.verdicts_passed += verdict == "pass"
        judged.verdicts_failed += verdict == "fail"


def _on_invocation_completed(
    output: EventLines, agent: AgentState, payload: JsonObject, context: ProjectionContext
) -> None:
    agent.is_refused = agent.is_refused or payload.get("outcome") == "refused"


HANDLERS: Final[dict[str, EventHandler]] = {
    "agent.reasoned": _on_reasoned,
    "agent.reasoning.delta": _on_reasoning_delta,
    "agent.toolCalled": _on_tool_called,
    "agent.toolReturned": _on_tool_returned,
    "agent.handoff": _on_handoff,
    "agent.decided": _on_decided,
    "runOrchestrator.decided": _on_orchestrator_decided,
    "agent.verified": _on_verified,
    "agent.invocation.completed": _on_invocation_completed,
}
