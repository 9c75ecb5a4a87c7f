"""Expanding JSON Schemas that do not come from registration: models, MCP and the console.

Schemas that registration refuses stand for definitions of earlier versions: the limits are raised
for them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import yaml

from tests.attack.attacked_host import MALLORY, HonestClient, attacked
from tests.attack.hostile_mcp_server import TOOLS
from tests.attack.test_expanding_schemas import GROWTH_MIB, UNLIMITED, interrupt
from tests.console.inbox import answered
from tests.models.anthropic_server import AnthropicServer
from tests.models.conftest import variables
from tests.models.google_server import GoogleServer
from tests.models.model_server import ModelServer, serving
from tests.models.openai_server import OpenAiServer
from tests.models.turns import Say
from tests.support.console import Markup, Person
from tests.support.definitions import node, workflow
from tests.support.mcp_clients import connected, text_of
from tests.support.schemas import expanding_schema
from wopr.protocol.documents import JsonObject

ROOT = Path(__file__).parents[2]
OBJECT_BOMB = {"type": "object"} | expanding_schema(leaf={"type": "object"})


@pytest.mark.parametrize(
    ("server", "type_id"),
    [
        (OpenAiServer, "openwop.llm.structured"),
        (AnthropicServer, "openwop.llm.agent"),
        (GoogleServer, "openwop.llm.structured"),
    ],
)
def test_a_model_answer_checked_against_a_stored_expanding_schema_fails_the_node(
    tmp_path: Path, server: type[ModelServer], type_id: str
) -> None:
    with serving(server()) as models:
        model = models.script([Say("{}"), Say("{}")])
        config: JsonObject = {
            "model": f"{models.provider}:{model}",
            "prompt": "Do your task.",
            "schema": OBJECT_BOMB,
        }
        settings = variables(models) | UNLIMITED
        with attacked(tmp_path, **settings) as host, HonestClient(host) as honest:
            with host.client() as mallory:
                name = mallory.register(workflow([node("ask", type_id, config=config)]))
                ended = mallory.run(name)
            honest.wait_for_round()

    assert ended["status"] == "failed"
    assert ended["error"]["code"] == "schema_check_failed"
    assert "could not be checked: " in ended["error"]["message"]
    assert models.request_count(model) == 1
    assert honest.growth_mib < GROWTH_MIB


def test_hostile_tool_schemas_of_an_mcp_server_do_not_stop_the_host(tmp_path: Path) -> None:
    file = tmp_path / "servers.yaml"
    declared: JsonObject = {
        "name": "hostile",
        "command": [sys.executable, "-m", "tests.attack.hostile_mcp_server"],
        "env": {"PYTHONPATH": str(ROOT)},
    }
    file.write_text(yaml.safe_dump({"servers": [declared]}))

    with (
        attacked(tmp_path / "host", WOPR_MCP_SERVERS=str(file)) as host,
        HonestClient(host) as honest,
    ):
        with host.client() as mallory:
            ends = {tool: mallory.run(mallory.register(calls(tool))) for tool in TOOLS}
        honest.wait_for_round()

    assert ends["plain"]["status"] == "completed"
    codes = {tool: ended["error"]["code"] for tool, ended in ends.items() if tool != "plain"}
    assert codes == {
        "input": "tool_unavailable",
        "output": "tool_unavailable",
        "pattern": "tool_error",
        "liar": "tool_error",
    }
    assert "at most 20000 are allowed" in host.log()
    assert honest.growth_mib < GROWTH_MIB


def calls(tool: str) -> JsonObject:
    config = {"server": "hostile", "tool": tool}
    return workflow([node("call", "openwop.mcp.call", config=config)])


def test_a_tool_call_for_a_workflow_with_a_stored_expanding_schema_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    with attacked(tmp_path, **UNLIMITED) as host, HonestClient(host) as honest:
        with host.client() as mallory:
            starts = mallory.register(workflow([node("a")], configurableSchema=expanding_schema()))
            asks = mallory.register(interrupt(OBJECT_BOMB | {"properties": {"text": TEXT}}))
        started, asked = anyio.run(call_tools, host.url, starts, asks)
        honest.wait_for_round()

    assert started.is_error
    assert "could not be checked: " in text_of(started)
    assert "waits for a person" in text_of(asked)


TEXT = {"type": "string"}


async def call_tools(url: str, *names: str) -> list[Any]:
    async with connected(url, MALLORY) as client:
        await client.list_tools()
        return [await client.call_tool(name, {}) for name in names]


def test_console_forms_of_stored_expanding_schemas_are_shown_and_their_answers_refused(
    tmp_path: Path,
) -> None:
    schema = OBJECT_BOMB | {"properties": {"text": TEXT}}
    with attacked(tmp_path, **UNLIMITED) as host, HonestClient(host) as honest:
        with host.client() as mallory:
            starts = mallory.register(workflow([node("a")], configurableSchema=schema))
            runs = [
                mallory.create(mallory.register(interrupt(each)))
                for each in (schema, expanding_schema())
            ]
            for run_id in runs:
                mallory.events_until(run_id, "interrupt.requested")
        with Person(host.url) as person:
            person.sign_in(MALLORY)
            form = person.get(f"/workflows/{starts}/start")
            refused = [person.post(f"/workflows/{starts}/start", **{"configurable.text": "x"})]
            waits = [person.get(f"/inbox/{run_id}/ask") for run_id in runs]
            refused.append(answered(person, runs[0], "ask", answer="value", **{"value.text": "x"}))
            refused.append(answered(person, runs[1], "ask", answer="value", value="{}"))
        honest.wait_for_round()

    assert {form.status_code, *(page.status_code for page in waits)} == {200}
    assert all("could not be checked: " in told(page) for page in refused)
    assert honest.growth_mib < GROWTH_MIB


def told(page: httpx.Response) -> str:
    assert page.status_code in {200, 400}, page.status_code
    return Markup(page.text).text
