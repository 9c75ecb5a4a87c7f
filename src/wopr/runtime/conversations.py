"""Turns of a conversation: on the log, and in the workflow's `conversation` channel if it has one."""

from __future__ import annotations

from wopr.engine.interrupts import Interrupt
from wopr.protocol.documents import Json, JsonObject
from wopr.runtime.appender import Burst

CHANNEL = "conversation"


def record_turn(burst: Burst, node_id: str, turn: JsonObject) -> None:
    """Write a turn to the channel; its message id makes a second write change nothing."""
    declared = burst.state.graph.channels.get(CHANNEL)
    if declared is None or declared.reducer != "message":
        return
    payload: JsonObject = {
        "channel": CHANNEL,
        "value": turn,
        "reducer": "message",
        "writtenAt": burst.iso,
        "nodeId": node_id,
        "schemaVersion": declared.schema_version,
    }
    burst.add("channel.written", payload, node_id=node_id)


def _turn(burst: Burst, interrupt: Interrupt, role: str, speaker: str, content: Json) -> JsonObject:
    index = interrupt.turn_index + 1
    conversation_id: str = interrupt.data["conversationId"]
    return {
        "messageId": f"{conversation_id}:{index}:{role}",
        "from": speaker,
        "content": content,
        "ts": burst.now,
        "role": role,
        "turnIndex": index,
    }


def exchange(burst: Burst, node_id: str, interrupt: Interrupt, content: Json, speaker: str) -> None:
    """Record a person's turn, and whose it was; the conversation stays open."""
    turn = _turn(burst, interrupt, "user", "user", content) | {"speakerId": speaker}
    payload: JsonObject = {
        "conversationId": interrupt.data["conversationId"],
        "turnIndex": turn["turnIndex"],
        "turn": turn,
    }
    burst.add("conversation.exchanged", payload, node_id=node_id, causation_id=interrupt.turn_event)
    record_turn(burst, node_id, turn)


def close_conversation(
    burst: Burst, node_id: str, interrupt: Interrupt, content: Json, outcome: Json
) -> None:
    """Record the closing turn; nothing may follow under this id."""
    turn = _turn(burst, interrupt, "system", "host:conversation", content)
    payload: JsonObject = {
        "conversationId": interrupt.data["conversationId"],
        "turnIndex": turn["turnIndex"],
        "finalTurn": turn,
        "outcome": outcome,
    }
    burst.add("conversation.closed", payload, node_id=node_id, causation_id=interrupt.turn_event)
    record_turn(burst, node_id, turn)
