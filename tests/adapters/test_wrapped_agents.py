"""The same tests for every framework, with the real library and a scripted model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.adapters.agents_desk import agent_desk
from tests.adapters.flows import THOUGHT, Order, desk_flow
from tests.adapters.graph_desk import graph_desk
from tests.adapters.pydantic_desk import pydantic_desk
from tests.adapters.script import IN_TOKENS, OUT_TOKENS, SECRET, traces
from tests.support.eventually import eventually_async
from wopr import Event, RunCancelled, RunFailed
from wopr.adapters.wrapper import WrappedAgent
from wopr.protocol.documents import JsonObject
from wopr.testing import memory_host

pytestmark = pytest.mark.anyio
DESKS = {"langgraph": graph_desk, "agents": agent_desk, "pydantic": pydantic_desk}
REFUND = Order("Please refund A-17")
MakeAgent = Callable[[], WrappedAgent]
each_desk = pytest.mark.parametrize("make", DESKS.values(), ids=list(DESKS))


def payloads(log: list[Event], kind: str) -> list[JsonObject]:
    return [event.payload for event in log if event.type == kind]


async def until_traced(what: str) -> None:
    async def is_traced() -> bool:
        return what in traces()

    await eventually_async(is_traced)


@each_desk
async def test_an_answer_is_logged_with_its_agent_its_model_and_its_tokens(make: MakeAgent) -> None:
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
async def test_a_tool_that_needs_approval_waits_in_the_inbox_before_it_is_called(
    make: MakeAgent,
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
    # One call of each tool and one request for each answer: the pause repeated none.
    assert traces() == ["asked", "look_up", "asked", "refund:A-17", "asked"]
    called, returned = payloads(log, "agent.toolCalled"), payloads(log, "agent.toolReturned")
    assert [each["toolName"] for each in called] == ["look_up", "refund"]
    assert [each["callId"] for each in called] == [each["callId"] for each in returned]
    assert all(each["argsHash"] and each["agentId"] == desk.id for each in called)
    assert [each["outcome"] for each in returned] == ["A-17 costs 5", "A-17 refunded"]
    assert THOUGHT in [each["reasoning"] for each in payloads(log, "agent.reasoned")]


@each_desk
async def test_a_refused_tool_is_not_called_and_the_agent_gets_the_refusal(make: MakeAgent) -> None:
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
async def test_a_replay_calls_no_model_and_no_tool(make: MakeAgent) -> None:
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
async def test_a_branch_from_the_start_calls_model_and_tools_again(make: MakeAgent) -> None:
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
async def test_secrets_in_tool_arguments_appear_neither_in_the_log_nor_in_the_snapshot(
    make: MakeAgent,
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
async def test_an_exception_fails_the_node_and_names_the_framework(make: MakeAgent) -> None:
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
async def test_cancelling_the_run_cancels_the_framework_call(make: MakeAgent) -> None:
    flow = desk_flow("cancels", make())

    async with memory_host(flow) as host:
        run = await host.start(flow, Order("slow, please"))
        await until_traced("slow")
        called = payloads(await run.log(), "agent.toolCalled")
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
        await until_traced("stopped")

    # The call was logged before it began.
    assert [each["toolName"] for each in called] == ["be_slow"]


@each_desk
async def test_the_time_limit_of_the_node_applies(make: MakeAgent) -> None:
    # On a busy machine the time limit can pass before the tool is called.
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
async def test_a_spent_budget_ends_the_node_after_the_call_that_exceeded_it(
    make: MakeAgent,
) -> None:
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
async def test_a_budget_of_tool_calls_stops_a_call_before_it_is_made(make: MakeAgent) -> None:
    flow = desk_flow("calls", make(), {"budget": {"maxToolCalls": 0}})

    async with memory_host(flow) as host:
        run = await host.start(flow, REFUND)
        with pytest.raises(RunFailed) as failure:
            await run.result()

    assert failure.value.code == "budget_exhausted"
    assert traces() == ["asked"]


@each_desk
async def test_a_budget_of_the_run_counts_the_usage_that_the_framework_reports(
    make: MakeAgent,
) -> None:
    flow = desk_flow("run-budgets", make())

    async with memory_host(flow) as host:
        options = {"budget": {"maxTokens": IN_TOKENS}}
        run = await host.start(flow, REFUND, configurable=options)
        with pytest.raises(RunFailed) as failure:
            await run.result()

    assert failure.value.code == "token_budget_exceeded"
    assert traces() == ["asked"]


def test_every_wrapped_agent_is_in_the_inventory_with_a_manifest() -> None:
    for make in DESKS.values():
        manifest = desk_flow("inventory", make()).agents[0].manifest()

        assert manifest["agentId"].startswith("local.acme.desk.")
        assert manifest["description"]
