"""What a wait asks for, in words: one line of it, and what each answer does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wopr.engine.expression_tokens import is_object
from wopr.engine.interrupts import GOVERNANCE
from wopr.protocol.documents import Json
from wopr.protocol.interrupts import is_vendor_kind

_ACTIONS: Final = {
    "accept": "The run goes on.",
    "reject": "The gate fails, and the run with it unless the workflow handles that.",
    "refine": "The work before the gate is done again with your feedback.",
    "edit-accept": "The run goes on with your edited version.",
    "ask": "Your question is recorded; the gate stays open.",
}

# What an approval is about when a supervisor was not sure enough.
ORCHESTRATOR_DECISION: Final = "orchestrator-decision"
_DECISION: Final = {
    "accept": "The supervisor's decision is carried out.",
    "reject": "Nothing is carried out, and the supervisor gets another turn.",
    "edit-accept": "The decision that you give is carried out instead.",
}
# What an approval is about that a wrapped agent asks for: a tool call, or whatever it shows.
TOOL_CALL: Final = "tool-call"
AGENT_REQUEST: Final = "agent-request"
_OF_AGENTS: Final = {
    TOOL_CALL: {
        "accept": "The tool is called.",
        "reject": "The tool is not called, and the agent is told so.",
        "edit-accept": "The tool is called with the arguments that you give.",
    },
    AGENT_REQUEST: {
        "accept": "The agent is told yes, and goes on.",
        "reject": "The agent is told no, and goes on.",
        "edit-accept": "The agent goes on with your edited version.",
    },
}


def effects(kind: str, data: Mapping[str, Json]) -> dict[str, str]:
    """What each answer does, for whoever has to choose one."""
    match kind:
        case "approval":
            return _approval_effects(data)
        case "clarification":
            return {"answers": "The run goes on with the answers to all questions."}
        case "external-event":
            return {"event": "The run goes on with the event that matches the correlation."}
        case "low-confidence":
            return {
                "accept": "The agent's decision stands and is carried out.",
                "decision": "The decision you give replaces the agent's.",
                "reject": "The decision is refused and the node fails.",
            }
        case "conversation.exchange":
            return {
                "exchange": "Your turn is recorded and the conversation goes on.",
                "close": "The conversation ends and the run goes on.",
            }
        case _ if is_vendor_kind(kind):
            return {
                "accept": _DECISION["accept"],
                "reject": _DECISION["reject"],
                "value": _DECISION["edit-accept"],
            }
        case _:
            return {"value": "The run goes on with the value."}


def _approval_effects(data: Mapping[str, Json]) -> dict[str, str]:
    needed: Json = data.get("requiredApprovals", 1)
    if GOVERNANCE in data:
        return {
            "granted": f"Counts as a yes; {needed} of them let the run go on.",
            "rejected": "The work before the gate is done again, with your reason as feedback.",
        }
    if data.get("artifactType") == ORCHESTRATOR_DECISION:
        return dict(_DECISION)
    words = _OF_AGENTS.get(str(data.get("artifactType")), _ACTIONS)
    told = {action: words[action] for action in data.get("actions", []) if action in words}
    if needed == 1:
        return told
    # Whoever edits decides alone, which a gate that needs several may not allow.
    told.pop("edit-accept", None)
    votes = {
        "accept": f"Counts as a yes; {needed} of them let the run go on.",
        "reject": "Counts as a no; enough of them fail the gate.",
        "refine": "The work is done again with your feedback, and all votes are cleared.",
    }
    return {action: votes.get(action, text) for action, text in told.items()}


def question(kind: str, data: Mapping[str, Json]) -> str:
    """The wait in one line."""
    match kind:
        case "approval":
            return str(data.get("title", ""))
        case "clarification":
            return " ".join(str(each["question"]) for each in data.get("questions", []))
        case "external-event":
            return f"an event {data.get('eventType', '')}"
        case "low-confidence":
            observed, needed = data.get("observed", 0) * 100, data.get("threshold", 0) * 100
            return f"{data.get('agentId', '')} is {observed:.4g} % confident (needs {needed:.4g} %)"
        case "conversation.exchange":
            return str(data.get("prompt", ""))
        case _:
            why: Json = held.get("why") if is_object(held := data.get("payload")) else None
            return str(why if is_vendor_kind(kind) and why else data.get("customKind", kind))
