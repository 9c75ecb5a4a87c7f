"""Features of pydantic-ai only: edited arguments, deferred tools and typed results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from pydantic_ai import Agent, DeferredToolRequests, Tool
from pydantic_ai.exceptions import CallDeferred
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from tests.adapters.script import refund, traces
from tests.adapters.test_wrapped_agents import payloads
from wopr import Workflow
from wopr.adapters.pydantic_ai import on_record
from wopr.adapters.wrapper import WrappedAgent
from wopr.protocol.documents import JsonObject
from wopr.testing import memory_host

pytestmark = pytest.mark.anyio


class Script:
    """A model that returns these answers in order and records its requests."""

    def __init__(self, *answers: ModelResponsePart) -> None:
        self.told: list[Sequence[ModelMessage]] = []
        self._answers = answers

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.told.append(messages)
        return ModelResponse(parts=[self._answers[len(self.told) - 1]])


def flow_of(desk: WrappedAgent) -> Workflow[JsonObject, JsonObject]:
    flow = Workflow("desk")
    flow.add("answer", desk, prompt="Refund it", customer="ada")
    return flow


async def test_edited_arguments_are_passed_to_the_tool() -> None:
    script = Script(ToolCallPart("refund", {"order": "A-17"}, "c1"), TextPart("Done."))
    agent = Agent(
        FunctionModel(script),
        output_type=[str, DeferredToolRequests],
        tools=[Tool(refund, requires_approval=True)],
    )
    flow = flow_of(on_record("acme.desk.pydantic", agent))

    async with memory_host(flow) as host:
        run = await host.start(flow)
        await run.settled()
        edited = {"action": "edit-accept", "editedArtifactData": {"order": "A-18"}}
        await run.answer(edited)
        await run.result()
        log = await run.log()

    [called] = payloads(log, "agent.toolCalled")
    assert traces() == ["refund:A-18"]
    assert called["inputs"] == {"order": "A-18"}
    assert '{"customer":"ada"}' in str(script.told[0])


async def test_a_denied_call_is_logged_as_forbidden() -> None:
    script = Script(ToolCallPart("refund", {"order": "A-17"}, "c1"), TextPart("Done."))
    agent = Agent(
        FunctionModel(script),
        output_type=[str, DeferredToolRequests],
        tools=[Tool(refund, requires_approval=True)],
    )
    flow = flow_of(on_record("acme.desk.pydantic", agent))

    async with memory_host(flow) as host:
        run = await host.start(flow)
        await run.settled()
        await run.answer("reject", feedback="too late")
        await run.result()
        log = await run.log()

    [returned] = payloads(log, "agent.toolReturned")
    assert (returned["status"], returned["error"]["message"]) == ("forbidden", "too late")
    assert "too late" in str(script.told[1])
    assert traces() == []


async def test_the_result_of_a_deferred_tool_is_requested_from_a_person() -> None:
    def measure(what: str) -> str:
        """Measure an object by hand."""
        raise CallDeferred

    script = Script(ToolCallPart("measure", {"what": "desk"}, "c1"), TextPart("Done."))
    agent = Agent(FunctionModel(script), output_type=[str, DeferredToolRequests], tools=[measure])
    flow = flow_of(on_record("acme.desk.pydantic", agent))

    async with memory_host(flow) as host:
        run = await host.start(flow)
        await run.settled()
        [wait] = await run.waits()
        await run.answer({"answers": {"answer": {"cm": 160}}})
        await run.result()
        log = await run.log()

    [called], [returned] = payloads(log, "agent.toolCalled"), payloads(log, "agent.toolReturned")
    assert wait.question == 'What is the result of measure for {"what":"desk"}?'
    assert called["callId"] == returned["callId"]
    assert returned["outcome"] == {"cm": 160}
    assert "{'cm': 160}" in str(script.told[1])


@dataclass
class Verdict:
    """The decision of the agent."""

    team: str
    confidence: float


async def test_a_typed_result_that_is_unsure_waits_for_a_person() -> None:
    model = TestModel(custom_output_args={"team": "billing", "confidence": 0.3})
    flow = flow_of(
        on_record("acme.desk.pydantic", Agent(model, output_type=Verdict), threshold=0.8)
    )

    async with memory_host(flow) as host:
        run = await host.start(flow)
        await run.settled()
        [wait] = await run.waits()
        await run.answer({"decision": {"team": "shipping", "confidence": 1.0}})
        outputs = await run.result()
        log = await run.log()

    assert (wait.kind, wait.data["observed"]) == ("low-confidence", 0.3)
    assert outputs["answer"]["result"]["team"] == "shipping"
    # The output tool of a model is not a tool of the agent.
    assert payloads(log, "agent.toolCalled") == []
