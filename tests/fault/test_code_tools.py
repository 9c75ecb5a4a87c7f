"""Tools of an app are code: an agent runs where they exist, and waits elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.fault.cluster import cluster
from tests.fault.test_code_versions import waits, with_app
from tests.support.client import Wire
from tests.support.fragile_host import FragileHost
from tests.support.host import ACME
from tests.support.postgres.databases import Databases

pytestmark = pytest.mark.timeout(300)

RUNS = 8
_DESK = """
from wopr import Agent, Workflow, tool
from wopr.testing import call, say, scripted


def answer(request):
    has_tool = any(spec.name == "find" for spec in request.tools)
    has_result = any(message.role == "tool" for message in request.messages)
    return call("find", order="A-17") if has_tool and not has_result else say("It is on its way.")


models = scripted(answer)
"""
_TOOL = """
@tool(name="{name}")
async def find(order: str) -> str:
    "Find an order."
    return order


clerk = Agent("acme.desk.clerk", model="openai:small", tools=[find])
desk = Workflow("desk")
desk.agent("reply", clerk, prompt="Where is A-17?")
"""


def write_desk(folder: Path, tool: str = "") -> Path:
    """Write an app with models alone, or also with an agent that has a tool of this name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "desk.py"
    path.write_text(_DESK + (_TOOL.format(name=tool) if tool else ""))
    return path


def tools_called(wire: Wire, run_id: str) -> list[str]:
    log = wire.log(run_id)
    return [event["payload"]["toolName"] for event in log if event["type"] == "agent.toolCalled"]


@pytest.mark.parametrize("tool", ["local:find", "acme.shop:find"])
def test_an_agent_waits_for_its_tool_and_works_when_it_is_available(
    tmp_path: Path, new_database: Callable[[], Database], tool: str
) -> None:
    whole, bare = write_desk(tmp_path / "whole", tool), write_desk(tmp_path / "bare")
    with new_database() as variables:
        host = FragileHost(tmp_path / "host", variables=variables)
        with_app(host, whole)

        wire = with_app(host, bare)
        run_id = wire.create("desk")
        needed = {"nodeId": "reply", "typeId": "openwop.llm.agent", "tools": [tool]}
        assert waits(wire, run_id) == [needed]
        shown = host.command("runs", "show", run_id, "--url", host.url, "--api-key", ACME)
        assert f"no process can run reply (openwop.llm.agent, tool {tool})" in shown
        assert [each["tools"] for each in wire.document("/v1/processes")["processes"]] == [[]]

        wire = with_app(host, whole)
        assert wire.finished(run_id)["status"] == "completed"
        assert tools_called(wire, run_id) == [tool]
        assert [each["tools"] for each in wire.document("/v1/processes")["processes"]] == [[tool]]
        host.check()


def test_a_replay_waits_for_the_tools_of_its_agents(
    tmp_path: Path, new_database: Callable[[], Database]
) -> None:
    whole, bare = write_desk(tmp_path / "whole", "local:find"), write_desk(tmp_path / "bare")
    with new_database() as variables:
        host = FragileHost(tmp_path / "host", variables=variables)
        run_id = with_app(host, whole).run("desk")["runId"]

        wire = with_app(host, bare)
        replay_id = wire.post(f"/v1/runs/{run_id}:fork", {"mode": "replay"}).json()["runId"]
        assert [each["tools"] for each in waits(wire, replay_id)] == [["local:find"]]

        wire = with_app(host, whole)
        assert wire.finished(replay_id)["status"] == "completed"
        assert "replay.diverged" not in [event["type"] for event in wire.log(replay_id)]
        host.stop()


def test_a_process_without_a_tool_leaves_the_run_to_one_that_has_it(
    tmp_path: Path, databases: Databases
) -> None:
    whole, bare = write_desk(tmp_path / "whole", "local:find"), write_desk(tmp_path / "bare")
    with databases.lent() as url, cluster(url, tmp_path / "cluster", apis=0, workers=0) as ours:
        able = ours.worker(WOPR_APP=str(whole))
        api = ours.api(WOPR_APP=str(bare))
        runs = [api.wire.create("desk") for _ in range(RUNS)]

        ended = [api.wire.finished(run_id) for run_id in runs]

        assert [run["status"] for run in ended] == ["completed"] * RUNS
        assert [tools_called(api.wire, run_id) for run_id in runs] == [["local:find"]] * RUNS
        able.end()
        last = api.wire.create("desk")
        assert [each["tools"] for each in waits(api.wire, last)] == [["local:find"]]
        ours.worker(WOPR_APP=str(whole))
        assert api.wire.finished(last)["status"] == "completed"
        ours.check()
