"""Features of the OpenAI Agents SDK only: hand-offs, tracing and several approvals at once."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Agent, function_tool, set_trace_processors
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tracing import TracingProcessor
from pydantic import BaseModel

from tests.adapters.script import SECRET, traced, traces
from tests.adapters.test_wrapped_agents import payloads
from wopr import RunFailed, Workflow
from wopr.adapters.openai_agents import on_record
from wopr.adapters.wrapper import WrappedAgent
from wopr.protocol.documents import JsonObject
from wopr.testing import memory_host

pytestmark = pytest.mark.anyio


@function_tool(needs_approval=True)
async def refund(order: str, key: str = "") -> str:
    """Refund an order."""
    traced(f"refund:{order}")
    return f"{order} refunded"


def flow_of(desk: WrappedAgent) -> Workflow[JsonObject, JsonObject]:
    flow = Workflow("desk")
    flow.add("answer", desk, prompt="Refund it", customer="ada")
    return flow


async def test_a_hand_off_is_logged_and_the_receiver_acts_under_its_own_name() -> None:
    model = ScriptedModel(
        [
            [function_call("transfer_to_billing", {}, call_id="h1")],
            [function_call("refund", {"order": "A-17"}, call_id="c1")],
            [assistant_message("Done.")],
        ]
    )
    billing = Agent(name="Billing", model=model, tools=[refund])
    desk = on_record("acme.desk.front", Agent(name="Front", model=model, handoffs=[billing]))
    flow = flow_of(desk)

    async with memory_host(flow) as host:
        run = await host.start(flow)
        await run.settled()
        [wait] = await run.waits()
        await run.answer("accept")
        outputs = await run.result()
        log = await run.log()

    receiver = f"{desk.id}.billing"
    assert wait.data["description"] == "The agent Billing wants to call refund."
    assert payloads(log, "agent.handoff") == [{"fromAgentId": desk.id, "toAgentId": receiver}]
    assert [each["agentId"] for each in payloads(log, "agent.toolCalled")] == [receiver]
    assert outputs["answer"] == {"result": "Done.", "text": "Done.", "agent": receiver}
    assert '{"customer":"ada"}' in str(model.calls[0].input)


async def test_tool_calls_that_wait_together_are_decided_one_by_one() -> None:
    both = [function_call("refund", {"order": name}, call_id=name) for name in ("A-1", "A-2")]
    model = ScriptedModel([both, [assistant_message("Done.")]])
    flow = flow_of(on_record("acme.desk.front", Agent(name="Desk", model=model, tools=[refund])))

    async with memory_host(flow) as host:
        run = await host.start(flow)
        await run.settled()
        await run.answer("reject", feedback="too old")
        await run.settled()
        await run.answer("accept")
        await run.result()
        log = await run.log()

    statuses = {each["callId"]: each["status"] for each in payloads(log, "agent.toolReturned")}
    assert traces() == ["refund:A-2"]
    assert statuses == {"call-answer-A-1": "forbidden", "call-answer-A-2": "ok"}
    assert "too old" in str(model.calls[1].input)


async def test_a_call_with_a_masked_secret_is_not_repeated_after_the_pause() -> None:
    call = function_call("refund", {"order": "A-17", "key": SECRET}, call_id="c1")
    model = ScriptedModel([[call], [assistant_message("Done.")]])
    flow = flow_of(on_record("acme.desk.front", Agent(name="Desk", model=model, tools=[refund])))

    async with memory_host(flow) as host:
        run = await host.start(flow)
        await run.settled()
        [wait] = await run.waits()
        await run.answer("accept")
        with pytest.raises(RunFailed) as failure:
            await run.result()

    assert wait.data["artifactData"] == {"order": "A-17", "key": "[REDACTED]"}
    assert failure.value.code == "framework_error"
    assert traces() == []


class Verdict(BaseModel):
    """The decision of the agent."""

    team: str
    confidence: float


async def test_a_typed_result_is_an_object_and_waits_when_it_is_unsure() -> None:
    said = '{"team": "billing", "confidence": 0.3}'
    model = ScriptedModel([[assistant_message(said)]])
    agent = Agent(name="Desk", model=model, output_type=Verdict)
    flow = flow_of(on_record("acme.desk.front", agent, threshold=0.8))

    async with memory_host(flow) as host:
        run = await host.start(flow)
        await run.settled()
        [wait] = await run.waits()
        await run.answer("accept")
        outputs = await run.result()

    assert wait.kind == "low-confidence"
    assert outputs["answer"]["result"] == {"team": "billing", "confidence": 0.3}


class Listening(TracingProcessor):
    """Count the traces that an exporter would send."""

    def __init__(self) -> None:
        self.traces = 0

    def on_trace_start(self, trace: Any) -> None:
        self.traces += 1

    def on_trace_end(self, trace: Any) -> None: ...
    def on_span_start(self, span: Any) -> None: ...
    def on_span_end(self, span: Any) -> None: ...
    def shutdown(self) -> None: ...
    def force_flush(self) -> None: ...


@pytest.mark.parametrize(("tracing", "count"), [(False, 0), (True, 1)])
async def test_traces_are_sent_only_when_asked_for(tracing: bool, count: int) -> None:
    listening = Listening()
    set_trace_processors([listening])
    model = ScriptedModel([[assistant_message("Done.")]])
    flow = flow_of(on_record("acme.desk.front", Agent(name="D", model=model), tracing=tracing))

    async with memory_host(flow) as host:
        run = await host.start(flow)
        await run.result()
    set_trace_processors([])

    assert listening.traces == count


async def test_an_agent_that_takes_too_many_turns_fails_with_that_reason() -> None:
    model = ScriptedModel([[function_call("look", {}, call_id=f"c{n}")] for n in range(5)])
    look = function_tool(lambda: "nothing", name_override="look")
    agent = Agent(name="Desk", model=model, tools=[look])
    flow = flow_of(on_record("acme.desk.front", agent, max_turns=2))

    async with memory_host(flow) as host:
        run = await host.start(flow)
        with pytest.raises(RunFailed) as failure:
            await run.result()

    assert failure.value.details["exception"] == "MaxTurnsExceeded"
    assert len(model.calls) == 2
