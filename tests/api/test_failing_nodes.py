"""Errors of nodes whose tasks fail, and settings on every kind of node."""

from __future__ import annotations

import anyio
import pytest

from wopr import (
    Agent,
    NodeContext,
    NodeFailure,
    NodeSettings,
    RetryPolicy,
    RunFailed,
    Workflow,
    WorkflowError,
    node,
)
from wopr.protocol.documents import JsonObject
from wopr.testing import memory_host

pytestmark = pytest.mark.anyio

SETTINGS = NodeSettings(timeout=5000, max_retries=2, backoff=RetryPolicy(initial_ms=1))
WIRED = {"timeout": 5000, "maxRetries": 2, "backoff": {"initialMs": 1}}


async def _fail(error: Exception) -> None:
    raise error


@node("local.one")
async def one_fails(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> JsonObject:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_fail, NodeFailure("the card was declined", code="declined"))
    return {}


@node("local.nested")
async def several_fail(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> JsonObject:
    inner = ExceptionGroup("inner", [NodeFailure("no stock", code="sold_out"), ValueError("odd")])
    raise ExceptionGroup("outer", [inner, KeyError("price")])


async def _failure(kind: object) -> RunFailed:
    flow = Workflow("failing")
    flow.add("it", kind)  # type: ignore[arg-type]  # a function declared with @node
    async with memory_host(flow) as host:
        run = await host.start(flow)
        with pytest.raises(RunFailed) as failed:
            await run.result()
    return failed.value


async def test_an_exception_group_keeps_its_code_and_message() -> None:
    failure = await _failure(one_fails)

    assert failure.code == "declined"
    assert "the card was declined" in str(failure)
    assert failure.details == {}


async def test_several_exceptions_are_reported_as_the_first_with_all_in_details() -> None:
    failure = await _failure(several_fail)

    assert failure.code == "sold_out"
    assert failure.details == {
        "errors": [
            {"code": "sold_out", "message": "no stock"},
            {"code": "node_error", "message": "ValueError: odd"},
            {"code": "node_error", "message": "KeyError: 'price'"},
        ]
    }


def test_every_kind_of_node_accepts_settings() -> None:
    agent = Agent("acme.desk.agent", model="test:model")
    child = Workflow("child")
    child.end()
    flow = Workflow("settled")
    variable = flow.variable("x", str)
    flow.add("add", "core.noop", settings=SETTINGS)
    flow.agent("agent", agent, prompt="Work.", settings=SETTINGS)
    flow.approval("approval", "Pay?", settings=SETTINGS)
    flow.ask("ask", settings=SETTINGS, q="Why?")
    flow.sub("sub", child, settings=SETTINGS)
    flow.set("set", variable, "a", settings=SETTINGS)

    nodes = {each["id"]: each for each in flow.document()["nodes"]}

    assert {name: each["settings"] for name, each in nodes.items()} == dict.fromkeys(nodes, WIRED)
    assert not any("settings" in each["inputs"] for each in nodes.values())
    assert "settings" not in nodes["approval"]["config"]


def test_settings_of_another_type_are_refused_where_they_are_given() -> None:
    flow = Workflow("settled")

    with pytest.raises(WorkflowError, match=r"node a: settings must be NodeSettings\(.*not dict"):
        flow.add("a", "core.noop", settings={"maxRetries": 2})  # type: ignore[arg-type]  # on purpose


async def test_a_plain_function_that_fails_is_retried_by_its_settings() -> None:
    attempts: list[int] = []

    @node("local.flaky")
    def flaky(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> JsonObject:
        attempts.append(ctx.attempt)
        if ctx.attempt < 2:
            raise ValueError("not yet")
        return {}

    flow = Workflow("retried")
    flow.add("it", flaky, settings=SETTINGS)
    async with memory_host(flow) as host:
        await (await host.start(flow)).result()

    assert attempts == [0, 1, 2]


@pytest.mark.parametrize("type_id", ["bad type!", "Upper.case", "", "9lives"])
def test_a_node_type_with_a_bad_id_is_refused_where_it_is_declared(type_id: str) -> None:
    with pytest.raises(ValueError, match="is not the id of a node type: it starts with"):

        @node(type_id)
        def never(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> JsonObject:
            return {}
