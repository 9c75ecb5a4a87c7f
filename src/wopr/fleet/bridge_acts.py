"""What agents do in a run's log, event type by event type, as KAHN lines (14.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

from wopr.fleet.bridge_agent import Agent, Call, Page, Return
from wopr.fleet.bridge_facts import (
    DEFAULT_FLOOR,
    DEFAULT_THRESHOLD,
    duration_of,
    input_summary,
    object_of,
    output_summary,
    ratio,
    receiver,
    some,
    text,
    tool_error,
    tool_of,
)
from wopr.fleet.bridge_ids import to_agent_id
from wopr.fleet.events import AuditResult
from wopr.fleet.instants import seconds_between
from wopr.fleet.lifecycle import BLOCKED
from wopr.protocol.documents import Json, JsonObject

_VERDICTS: Final[dict[str, AuditResult]] = {"pass": "pass", "fail": "fail", "revise": "warn"}
_UNKNOWN_TOOL: Final = "unknown"


def _no_manifest(agent_id: str, version: str | None, at: int) -> float | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """How sure agents must be, as the host that ran them asked: what a log does not say itself.

    `manifest` gives the threshold of an agent's manifest, by its name, its pinned version and the
    milliseconds at which the run started. `floor` is that of supervisors' decisions.
    """

    manifest: Callable[[str, str | None, int], float | None] = _no_manifest
    floor: float = DEFAULT_FLOOR


@dataclass(slots=True)
class Scene:
    """What an act may look at besides its agent: how sure it must be, and who did what."""

    # For every decision alike, where one is given.
    given: float | None = None
    asked: Thresholds = Thresholds()
    # The run's own threshold, and when the run started.
    of_run: float | None = None
    started_at: int = 0
    # The agent behind an event and behind a call, by the ids that later events point at.
    authors: dict[str, Agent] = field(default_factory=dict[str, Agent])
    callers: dict[str, Agent] = field(default_factory=dict[str, Agent])
    # The supervisor that decided last: a wait of the confidence floor is about its decision.
    supervisor: Agent | None = None

    def threshold(self, agent: Agent) -> float:
        """How sure an agent must be: the run's option, its manifest, or the default."""
        if self.given is not None:
            return self.given
        if self.of_run is not None:
            return self.of_run
        own = self.asked.manifest(agent.name, agent.version, self.started_at)
        return DEFAULT_THRESHOLD if own is None else own

    @property
    def floor(self) -> float:
        """How sure a supervisor must be."""
        return self.asked.floor if self.given is None else self.given


Act: TypeAlias = Callable[[Page, Agent, JsonObject, Scene], None]


def _reasoned(page: Page, agent: Agent, payload: JsonObject, scene: Scene) -> None:
    agent.last_act = "other"
    agent.go(page, "thinking", "reasoned")


def _reasoning(page: Page, agent: Agent, payload: JsonObject, scene: Scene) -> None:
    agent.last_act = "other"


def _tool_called(page: Page, agent: Agent, payload: JsonObject, scene: Scene) -> None:
    agent.last_act = "other"
    tool = tool_of(payload) or _UNKNOWN_TOOL
    call_id = text(payload, "callId")
    agent.go(page, "tool_call", f"tool_call:{tool}")
    # A call without an id is known by its tool.
    agent.calls[call_id or tool] = Call(tool, page.ts, call_id, input_summary(payload))
    scene.callers[call_id or tool] = agent


def _tool_returned(page: Page, agent: Agent, payload: JsonObject, scene: Scene) -> None:
    agent.last_act = "other"
    tool = tool_of(payload) or _UNKNOWN_TOOL
    call_id = text(payload, "callId")
    call = agent.calls.pop(call_id or tool, None) or Call(tool, page.ts, call_id)
    scene.callers[call_id or tool] = agent
    told = duration_of(payload)
    returned = Return(
        call,
        duration_s=seconds_between(call.ts, page.ts) if told is None else told,
        error=tool_error(payload),
        input_summary=call.input_summary or input_summary(payload),
        output_summary=output_summary(payload),
    )
    agent.tool_returned(page, returned)
    agent.is_forbidden = agent.is_forbidden or payload.get("status") == "forbidden"
    if agent.status == "tool_call" and not agent.calls:
        agent.hop(page, "tool_result", None)


def _handed_over(page: Page, agent: Agent, payload: JsonObject, scene: Scene) -> None:
    agent.last_act = "handoff"
    to = receiver(payload)
    agent.go(page, "response", f"handoff:{to_agent_id(to)}" if to else "handoff")


def _decided(page: Page, agent: Agent, payload: JsonObject, scene: Scene) -> None:
    _decide(page, agent, ratio(payload, "confidence"), scene.threshold(agent))


def _decide(page: Page, agent: Agent, confidence: float | None, threshold: float) -> None:
    agent.decide(page, "decided", confidence, threshold)
    if confidence is not None:
        evidence = {"confidence": confidence, "threshold": threshold}
        is_sure = agent.is_confident()
        agent.audit(page, "openwop:confidence", "pass" if is_sure else "fail", evidence)


def _orchestrated(page: Page, agent: Agent, payload: JsonObject, scene: Scene) -> None:
    decision = object_of(payload.get("decision"))
    _decide(page, agent, ratio(decision, "confidence"), scene.floor)
    scene.supervisor = agent
    if decision.get("kind") == "terminate":
        _judge_criteria(page, agent, decision.get("successCriteria"))
    elif decision.get("kind") == "ask-user":
        agent.is_asking = True
        agent.go(page, BLOCKED, "ask-user")


def _judge_criteria(page: Page, agent: Agent, criteria: Json) -> None:
    listed = cast("list[object]", criteria) if isinstance(criteria, list) else []
    for criterion in map(object_of, listed):
        key = text(criterion, "key")
        if key is None:
            continue
        is_met = criterion.get("met") is True
        agent.audit(page, f"criteria:{key}", "pass" if is_met else "fail")
        agent.criteria_met += is_met
        agent.criteria_unmet += not is_met
        agent.needs_revision = agent.needs_revision or not is_met


def _verified(page: Page, agent: Agent, payload: JsonObject, scene: Scene) -> None:
    verdict = text(payload, "verdict") or ""
    if verdict not in _VERDICTS:
        return
    needed = scene.threshold(agent)
    agent.decide(page, f"verified:{verdict}", ratio(payload, "confidence"), needed)
    evidence = some(payload, "target", "criteria", "confidence")
    agent.audit(page, "verify:verdict", _VERDICTS[verdict], evidence)
    target = text(payload, "target") or ""
    judged = scene.authors.get(target) or scene.callers.get(target)
    if judged is not None:
        judged.needs_revision = verdict != "pass"
        judged.verdicts_passed += verdict == "pass"
        judged.verdicts_failed += verdict == "fail"


def _invocation_completed(page: Page, agent: Agent, payload: JsonObject, scene: Scene) -> None:
    agent.is_refused = agent.is_refused or payload.get("outcome") == "refused"


ACTS: Final[dict[str, Act]] = {
    "agent.reasoned": _reasoned,
    "agent.reasoning.delta": _reasoning,
    "agent.toolCalled": _tool_called,
    "agent.toolReturned": _tool_returned,
    "agent.handoff": _handed_over,
    "agent.decided": _decided,
    "runOrchestrator.decided": _orchestrated,
    "agent.verified": _verified,
    "agent.invocation.completed": _invocation_completed,
}
