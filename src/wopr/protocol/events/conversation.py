"""Payloads of conversation events, in a form that both published schemas accept."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from wopr.protocol.documents import UNSET, Closed, Document, Json, JsonObject, NonEmpty, Unset
from wopr.protocol.events.values import Count, Ordinal
from wopr.protocol.interrupts import ConversationId

Label = Annotated[str, msgspec.Meta(max_length=256)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class TurnAgent(Document, frozen=True, kw_only=True):
    """The agent of a turn. `%shared%` stands for the group id of the turn."""

    agent_id: NonEmpty | Unset = UNSET
    agent_sharing: Literal["isolated", "shared", "shared:%shared%"] | Unset = UNSET
    memory_ref: str | Unset = UNSET


class ConversationTurn(Document, frozen=True, kw_only=True):
    """One turn of a conversation. The turn of an agent has `speakerId`."""

    message_id: Name
    sender: Name = msgspec.field(name="from")
    content: Json
    ts: Count
    role: Literal["user", "agent", "system"]
    turn_index: Count
    to: Label | Unset = UNSET
    group_id: Label | Unset = UNSET
    agent: TurnAgent | Unset = UNSET
    speaker_id: Name | Unset = UNSET

    def __post_init__(self) -> None:
        if self.role == "agent" and self.speaker_id is UNSET:
            raise ValueError("a turn of role agent needs speakerId")
        shared = self.agent is not UNSET and self.agent.agent_sharing == "shared:%shared%"
        if shared and self.group_id is UNSET:
            raise ValueError("a turn from a shared group context needs groupId")


class Participant(Document, frozen=True, kw_only=True):
    """A participant of a conversation."""

    agent_id: Name
    name: Label | Unset = UNSET


class ConversationOpened(Closed, frozen=True, kw_only=True):
    """A conversation began with its first turn."""

    conversation_id: ConversationId
    initial_turn: ConversationTurn
    agent_id: Name | Unset = UNSET
    participants: list[Participant] | Unset = UNSET
    schema: JsonObject | Unset = UNSET
    capabilities: list[Literal["multi-turn", "streaming"]] | Unset = UNSET


class ConversationExchanged(Closed, frozen=True, kw_only=True):
    """A further turn."""

    conversation_id: ConversationId
    turn_index: Ordinal
    turn: ConversationTurn


class ConversationClosed(Closed, frozen=True, kw_only=True):
    """The end of a conversation. No turn may follow with this id."""

    conversation_id: ConversationId
    turn_index: Count
    final_turn: ConversationTurn
    outcome: Json | Unset = UNSET


PAYLOADS: Final[dict[str, type[msgspec.Struct]]] = {
    "conversation.opened": ConversationOpened,
    "conversation.exchanged": ConversationExchanged,
    "conversation.closed": ConversationClosed,
}
