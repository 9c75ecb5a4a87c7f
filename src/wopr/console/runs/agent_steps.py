"""The steps of agents in a run: reasoning, tool calls, handoffs, decisions and answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from wopr.console.formatting import compact
from wopr.console.runs.log import Entry
from wopr.protocol.documents import Json, JsonObject, list_of, object_of
from wopr.protocol.interrupts import INTERRUPT_KIND

# Returns the confidence that an agent needs. The run, the agent's manifest or the host sets it.
ThresholdOf: TypeAlias = Callable[[str], float | None]
# The agent id that stands for supervisors in `ThresholdOf`.
SUPERVISOR: Final = ""
# Number of steps that the page of a run shows.
MAX_STEPS_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class DecisionConfidence:
    """The confidence of an agent, and the confidence that it needed."""

    value: float
    threshold: float | None

    @property
    def is_low(self) -> bool:
        """Return whether the confidence is below the threshold, so that a person must decide."""
        return self.threshold is not None and self.value < self.threshold


@dataclass(slots=True, kw_only=True)
class AgentStep:
    """One event of an agent's turn: reasoning, a tool call, a handoff, a decision or an answer."""

    kind: str
    title: str
    entry: Entry
    agent_id: str = ""
    text: str = ""
    document: Json = None
    confidence: DecisionConfidence | None = None
    # The result of a tool call.
    status: str = ""
    took: int | None = None
    returned: Json = None
    returned_at: int | None = None


@dataclass(slots=True)
class AgentTurn:
    """The steps of one execution of a node."""

    node_id: str
    sequence: int
    agent_id: str = ""
    steps: list[AgentStep] = field(default_factory=list[AgentStep])

    @property
    def size(self) -> int:
        """The number of steps."""
        return len(self.steps)


def agent_turns(entries: Sequence[Entry], threshold_of: ThresholdOf) -> list[AgentTurn]:
    """Return the turns of a log, in order. Each start of a node begins a new turn."""
    turns: dict[int, AgentTurn] = {}
    # The last start of each node. Most nodes have no agent and get no turn.
    started: dict[str, Entry] = {}
    for entry in entries:
        kind = entry.event.type
        if kind == "node.started":
            started[entry.node_id] = entry
        elif (add_step := _STEP_ADDERS.get(kind)) is not None and entry.node_id in started:
            start = started[entry.node_id]
            if start.sequence not in turns:
                turns[start.sequence] = AgentTurn(start.node_id, start.sequence, start.agent_id)
            add_step(turns[start.sequence], entry, threshold_of)
    in_order = (turns[sequence] for sequence in sorted(turns))
    return [turn for turn in in_order if any(step.kind != "asked" for step in turn.steps)]


def newest_turns_of(turns: Sequence[AgentTurn], most: int = MAX_STEPS_SHOWN) -> list[AgentTurn]:
    """Return the turns of the newest steps, with those steps only."""
    found: list[AgentTurn] = []
    left = most
    for turn in reversed(turns):
        if left <= 0:
            break
        found.append(replace(turn, steps=turn.steps[-left:]))
        left -= len(turn.steps)
    return found[::-1]


def _add_reasoning(turn: AgentTurn, entry: Entry, _: ThresholdOf) -> None:
    payload = entry.payload
    tokens = payload.get("tokenCount")
    title = f"reasoned, {tokens} tokens" if tokens else "reasoned"
    _drop_open_reasoning(turn)
    turn.steps.append(_step("reasoned", title, entry, text=str(payload.get("reasoning", ""))))


def _add_reasoning_delta(turn: AgentTurn, entry: Entry, _: ThresholdOf) -> None:
    """Add a part of streamed reasoning. The complete reasoning replaces it."""
    delta = str(entry.payload.get("delta", ""))
    last = turn.steps[-1] if turn.steps else None
    if last is not None and last.kind == "reasoning":
        last.text += delta
    else:
        turn.steps.append(_step("reasoning", "is reasoning", entry, text=delta))


def _drop_open_reasoning(turn: AgentTurn) -> None:
    if turn.steps and turn.steps[-1].kind == "reasoning":
        turn.steps.pop()


def _add_tool_call(turn: AgentTurn, entry: Entry, _: ThresholdOf) -> None:
    payload = entry.payload
    name = str(payload.get("toolName", ""))
    turn.steps.append(
        _step("called", f"called {name}", entry, document=payload.get("inputs"), status="open")
    )


def _add_tool_result(turn: AgentTurn, entry: Entry, _: ThresholdOf) -> None:
    payload = entry.payload
    # Search from the end: a call is usually close to its return, and a turn may have many calls.
    call = next(
        (step for step in reversed(turn.steps) if _is_call(step, payload.get("callId"))), None
    )
    if call is None:
        call = _step("called", f"called {payload.get('toolName', '')}", entry)
        turn.steps.append(call)
    took = payload.get("durationMs")
    call.status = str(payload.get("status", "error" if "error" in payload else "ok"))
    call.took = took if isinstance(took, int) else None
    call.returned = payload.get("error", payload.get("outcome"))
    call.returned_at = entry.sequence


def _is_call(step: AgentStep, call_id: Json) -> bool:
    return step.kind == "called" and step.entry.payload.get("callId") == call_id


def _add_handoff(turn: AgentTurn, entry: Entry, _: ThresholdOf) -> None:
    payload = entry.payload
    title = f"handed off to {payload.get('toAgentId', '')}"
    text = str(payload.get("reason", ""))
    turn.steps.append(_step("handoff", title, entry, text=text, document=payload.get("context")))


def _add_decision(turn: AgentTurn, entry: Entry, threshold_of: ThresholdOf) -> None:
    payload = entry.payload
    confidence = confidence_of(payload.get("confidence"), threshold_of(entry.agent_id))
    turn.steps.append(
        _step(
            "decided",
            "decided",
            entry,
            text=str(payload.get("reasoning", "")),
            document=payload.get("decision"),
            confidence=confidence,
        )
    )


def _add_supervisor_decision(turn: AgentTurn, entry: Entry, threshold_of: ThresholdOf) -> None:
    decision = object_of(entry.payload.get("decision"))
    threshold = threshold_of(SUPERVISOR)
    turn.steps.append(
        _step(
            "decided",
            _DECISION_TITLES.get(str(decision.get("kind")), _other_title)(decision),
            entry,
            confidence=confidence_of(decision.get("confidence"), threshold),
        )
    )


def _dispatch_title(decision: JsonObject) -> str:
    return f"dispatched to {', '.join(map(str, list_of(decision.get('nextWorkerIds'))))}"


def _question_title(decision: JsonObject) -> str:
    return f"asked a person: {decision.get('prompt', '')}"


def _end_title(decision: JsonObject) -> str:
    reason = decision.get("reason")
    return f"ended the run: {reason}" if reason else "ended the run"


def _other_title(decision: JsonObject) -> str:
    return f"decided {compact(decision)}"


_DECISION_TITLES: Final = {
    "next-worker": _dispatch_title,
    "ask-user": _question_title,
    "terminate": _end_title,
}


def _add_escalation(turn: AgentTurn, entry: Entry, _: ThresholdOf) -> None:
    payload = entry.payload
    threshold = payload.get("floor")
    confidence = confidence_of(
        payload.get("confidence"), threshold if isinstance(threshold, float) else None
    )
    turn.steps.append(
        _step("escalated", "confidence below the threshold", entry, confidence=confidence)
    )


def _add_suspension(turn: AgentTurn, entry: Entry, _: ThresholdOf) -> None:
    payload = entry.payload
    kind = payload.get(INTERRUPT_KIND, payload.get("kind", "an answer"))
    if kind != "low-confidence":
        turn.steps.append(_step("asked", f"waiting for {kind}", entry))
        return
    for step in reversed(turn.steps):
        if step.kind == "decided" and step.confidence is not None:
            needed = payload.get("threshold")
            if isinstance(needed, int | float):
                step.confidence = DecisionConfidence(step.confidence.value, float(needed))
            break
    turn.steps.append(_step("escalated", "waiting for a person to ratify the decision", entry))


def _add_answer(turn: AgentTurn, entry: Entry, _: ThresholdOf) -> None:
    payload = entry.payload
    by, value = payload.get("resolvedBy"), payload.get("resumeValue")
    title = f"{by} answered" if by else "was answered"
    turn.steps.append(_step("answered", title, entry, document=value))


def _add_verification(turn: AgentTurn, entry: Entry, _: ThresholdOf) -> None:
    payload = entry.payload
    title = f"verified {payload.get('target', '')}: {payload.get('verdict', '')}"
    turn.steps.append(
        _step("verified", title, entry, confidence=confidence_of(payload.get("confidence"), None))
    )


def _step(kind: str, title: str, entry: Entry, **more: Json) -> AgentStep:
    return AgentStep(kind=kind, title=title, entry=entry, agent_id=entry.agent_id, **more)


def confidence_of(confidence: Json, threshold: float | None) -> DecisionConfidence | None:
    """Return the confidence; None if the value is not a number."""
    if isinstance(confidence, bool) or not isinstance(confidence, int | float):
        return None
    return DecisionConfidence(float(confidence), threshold)


_STEP_ADDERS: Final[dict[str, Callable[[AgentTurn, Entry, ThresholdOf], None]]] = {
    "agent.reasoned": _add_reasoning,
    "agent.reasoning.delta": _add_reasoning_delta,
    "agent.toolCalled": _add_tool_call,
    "agent.toolReturned": _add_tool_result,
    "agent.handoff": _add_handoff,
    "agent.decided": _add_decision,
    "agent.verified": _add_verification,
    "runOrchestrator.decided": _add_supervisor_decision,
    "core.workflowChain.confidence-escalated": _add_escalation,
    "node.suspended": _add_suspension,
    "interrupt.resolved": _add_answer,
}
