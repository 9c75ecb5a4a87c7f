"""The same promises for every framework, with the real library and a scripted model."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from tests.adapters.agents_desk import agent_desk
from tests.adapters.flows import THOUGHT, Order, desk_flow
from tests.adapters.graph_desk import graph_desk
from tests.adapters.pydantic_desk import pydantic_desk
from tests.adapters.script import IN_TOKENS, OUT_TOKENS, SECRET, traces
from wopr import Event, RunCancelled, RunFailed
from wopr.adapters.wrapping import OnRecord
from wopr.protocol.documents import JsonObject
from wopr.testing import memory_host

pytestmark = pytest.mark.anyio
DESKS = {"langgraph": graph_desk, "agents": agent_desk, "pydantic": pydantic_desk}
REFUND = Order("Please refund A-17")
DEADLINE_SECONDS = 60
Making = Callable[[], OnRecord]
each_desk = pytest.mark.parametrize("make", DESKS.values(), ids=list(DESKS))


def payloads(log: list[Event], kind: str) -> list[JsonObject]:
    return [event.payload for event in log if event.type == kind]


async def until_traced(what: str) -> None:
    with anyio.fail_after(DEADLINE_SECONDS):
        while True:
            if what in traces():
                return
            await anyio.sleep(0.01)


@each_desk
async def test_an_answer_is_on_the_log_with_who_gave_it_and_what_it_cost(make: Making) -> None:
    desk = make()
    flow = desk_flow("hello", desk)

    async with memory_host(flow) as host:
        run = await host.start(flow, Order("Hello"))
        reply = await run.result()
        log = await run.log()

    assert reply.text == "Heard: Hello"
    [started, _] = payloads(log, "node.started")
    assert started["agent"] == {"agentId": desk.id}
    [usage] = payloads(log, "provider.usage")
    assert usage["inputTokens"] == IN_TOKENS
    assert usage["outputTokens"] == OUT_TOKENS
    assert usage["model"] == "m"
    [decided] = payloads(log, "agent.decided")
    assert decided == {"agentId": desk.id, "decision": "Heard: Hello"}


@each_desk
async def test_a_tool_that_needs_approval_waits_in_the_inbox_and_then_is_called(
    make: Making,
) -> None:
    desk = make()
    flow = desk_flow("refunds", desk)

    async with memory_host(flow) as host:
        run = await host.start(flow, REFUND)
        waiting = await run.settled()
        [wait] = await run.waits()
        before = traces()
        await run.answer("accept")
        reply = await run.result()
        log = await run.log()

    assert waiting.status == "waiting-approval"
    assert (wait.kind, wait.question) == ("approval", "Call refund?")
    assert wait.data["artifactData"] == {"order": "A-17"}
    assert wait.asked_by.agent_id == desk.id
    assert "refund:A-17" not in before
    assert reply.text == "Done: A-17 refunded"
    # One call of each tool, one request for each answer: the pause repeated none.
    assert traces() == ["asked", "look_up", "asked", "refund:A-17", "asked"]
    called, returned = payloads(log, "agent.toolCalled"), payloads(log, "agent.toolReturned")
    assert [each["toolName"] for each in called] == ["look_up", "refund"]
    assert [each["callId"] for each in called] == [each["callId"] for each in returned]
    assert all(each["argsHash"] and each["agentId"] == desk.id for each in called)
    assert [each["outcome"] for each in returned] == ["A-17 costs 5", "A-17 refunded"]
    assert THOUGHT in [each["reasoning"] for each in payloads(log, "agent.reasoned")]


@each_desk
async def test_a_refused_tool_is_not_called_and_the_agent_hears_of_it(make: Making) -> None:
    flow = desk_flow("refusals", make())

    async with memory_host(flow) as host:
        run = await host.start(flow, REFUND)
        await run.settled()
        await run.answer("reject", feedback="too late")
        reply = await run.result()
        log = await run.log()

    assert reply.text.startswith("Done: ")
    assert "A-17 refunded" not in reply.text
    assert "refund:A-17" not in traces()
    called, returned = payloads(log, "agent.toolCalled"), payloads(log, "agent.toolReturned")
    assert [each["callId"] for each in called] == [each["callId"] for each in returned]


@each_desk
async def test_a_replay_asks_no_model_and_calls_no_tool(make: Making) -> None:
    flow = desk_flow("replays", make())

    async with memory_host(flow) as host:
        run = await host.start(flow, REFUND)
        await run.settled()
        await run.answer("accept")
        reply = await run.result()
        before = traces()
        replay = await run.replay()
        repeated = await replay.result()
        different = await run.diff(replay)

    assert repeated == reply
    assert different.diverged_at_seq is None
    assert traces() == before


@each_desk
async def test_a_branch_from_the_start_does_the_work_again_and_asks_again(make: Making) -> None:
    flow = desk_flow("branches", make())

    async with memory_host(flow) as host:
        run = await host.start(flow, REFUND)
        await run.settled()
        branch = await run.fork()
        waiting = await branch.settled()
        await branch.answer("accept")
        reply = await branch.result()

    assert waiting.status == "waiting-approval"
    assert reply.text == "Done: A-17 refunded"
    assert traces().count("look_up") == 2


@each_desk
async def test_secrets_in_the_arguments_of_a_tool_reach_neither_log_nor_snapshot(
    make: Making,
) -> None:
    flow = desk_flow("secrets", make())

    async with memory_host(flow) as host:
        run = await host.start(flow, REFUND)
        await run.settled()
        await run.answer("accept")
        await run.result()
        log = await run.log()
        snapshot = await run.snapshot()

    [looked_up, _] = payloads(log, "agent.toolCalled")
    assert looked_up["inputs"] == {"order": "A-17", "token": "[REDACTED]"}
    assert SECRET not in str([event.payload for event in log])
    assert SECRET not in str(snapshot)


@each_desk
async def test_an_exception_fails_the_node_and_says_whose_it_was(make: Making) -> None:
    flow = desk_flow("failures", make())

    async with memory_host(flow) as host:
        run = await host.start(flow, Order("break it"))
        with pytest.raises(RunFailed) as failure:
            await run.result()
        log = await run.log()

    assert failure.value.code == "framework_error"
    assert "the till is jammed" in str(failure.value)
    assert failure.value.details["framework"] in str(failure.value)
    [returned] = payloads(log, "agent.toolReturned")
    assert returned["status"] == "error"
    assert "the till is jammed" in returned["error"]["message"]


@each_desk
async def test_cancelling_the_run_cancels_what_the_framework_does(make: Making) -> None:
    flow = desk_flow("cancels", make())

    async with memory_host(flow) as host:
        run = await host.start(flow, Order("slow, please"))
        await until_traced("slow")
        called = payloads(await run.log(), "agent.toolCalled")
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
        await until_traced("stopped")

    # It was on the log before it began.
    assert [each["toolName"] for each in called] == ["be_slow"]


@each_desk
async def test_the_time_limit_of_the_node_holds(make: Making) -> None:
    # On a busy machine the time may be over before the tool is called.
    for limit_ms in (1000, 5000, 25_000):
        flow = desk_flow("limits", make(), timeout=limit_ms)
        async with memory_host(flow) as host:
            run = await host.start(flow, Order("slow, please"))
            with pytest.raises(RunFailed) as failure:
                await run.result()

            assert failure.value.code == "node_timeout"
            if "slow" in traces():
                return await until_traced("stopped")
    raise AssertionError("the tool was never called")


@each_desk
async def test_a_spent_budget_ends_the_node_after_the_call_that_broke_it(make: Making) -> None:
    config = {"budget": {"maxTokens": IN_TOKENS + OUT_TOKENS}}
    flow = desk_flow("budgets", make(), config)

    async with memory_host(flow) as host:
        run = await host.start(flow, REFUND)
        with pytest.raises(RunFailed) as failure:
            await run.result()
        log = await run.log()

    assert failure.value.code == "token_budget_exceeded"
    assert len(payloads(log, "provider.usage")) == 2
    [breached] = payloads(log, "cap.breached")
    assert (breached["kind"], breached["scope"]) == ("budget-tokens", "node")
    assert traces() == ["asked", "look_up", "asked"]


@each_desk
async def test_a_budget_of_tool_calls_stops_the_call_before_it_is_made(make: Making) -> None:
    flow = desk_flow("calls", make(), {"budget": {"maxToolCalls": 0}})

    async with memory_host(flow) as host:
        run = await host.start(flow, REFUND)
        with pytest.raises(RunFailed) as failure:
            await run.result()

    assert failure.value.code == "budget_exhausted"
    assert traces() == ["asked"]


@each_desk
async def test_a_budget_of_the_run_counts_what_the_framework_reports(make: Making) -> None:
    flow = desk_flow("run-budgets", make())

    async with memory_host(flow) as host:
        options = {"budget": {"maxTokens": IN_TOKENS}}
        run = await host.start(flow, REFUND, configurable=options)
        with pytest.raises(RunFailed) as failure:
            await run.result()

    assert failure.value.code == "token_budget_exceeded"
    assert traces() == ["asked"]


def test_every_desk_is_an_agent_of_the_inventory_with_a_manifest() -> None:
    for make in DESKS.values():
        manifest = desk_flow("inventory", make()).agents[0].manifest()

        assert manifest["agentId"].startswith("local.acme.desk.")
        assert manifest["description"]
