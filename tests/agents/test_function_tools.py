from __future__ import annotations

from typing import Annotated

import httpx
import msgspec
import pytest

from wopr.agents.tools.functions import function_tool
from wopr.agents.tools.tool import ToolContext, ToolFault
from wopr.agents.tools.toolbox import Toolbox
from wopr.protocol.documents import Json

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    id: str
    total: float = 0.0


async def search(
    customer: Annotated[str, msgspec.Meta(description="Whose orders.")], most: int = 3
) -> list[Order]:
    """Find a customer's orders."""
    return [Order(f"{customer}-{place}") for place in range(most)]


def add(left: int, right: int) -> int:
    return left + right


async def whoami(context: ToolContext) -> str:
    return f"{context.tenant}/{context.call_id}"


async def pay(order: Order) -> float:
    return order.total


async def no_secret(ref: str, *, host: str = "", provider: str = "") -> str:
    raise ToolFault("none", code="credential_not_found")


def context() -> ToolContext:
    return ToolContext(
        tenant="acme",
        run_id="run-1",
        node_id="ask",
        agent_id="acme.agent",
        call_id="call-ask-0-0",
        invocation_id="inv",
        http=httpx.AsyncClient(),
        secret=no_secret,
    )


def test_the_schema_comes_from_the_type_hints_and_the_description_from_the_docstring() -> None:
    tool = function_tool(search)

    assert (tool.name, tool.description) == ("local:search", "Find a customer's orders.")
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "customer": {"type": "string", "description": "Whose orders."},
            "most": {"type": "integer"},
        },
        "required": ["customer"],
        "additionalProperties": False,
    }


async def test_a_default_comes_from_the_function() -> None:
    assert await function_tool(search).call({"customer": "a"}, context()) == [
        {"id": "a-0", "total": 0.0},
        {"id": "a-1", "total": 0.0},
        {"id": "a-2", "total": 0.0},
    ]


async def test_a_plain_function_is_a_tool_too() -> None:
    assert await function_tool(add).call({"left": 2, "right": 3}, context()) == 5


async def test_a_function_can_read_the_tenant_and_call_it_is_called_for() -> None:
    tool = function_tool(whoami)

    assert tool.parameters["properties"] == {}
    assert await tool.call({}, context()) == "acme/call-ask-0-0"


async def test_arguments_have_the_types_that_the_function_declares() -> None:
    assert await function_tool(pay).call({"order": {"id": "a", "total": 9.5}}, context()) == 9.5


@pytest.mark.parametrize("wrong", [{"left": "two", "right": 3}, {"left": 2}, {"middle": 1}])
async def test_invalid_arguments_are_reported_with_their_location(wrong: Json) -> None:
    with pytest.raises(ToolFault) as fault:
        await function_tool(add).call(wrong, context())

    assert fault.value.code == "validation_error"


def test_an_argument_without_a_type_is_refused_by_name() -> None:
    def vague(thing):  # type: ignore[no-untyped-def]  # that is what is tested
        return thing

    with pytest.raises(TypeError, match="vague: thing needs a type hint"):
        function_tool(vague)


def test_arguments_without_names_are_refused() -> None:
    def many(*things: int) -> int:
        return len(things)

    with pytest.raises(TypeError, match="declare every argument"):
        function_tool(many)


def test_a_tenant_s_own_tool_takes_precedence_over_a_shared_one() -> None:
    box = Toolbox([function_tool(add, name="math:add")])
    own = function_tool(add, name="math:add", description="Acme's own.")
    box.add(own, tenant="acme")

    assert box.find("acme", "math:add") is own
    assert box.find("globex", "math:add") is not own
    assert box.find("globex", "math:subtract") is None
    assert list(box.names("acme")) == ["math:add"]


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="math:add"):
        Toolbox([function_tool(add, name="math:add"), function_tool(add, name="math:add")])
