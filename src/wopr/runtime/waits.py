"""What all answers share: who gives one, and the events that end a wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wopr.engine.interrupts import Interrupt
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.interrupts import INTERRUPT_KIND
from wopr.runtime.appender import Burst

# Members of a decision on an approval that `interrupt.resolved` carries itself.
DECISION_MEMBERS: Final = ("action", "refineFeedback", "editedArtifactData")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolver:
    """Who answers, as the host authenticated them."""

    name: str
    role: str = ""
    scopes: frozenset[str] = frozenset()
    # Whether a vote counts under the name that it gives, and not under the key: for tests only.
    may_name_voter: bool = False
    # A signed token says who may answer, not who does.
    by_token: bool = False

    def as_voter(self, voter: Json) -> str:
        """The name that a vote counts under; a key that is one person's own ignores `voter`."""
        is_named = self.may_name_voter and isinstance(voter, str) and voter
        return f"{self.name}#{voter}" if is_named else self.name


def end_wait(
    burst: Burst,
    node_id: str,
    interrupt: Interrupt,
    value: Json,
    by: str,
    decision: JsonObject | None = None,
) -> None:
    """Append how a wait ended, before the node may go on.

    `decision` is what an approval was decided to be; the event repeats its action, and the
    feedback or the edited artifact, beside the resume value.
    """
    decided = decision or {}
    payload: JsonObject = {
        **{name: decided[name] for name in DECISION_MEMBERS if name in decided},
        "nodeId": node_id,
        "interruptId": interrupt.interrupt_id,
        "kind": interrupt.event_kind,
        "resumeValue": value,
        "resolvedAt": burst.iso,
        "resolvedBy": by,
    }
    if interrupt.kind != interrupt.event_kind:
        payload[INTERRUPT_KIND] = interrupt.kind
    cause = interrupt.suspended_event
    burst.add("interrupt.resolved", payload, node_id=node_id, causation_id=cause)


def resume_node(burst: Burst, node_id: str, interrupt: Interrupt, value: Json) -> None:
    """Append that a node goes on with an answer."""
    payload: JsonObject = {
        "nodeId": node_id,
        "interruptId": interrupt.interrupt_id,
        "resumeValue": value,
    }
    burst.add("node.resumed", payload, node_id=node_id)


def receive(
    burst: Burst, node_id: str, value: JsonObject, decided_by: str, decided_at: str = ""
) -> None:
    """Append a decision on a gate; who decided comes from the host, never from the client.

    `decided_at` is the time of a decision that was recorded earlier.
    """
    decided: JsonObject = {"decidedBy": decided_by, "decidedAt": decided_at or burst.iso}
    burst.add("approval.received", {"nodeId": node_id, **value, **decided}, node_id=node_id)


def grant(burst: Burst, node_id: str, voter: str, required: int) -> None:
    """Append a vote for, with how far the gate has come; a second vote counts once."""
    interrupt = burst.state.nodes[node_id].interrupt
    ballots = () if interrupt is None else interrupt.ballots
    others = sum(ballot.is_grant for ballot in ballots if ballot.voter != voter)
    progress = {"granted": others + 1, "required": required}
    payload: JsonObject = {"gateId": node_id, "principal": voter, "quorumProgress": progress}
    burst.add("approval.granted", payload, node_id=node_id)


def reject(burst: Burst, node_id: str, voter: str, reason: str = "") -> None:
    """Append a vote against."""
    payload: JsonObject = {"gateId": node_id, "principal": voter}
    if reason:
        payload["reason"] = reason
    burst.add("approval.rejected", payload, node_id=node_id)
