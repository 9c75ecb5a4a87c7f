"""A support desk in the OpenAI Agents SDK, and an app with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import agents
import msgspec
from agents.models.interface import Model
from agents.usage import Usage
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)
from openai.types.responses.response_reasoning_item import Summary

from tests.adapters.flows import THOUGHT, desk_flow
from tests.adapters.script import (
    IN_TOKENS,
    OUT_TOKENS,
    Call,
    be_slow,
    break_down,
    look_up,
    move,
    refund,
)
from wopr.adapters.openai_agents import on_record
from wopr.adapters.wrapper import WrappedAgent


class AgentModel(Model):
    """Return the answers of the script."""

    model = "m"

    async def get_response(
        self, system_instructions: str | None, input: Any, *args: Any, **kwargs: Any
    ) -> agents.ModelResponse:
        items: list[dict[str, Any]] = (
            [{"role": "user", "content": input}] if isinstance(input, str) else input
        )
        prompt = next(str(each["content"]) for each in items if each.get("role") == "user")
        results = [
            str(each["output"]) for each in items if each.get("type") == "function_call_output"
        ]
        used = Usage(
            requests=1,
            input_tokens=IN_TOKENS,
            output_tokens=OUT_TOKENS,
            total_tokens=IN_TOKENS + OUT_TOKENS,
        )
        output = _agent_output(move(prompt, results), len(results))
        return agents.ModelResponse(output=output, usage=used, response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def _agent_output(wanted: Call | str, place: int) -> list[Any]:
    if isinstance(wanted, str):
        text = ResponseOutputText(text=wanted, type="output_text", annotations=[])
        return [
            ResponseOutputMessage(
                id="m", content=[text], role="assistant", status="completed", type="message"
            )
        ]
    thought = Summary(text=THOUGHT, type="summary_text")
    given = msgspec.json.encode(wanted.arguments).decode()
    return [
        ResponseReasoningItem(id=f"r{place}", summary=[thought], type="reasoning"),
        ResponseFunctionToolCall(
            call_id=f"c{place}", name=wanted.tool, arguments=given, type="function_call"
        ),
    ]


def agent_desk() -> WrappedAgent:
    """Return the desk as an agent of the OpenAI Agents SDK."""
    plain = [
        agents.function_tool(each, failure_error_function=None)
        for each in (look_up, break_down, be_slow)
    ]
    approved = agents.function_tool(refund, needs_approval=True)
    desk = agents.Agent(name="Desk", model=AgentModel(), tools=[approved, *plain])
    return on_record("acme.desk.agents", desk)


flow = desk_flow("desk-agents", agent_desk())
