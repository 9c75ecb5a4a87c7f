from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest

from wopr import Agent, Workflow, WorkflowError, tool
from wopr.agents.manifests import check_manifest
from wopr.agents.tools.functions import FunctionTool
from wopr.api.tools import tool_in
from wopr.testing import call, hand_over, memory_host, say, scripted

MODEL = "openai:gpt-4o-mini"


@dataclass
class Place:
    city: str


@dataclass
class Answer:
    place: Place
    note: str = ""


@dataclass
class Chain:
    following: Chain | None = None


@tool
async def find(place: str, limit: int = 3) -> list[str]:
    """Find something at a place."""
    return [f"{place}-{limit}"]


def test_the_manifest_is_valid_for_the_host() -> None:
    agent = Agent("acme.desk.clerk", model=MODEL, tools=[find, "mcp:other"], threshold=0.8)

    manifest = check_manifest(agent.manifest())

    assert manifest.agent_id == "local.acme.desk.clerk"
    assert manifest.persona == "Clerk"
    assert manifest.tools == {"local:find", "mcp:other"}
    assert manifest.threshold == 0.8


def test_a_name_in_a_protocol_scope_stays_unchanged() -> None:
    assert Agent("vendor.acme.clerk", model=MODEL).id == "vendor.acme.clerk"


def test_an_agent_without_a_version_gets_one_from_its_content() -> None:
    one = Agent("acme.desk.clerk", model=MODEL, instructions="Be kind.")
    other = Agent("acme.desk.clerk", model=MODEL, instructions="Be brief.")
    own = Agent("acme.desk.clerk", model=MODEL, version="2.0.0")

    assert one.manifest()["version"] != other.manifest()["version"]
    assert own.manifest()["version"] == "2.0.0"


@pytest.mark.parametrize(
    ("name", "threshold", "fault"),
    [("Acme Desk", None, "agentId"), ("acme.desk", 1.5, "confidence.defaultThreshold")],
)
def test_an_invalid_agent_fails_where_it_is_defined(
    name: str, threshold: float | None, fault: str
) -> None:
    with pytest.raises(WorkflowError) as refused:
        Agent(name, model=MODEL, threshold=threshold)

    assert refused.value.faults[0].startswith(fault)


def test_the_type_of_an_answer_is_a_schema_that_can_be_nested() -> None:
    schema = Agent("acme.desk.clerk", model=MODEL, output=Answer).node_config()["schema"]

    assert schema["properties"]["place"]["properties"]["city"] == {"type": "string"}
    assert "$ref" not in str(schema)


def test_a_recursive_type_cannot_be_an_answer() -> None:
    with pytest.raises(WorkflowError, match="output: Chain contains itself"):
        Agent("acme.desk.clerk", model=MODEL, output=Chain)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"model": "gpt-4o"}, "expected provider:model, such as openai:gpt-4o"),
        ({"tools": "search"}, "tools must be a list, not 'search'"),
        ({"output": threading.Thread}, "output: Thread is not a JSON type: use a dataclass"),
    ],
)
def test_an_unusable_definition_of_an_agent_is_named(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(WorkflowError, match=r"agent acme\.desk\.clerk: ") as refused:
        Agent("acme.desk.clerk", **({"model": MODEL} | wrong))

    assert told in str(refused.value)


def test_a_handoff_by_name_goes_to_the_agent_of_that_name() -> None:
    billing = Agent("acme.desk.billing", model=MODEL)
    named = Agent("acme.desk.clerk", model=MODEL, handoffs={"acme.desk.billing": "money"})
    meant = Agent("acme.desk.clerk", model=MODEL, handoffs={billing: "money"})

    assert named.node_config()["handoffs"] == meant.node_config()["handoffs"]
    assert hand_over("acme.desk.billing", "money") == hand_over(billing, "money")


def test_a_tool_stays_a_function_and_has_a_schema() -> None:
    made = tool_in(find)

    assert isinstance(made, FunctionTool)
    assert made.parameters["required"] == ["place"]
    assert made.description == "Find something at a place."
    assert find.__name__ == "find"


def test_a_tool_can_have_a_name_and_required_scopes() -> None:
    @tool(name="acme:pay", required_scopes=("runs:create",))
    def pay(amount: float) -> bool:
        """Pay."""
        return amount > 0

    made = tool_in(pay)

    assert made is not None
    assert (made.name, made.required_scopes) == ("acme:pay", ("runs:create",))
    assert pay(1.0)


def test_a_prompt_of_the_author_is_config_and_one_of_the_run_is_an_input() -> None:
    flow = Workflow("prompts", inputs=Place)
    clerk = Agent("acme.desk.clerk", model=MODEL, options={"temperature": 0})

    own = flow.agent("own", clerk, prompt="Say hello.", city=flow.inputs.city)
    given = flow.agent("given", clerk, prompt=flow.inputs.city)

    assert own.wire.config == {"model": MODEL, "temperature": 0, "prompt": "Say hello."}
    assert list(own.wire.inputs) == ["city"]
    assert list(given.wire.inputs) == ["prompt"]
    assert [agent.id for agent in flow.agents] == [clerk.id]


@pytest.mark.anyio
async def test_an_agent_hands_off_and_the_other_answers() -> None:
    other = Agent("acme.desk.other", model="scripted:other")
    first = Agent("acme.desk.first", model="scripted:first", handoffs={other: "always"})
    flow = Workflow("hand-over", inputs=Place)
    ask = flow.agent("ask", first, prompt=flow.inputs.city)
    answer = flow.agent("answer", other, prompt=flow.inputs.city)
    ask.when("has(outputs.handoff)") >> answer
    models = scripted(first=[hand_over(other, "not mine")], other=["Paris it is."])

    async with memory_host(flow, models=models) as host:
        run = await host.start(flow, Place("Paris"))
        result = await run.result()
        types = [event.type for event in await run.log()]

    assert result["answer"]["text"] == "Paris it is."
    assert "agent.handoff" in types


@pytest.mark.anyio
async def test_a_call_with_wrong_arguments_is_reported_to_the_model() -> None:
    clerk = Agent("acme.desk.clerk", model=MODEL, tools=[find], output=Answer)
    flow = Workflow("tools", inputs=Place)
    flow.agent("look", clerk, prompt=flow.inputs.city)
    models = scripted(
        call(find, place=3), call(find, place="here"), say(Answer(Place("here"), "found"))
    )

    async with memory_host(flow, models=models) as host:
        run = await host.start(flow, Place("here"))
        result = await run.result()

    assert result["look"]["result"] == {"place": {"city": "here"}, "note": "found"}
    assert "here-3" in models.requests[2].messages[-1].content
