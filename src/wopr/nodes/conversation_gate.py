"""`core.conversationGate`: a conversation of several turns, kept on the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from wopr.engine.outcome import Completed, Outcome, Suspended
from wopr.nodes.context import NodeContext
from wopr.nodes.gates import answer_schema, answer_schema_faults
from wopr.nodes.registry import node
from wopr.protocol.documents import UNSET, Closed, Json, JsonObject, NonEmpty, Unset

HOST_SPEAKER = "host:conversation"


class ConversationGateConfig(Closed, frozen=True, kw_only=True):
    """The opening words, and what a turn must look like.

    `mockAutoResume` answers with `turnCount` turns of the host's own; only conformance workflows
    may set it.
    """

    lifecycle: Literal["open-exchange-close"] = "open-exchange-close"
    prompt: NonEmpty = "How can this go on?"
    turn_schema: JsonObject | Unset = UNSET
    turn_count: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    mock_auto_resume: bool = False
    timeout_ms: Annotated[int, msgspec.Meta(ge=0)] = 0

    @staticmethod
    def known_inputs(_: JsonObject) -> tuple[str, ...]:
        """The inputs that the node reads."""
        return ("prompt",)

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Name what keeps the schema of turns from being used."""
        yield from answer_schema_faults("turnSchema", config.get("turnSchema"))


@node("core.conversationGate")
def conversation_gate(
    ctx: NodeContext, config: ConversationGateConfig, inputs: JsonObject
) -> Outcome:
    """Open a conversation and wait until it is closed."""
    key = ctx.interrupt_key()
    answer = ctx.answer(key)
    if not isinstance(answer, Unset):
        return Completed({"outcome": answer.get("outcome")})
    script = _script(config.turn_count) if config.mock_auto_resume else ()
    schema = answer_schema("turnSchema", config.turn_schema)
    prompt = str(inputs.get("prompt", config.prompt))
    return open_conversation(
        ctx, key, prompt, schema=schema, timeout_ms=config.timeout_ms, script=script
    )


def open_conversation(
    ctx: NodeContext,
    key: str,
    prompt: str,
    *,
    schema: JsonObject | None = None,
    timeout_ms: int = 0,
    script: tuple[Json, ...] = (),
) -> Suspended:
    """Wait on a conversation whose first turn is the prompt.

    Its id names the run, for no two conversations of a tenant may share one; whoever replays the
    run takes the id from the log, as all that was said.
    """
    agent = ctx.agent
    conversation_id = f"{ctx.origin_run_id}:{key}"
    speaker = HOST_SPEAKER if agent is None else agent.agent_id
    data: JsonObject = {"conversationId": conversation_id, "prompt": prompt, "turnIndex": 0}
    first: JsonObject = {
        "messageId": f"{conversation_id}:0:agent",
        "from": speaker,
        "content": prompt,
        "ts": ctx.now,
        "role": "agent",
        "turnIndex": 0,
        "speakerId": speaker if speaker.startswith("host:") else f"host:{speaker}",
    }
    opening: JsonObject = {"conversationId": conversation_id, "initialTurn": first}
    if agent is not None:
        opening["agentId"] = agent.agent_id
    if schema is not None:
        data["outcomeSchema"] = schema
        opening["schema"] = schema
    return Suspended(
        kind="conversation.exchange",
        key=key,
        data=data,
        reason="conversation-input",
        opening=opening,
        timeout_ms=timeout_ms,
        script=script,
    )


def _script(turns: int) -> tuple[Json, ...]:
    said: list[Json] = [
        {"operation": "exchange", "turn": {"content": f"Turn {index} of the script."}}
        for index in range(1, turns + 1)
    ]
    return (*said, {"operation": "close", "outcome": {"turns": turns}})
