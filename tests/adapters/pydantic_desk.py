"""A support desk in pydantic-ai, and an app with it."""

from __future__ import annotations

import pydantic_ai
from pydantic_ai import messages as said
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from tests.adapters.flows import THOUGHT, desk_flow
from tests.adapters.script import (
    IN_TOKENS,
    OUT_TOKENS,
    be_slow,
    break_down,
    look_up,
    move,
    refund,
)
from wopr.adapters.pydantic_ai import on_record
from wopr.adapters.wrapper import WrappedAgent


def _pydantic_model(messages: list[said.ModelMessage], info: AgentInfo) -> said.ModelResponse:
    parts = [part for message in messages for part in message.parts]
    prompt = next(str(part.content) for part in parts if isinstance(part, said.UserPromptPart))
    results = [str(part.content) for part in parts if isinstance(part, said.ToolReturnPart)]
    wanted = move(prompt, results)
    spoken: list[said.ModelResponsePart] = (
        [said.TextPart(wanted)]
        if isinstance(wanted, str)
        else [
            said.ThinkingPart(THOUGHT),
            said.ToolCallPart(wanted.tool, wanted.arguments, f"c{len(results)}"),
        ]
    )
    used = RequestUsage(input_tokens=IN_TOKENS, output_tokens=OUT_TOKENS)
    return said.ModelResponse(parts=spoken, usage=used)


def pydantic_desk() -> WrappedAgent:
    """Return the desk as an agent of pydantic-ai."""
    desk = pydantic_ai.Agent(
        FunctionModel(_pydantic_model, model_name="m"),
        name="desk",
        output_type=[str, pydantic_ai.DeferredToolRequests],
        tools=[
            look_up,
            break_down,
            be_slow,
            pydantic_ai.Tool(refund, requires_approval=True),
        ],
    )
    return on_record("acme.desk.pydantic", desk)


flow = desk_flow("desk-pydantic", pydantic_desk())
