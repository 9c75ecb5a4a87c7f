"""The wrapper itself: names, values, and a missing framework."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import dataclass

import msgspec
import pydantic_ai
import pytest
from langgraph.graph import MessagesState, StateGraph
from pydantic import BaseModel
from pydantic_ai.models.test import TestModel

from tests.adapters.graph_desk import graph_desk
from tests.adapters.pydantic_desk import pydantic_desk
from wopr import Workflow, WorkflowError
from wopr.adapters.langgraph import human_requests_of
from wopr.adapters.pydantic_ai import on_record
from wopr.adapters.session import to_plain_json
from wopr.adapters.wrapper import agent_name
from wopr.api.apps import collect
from wopr.engine.interrupts import answer_effects
from wopr.protocol.documents import Json


@pytest.mark.parametrize(
    ("adapter", "module", "extra"),
    [
        ("langgraph", "langgraph", "langgraph"),
        ("openai_agents", "agents", "openai-agents"),
        ("pydantic_ai", "pydantic_ai", "models"),
    ],
)
def test_a_missing_framework_names_the_extra_to_install(
    adapter: str, module: str, extra: str
) -> None:
    code = f"import sys; sys.modules['{module}'] = None; import wopr.adapters.{adapter}"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    [*_, last] = done.stderr.splitlines()
    assert last.startswith("ModuleNotFoundError: the adapter for ")
    assert f'pip install "wopr[{extra}]"' in last


@pytest.mark.parametrize(
    ("adapter", "wanted"),
    [
        ("langgraph", "needs a compiled graph, such as builder.compile()"),
        ("openai_agents", "needs an Agent of the OpenAI Agents SDK"),
        ("pydantic_ai", "needs an Agent of pydantic-ai"),
    ],
)
def test_an_object_of_another_framework_is_refused_with_the_expected_type(
    adapter: str, wanted: str
) -> None:
    wrap = importlib.import_module(f"wopr.adapters.{adapter}").on_record

    with pytest.raises(WorkflowError) as refused:
        wrap("acme.desk.odd", StateGraph(MessagesState))

    assert str(refused.value).startswith(f"on_record acme.desk.odd: {wanted}, not <langgraph")


def test_a_wrapped_agent_adds_its_node_type_and_its_manifest_to_an_app() -> None:
    flow = Workflow("desk")
    flow.add("answer", pydantic_desk(), prompt="Hello")

    found = collect([flow])

    [manifest] = found.agents
    assert [each.type_id for each in found.node_types] == ["vendor.acme.desk.pydantic"]
    assert manifest["agentId"] == "local.acme.desk.pydantic"
    assert manifest["toolAllowlist"] == ["look_up", "break_down", "be_slow", "refund"]


def test_two_wrapped_agents_of_one_name_are_refused() -> None:
    flow = Workflow("desk")
    flow.add("first", graph_desk(), prompt="Hello")
    other = Workflow("other")
    other.add("second", graph_desk(), prompt="Hello")

    with pytest.raises(WorkflowError, match="two declarations have this name"):
        collect([flow, other])


def test_an_invalid_agent_name_is_refused_at_once() -> None:
    agent = pydantic_ai.Agent(TestModel())

    with pytest.raises(WorkflowError, match="agentId"):
        on_record("desk", agent)


def test_an_invalid_budget_is_refused_before_anything_runs() -> None:
    flow = Workflow("desk")
    flow.add("answer", graph_desk(), config={"budget": {"maxTokens": 0}}, prompt="Hello")

    with pytest.raises(WorkflowError, match="maxTokens"):
        flow.build()


@dataclass
class Parcel:
    weight: float


class Letter(msgspec.Struct):
    pages: int


class Card(BaseModel):
    words: tuple[str, ...]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({1: {"a"}}, {"1": ["a"]}),
        (Parcel(5.0), {"weight": 5.0}),
        (Letter(2), {"pages": 2}),
        (Card(words=("hi",)), {"words": ["hi"]}),
        (ValueError("no"), "no"),
        (Parcel, str(Parcel)),
    ],
)
def test_values_of_all_kinds_are_converted_to_json(value: object, expected: Json) -> None:
    assert to_plain_json(value) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Billing Agent", "local.a.b.billing-agent"), ("数", "local.a.b.agent")],
)
def test_an_agent_inside_is_named_after_the_wrapped_one(name: str, expected: str) -> None:
    assert agent_name("local.a.b", name) == expected


def test_the_inbox_describes_the_effect_of_each_answer_to_a_wrapped_agent() -> None:
    [ask] = human_requests_of({"action_requests": [{"name": "pay", "args": {}}]})

    told = answer_effects("approval", {"artifactType": ask.artifact_type, "actions": ask.actions})

    assert told["reject"] == "The tool is not called, and the agent gets that result."
