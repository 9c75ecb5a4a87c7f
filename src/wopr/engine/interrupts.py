"""Interrupts as state: what a node waits for, who has voted, and when the wait ends."""

from __future__ import annotations

from typing import Final

import msgspec

from wopr.protocol.documents import UNSET, Document, Json, JsonObject, NonEmpty, Unset
from wopr.protocol.runs import RunStatus

# Members of `node.suspended` that only this host reads.
HELD_OUTPUTS: Final = "x-host-wopr-held-outputs"
WAITING_STATUS: Final = "x-host-wopr-waiting-status"
# The reason in the `interrupt.resolved` of a wait that ended without an answer.
TIMEOUT: Final = "timeout"
# The member of a governance gate's data that says who may decide it.
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
    """The run's status while an interrupt of this kind is pending."""
    return _STATUSES.get(kind, "waiting-input")


class GovernanceRule(Document, frozen=True, kw_only=True):
    """Who may decide a governance gate, and who may open it from outside."""

    required_role: NonEmpty | Unset = UNSET
    required_scope: NonEmpty | Unset = UNSET
    override_role: NonEmpty | Unset = UNSET


class Ballot(msgspec.Struct, frozen=True, kw_only=True):
    """One vote on a gate; a second vote of the same voter replaces the first."""

    voter: str
    is_grant: bool


class Interrupt(msgspec.Struct, frozen=True, kw_only=True):
    """A pending wait of one node."""

    interrupt_id: str
    # The kind as clients see it.
    kind: str
    # The kind as events have it: `custom` for a kind of the host's own.
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
    # Outputs of a node whose decision waits to be ratified.
    held_outputs: JsonObject | None = None
    # The last turn of a conversation and the event that carries it.
    turn_index: int = 0
    turn_event: str = ""
    # Whether the event that repeats the answer for its kind of wait is on the log.
    is_reported: bool = False

    @property
    def deadline(self) -> int | None:
        """When the wait times out; counted from the event, so a restart keeps it."""
        return self.requested_at + self.timeout_ms if self.timeout_ms else None

    def with_ballot(self, ballot: Ballot) -> Interrupt:
        """Count a vote."""
        others = tuple(b for b in self.ballots if b.voter != ballot.voter)
        return msgspec.structs.replace(self, ballots=(*others, ballot))

    @property
    def grants(self) -> int:
        """How many have accepted."""
        return sum(ballot.is_grant for ballot in self.ballots)

    @property
    def rejections(self) -> int:
        """How many have rejected."""
        return len(self.ballots) - self.grants


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """How an interrupt ended. `recorded` is the payload of its `interrupt.resolved`."""

    interrupt_id: str
    kind: str
    resolved_by: str
    recorded: JsonObject

    @property
    def value(self) -> Json:
        """The resume value."""
        return self.recorded.get("resumeValue")

    @property
    def is_timeout(self) -> bool:
        """Whether the wait ended without an answer."""
        return self.recorded.get("reason") == TIMEOUT
