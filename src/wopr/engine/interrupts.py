"""Interrupts in the state of a run: their data, votes and timeout, and the texts for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from wopr.protocol.documents import UNSET, Document, Json, JsonObject, NonEmpty, Unset, is_object
from wopr.protocol.interrupts import is_vendor_kind
from wopr.protocol.runs import RunStatus

# Members of `node.suspended` that only this host reads.
HELD_OUTPUTS: Final = "x-host-wopr-held-outputs"
WAITING_STATUS: Final = "x-host-wopr-waiting-status"
# The reason in the `interrupt.resolved` event of an interrupt that timed out.
TIMEOUT: Final = "timeout"
# The member of a governance gate's data that has its rule.
GOVERNANCE: Final = "x-host-wopr-governance"

_STATUSES: Final[dict[str, RunStatus]] = {
    "approval": "waiting-approval",
    "low-confidence": "waiting-approval",
    "conversation.exchange": "waiting-approval",
    "clarification": "waiting-input",
    "custom": "waiting-input",
    "external-event": "waiting-external",
}


def waiting_status(kind: str) -> RunStatus:
    """Return the status of a run while an interrupt of this kind is pending."""
    return _STATUSES.get(kind, "waiting-input")


class GovernanceRule(Document, frozen=True, kw_only=True):
    """The roles and scopes that may decide or override a governance gate."""

    required_role: NonEmpty | Unset = UNSET
    required_scope: NonEmpty | Unset = UNSET
    override_role: NonEmpty | Unset = UNSET


class Ballot(msgspec.Struct, frozen=True, kw_only=True):
    """One vote on a gate. A second vote by the same voter replaces the first."""

    voter: str
    is_grant: bool


class Interrupt(msgspec.Struct, frozen=True, kw_only=True):
    """A pending interrupt of one node."""

    interrupt_id: str
    # The kind as clients see it.
    kind: str
    # The kind in events: `custom` for a vendor kind.
    event_kind: str
    key: str
    requested_at: int
    suspended_event: str
    status: RunStatus
    data: JsonObject = {}
    resume_schema: JsonObject | None = None
    timeout_ms: int = 0
    reason: str = ""
    ballots: tuple[Ballot, ...] = ()
    # Outputs of a node whose decision must still be ratified.
    held_outputs: JsonObject | None = None
    # The last turn of a conversation and its event.
    turn_index: int = 0
    turn_event: str = ""
    # Whether the event that reports the answer, such as `approval.received`, is on the log.
    is_reported: bool = False

    @property
    def deadline(self) -> int | None:
        """Return the time at which the interrupt times out, or None.

        It counts from the event, so a restart does not change it.
        """
        return self.requested_at + self.timeout_ms if self.timeout_ms else None

    def with_ballot(self, ballot: Ballot) -> Interrupt:
        """Return the interrupt with another vote."""
        others = tuple(b for b in self.ballots if b.voter != ballot.voter)
        return msgspec.structs.replace(self, ballots=(*others, ballot))

    @property
    def grants(self) -> int:
        """Return the number of votes that accept."""
        return sum(ballot.is_grant for ballot in self.ballots)

    @property
    def rejections(self) -> int:
        """Return the number of votes that reject."""
        return len(self.ballots) - self.grants


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """How an interrupt ended. `recorded` is the payload of its `interrupt.resolved` event."""

    interrupt_id: str
    kind: str
    resolved_by: str
    recorded: JsonObject

    @property
    def value(self) -> Json:
        """Return the resume value."""
        return self.recorded.get("resumeValue")

    @property
    def is_timeout(self) -> bool:
        """Return whether the interrupt ended without an answer."""
        return self.recorded.get("reason") == TIMEOUT


_ACTION_EFFECTS: Final = {
    "accept": "The run continues.",
    "reject": "The gate fails, and the run with it unless the workflow handles that.",
    "refine": "The work before the gate is done again with your feedback.",
    "edit-accept": "The run continues with your edited version.",
    "ask": "Your question is recorded; the gate stays open.",
}

# The subject of an approval that a supervisor with low confidence needs.
ORCHESTRATOR_DECISION: Final = "orchestrator-decision"
_DECISION_EFFECTS: Final = {
    "accept": "The supervisor's decision is executed.",
    "reject": "The decision is not executed, and the supervisor gets another turn.",
    "edit-accept": "Your decision is executed instead.",
}
# The subject of an approval that a wrapped agent requests: a tool call or a value.
TOOL_CALL: Final = "tool-call"
AGENT_REQUEST: Final = "agent-request"
_AGENT_REQUEST_EFFECTS: Final = {
    TOOL_CALL: {
        "accept": "The tool is called.",
        "reject": "The tool is not called, and the agent gets that result.",
        "edit-accept": "The tool is called with the arguments that you give.",
    },
    AGENT_REQUEST: {
        "accept": "The agent gets a yes and continues.",
        "reject": "The agent gets a no and continues.",
        "edit-accept": "The agent continues with your edited version.",
    },
}


def answer_effects(kind: str, data: Mapping[str, Json]) -> dict[str, str]:
    """Return the effect of each possible answer, for the person who chooses one."""
    match kind:
        case "approval":
            return _approval_effects(data)
        case "clarification":
            return {"answers": "The run continues with the answers to all questions."}
        case "external-event":
            return {"event": "The run continues with the event that matches the correlation."}
        case "low-confidence":
            return {
                "accept": "The agent's decision is accepted and executed.",
                "decision": "The decision you give replaces the agent's.",
                "reject": "The decision is refused and the node fails.",
            }
        case "conversation.exchange":
            return {
                "exchange": "Your turn is recorded and the conversation continues.",
                "close": "The conversation ends and the run continues.",
            }
        case _ if is_vendor_kind(kind):
            return {
                "accept": _DECISION_EFFECTS["accept"],
                "reject": _DECISION_EFFECTS["reject"],
                "value": _DECISION_EFFECTS["edit-accept"],
            }
        case _:
            return {"value": "The run continues with the value."}


def _approval_effects(data: Mapping[str, Json]) -> dict[str, str]:
    needed: Json = data.get("requiredApprovals", 1)
    if GOVERNANCE in data:
        return {
            "granted": f"Counts as a yes; {needed} of them are needed for the run to continue.",
            "rejected": "The work before the gate is done again, with your reason as feedback.",
        }
    if data.get("artifactType") == ORCHESTRATOR_DECISION:
        return dict(_DECISION_EFFECTS)
    texts = _AGENT_REQUEST_EFFECTS.get(str(data.get("artifactType")), _ACTION_EFFECTS)
    shown = {action: texts[action] for action in data.get("actions", []) if action in texts}
    if needed == 1:
        return shown
    # An edit is the decision of one person. A gate that needs several approvals does not allow it.
    shown.pop("edit-accept", None)
    votes = {
        "accept": f"Counts as a yes; {needed} of them are needed for the run to continue.",
        "reject": "Counts as a no; enough of them fail the gate.",
        "refine": "The work is done again with your feedback, and all votes are cleared.",
    }
    return {action: votes.get(action, text) for action, text in shown.items()}


def question_text(kind: str, data: Mapping[str, Json]) -> str:
    """Return the question of an interrupt in one line."""
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
            why: Json = payload.get("why") if is_object(payload := data.get("payload")) else None
            return str(why if is_vendor_kind(kind) and why else data.get("customKind", kind))
