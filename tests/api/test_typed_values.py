"""Pydantic models as types of tools, inputs, outputs, answers and node functions."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING

import pydantic
import pytest

from wopr import Agent, NodeContext, Workflow, WorkflowError, node, tool
from wopr.testing import call, memory_host, say, scripted

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.anyio

MODEL = "openai:gpt-4o-mini"


class Line(pydantic.BaseModel):
    price: Decimal


class Order(pydantic.BaseModel):
    number: str
    due: date = date(2026, 11, 15)
    lines: list[Line] = []


class Parcel(pydantic.BaseModel):
    weight: float = pydantic.Field(gt=0)


class Chain(pydantic.BaseModel):
    following: Chain | None = None


@tool
async def search_orders(customer: str) -> list[Order]:
    """Find the orders of a customer."""
    return [Order(number=f"{customer}-1", lines=[Line(price=Decimal("9.90"))])]


@tool
def ship(order: Order, parcel: Parcel | None = None) -> str:
    """Ship an order."""
    return f"{order.number} due {order.due:%d.%m.} with {len(order.lines)} lines, {parcel}"


@node("acme.weigh")
def weigh(ctx: NodeContext, config: Parcel, inputs: Order) -> Parcel:
    """Weigh an order."""
    return Parcel(weight=config.weight * len(inputs.lines))


def flow_of(agent: Agent) -> Workflow[Order, Parcel]:
    flow = Workflow("orders", inputs=Order, outputs=Parcel)
    ask = flow.agent("ask", agent, prompt=flow.inputs.number)
    end = flow.end(weight=ask["result"]["weight"])
    ask >> end
    return flow


async def test_models_are_arguments_and_results_of_tools() -> None:
    agent = Agent("acme.desk.clerk", model=MODEL, tools=[search_orders, ship], output=Parcel)
    flow = flow_of(agent)
    models = scripted(
        call(search_orders, customer="ada"),
        call(ship, order=Order(number="ada-1", lines=[Line(price=Decimal(1))])),
        say(Parcel(weight=2.5)),
    )

    async with memory_host(flow, models=models) as host:
        run = await host.start(flow, Order(number="ada-1"))
        result = await run.result()
        returned = [e.payload["outcome"] for e in await run.log() if e.type == "agent.toolReturned"]

    assert result == Parcel(weight=2.5)
    assert returned == [
        [{"number": "ada-1", "due": "2026-11-15", "lines": [{"price": "9.90"}]}],
        "ada-1 due 15.11. with 1 lines, None",
    ]


async def test_models_are_config_inputs_and_outputs_of_a_node_function() -> None:
    flow = Workflow("scale", inputs=Order, outputs=Parcel)
    scale = flow.add(
        "scale", weigh, config=Parcel(weight=2), number="A", lines=[Line(price=Decimal(1))]
    )
    end = flow.end(weight=scale["weight"])
    scale >> end

    async with memory_host(flow) as host:
        run = await host.start(flow, Order(number="A"))

        assert await run.result() == Parcel(weight=2.0)


async def test_a_missing_member_of_a_model_is_named_before_the_run() -> None:
    flow = Workflow("scale", inputs=Order)

    with pytest.raises(WorkflowError, match="there is no 'nubmer': did you mean 'number'"):
        _ = flow.inputs.nubmer


async def test_values_that_a_model_refuses_are_reported_by_field() -> None:
    flow = Workflow("parcel", inputs=Parcel)
    flow.add("a", "core.noop")

    with pytest.raises(WorkflowError, match="weight: Input should be greater than 0"):
        flow.inputs_json({"weight": -1})


def test_a_recursive_model_is_refused_by_its_name() -> None:
    with pytest.raises(WorkflowError, match="output: Chain contains itself"):
        Agent("acme.desk.clerk", model=MODEL, output=Chain)


def test_the_type_of_a_tool_s_result_may_be_imported_for_type_checking_only() -> None:
    @tool
    def orders(customer: str) -> Sequence[str]:
        """List orders."""
        return [customer]

    assert orders("ada") == ["ada"]


def test_an_unreadable_type_hint_is_reported_with_its_tool() -> None:
    def orders(wanted: Sequence[str]) -> None: ...

    with pytest.raises(TypeError, match=r"tool orders: .*'Sequence' is not defined"):
        tool(orders)
