from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.desk import desk, shout
from wopr import Agent, Workflow, WorkflowError, tool
from wopr.api.apps import AppError, collect, load_app
from wopr.host.contributions import contributed_host
from wopr.nodes.registry import node
from wopr.process.settings import Settings
from wopr.protocol.errors import Conflict
from wopr.store.port import SHARED
from wopr.testing import memory_host, scripted

APP = """\
from neighbour import NAME
from wopr import Workflow

flow = Workflow(NAME)
flow.end(text="hello")
both = [flow]
"""


@tool
def look_up(word: str) -> str:
    """Look up a word."""
    return word


def test_an_app_includes_everything_that_its_workflows_use() -> None:
    child = Workflow("child")
    child.add("loud", shout, text="hi")
    flow = Workflow("parent")
    flow.agent("ask", Agent("acme.desk.clerk", model="a:b", tools=[look_up]), prompt="Hello")
    flow.sub("call", child)
    models = scripted("hello")

    found = collect([flow, models])

    assert [workflow["id"] for workflow in found.workflows] == ["parent", "child"]
    assert [agent["agentId"] for agent in found.agents] == ["local.acme.desk.clerk"]
    assert [tool.name for tool in found.tools] == ["local:look_up"]
    assert [node_type.type_id for node_type in found.node_types] == ["acme.shout"]
    assert found.models is models


def test_a_repeated_definition_counts_once_and_two_of_one_name_are_refused() -> None:
    flow = desk()

    assert len(collect([flow, flow, shout, shout]).workflows) == 1
    with pytest.raises(WorkflowError, match="workflow desk: two declarations have this name"):
        collect([desk(), desk()])


@pytest.mark.anyio
async def test_an_object_that_declares_nothing_is_refused_by_a_host_in_memory() -> None:
    with pytest.raises(WorkflowError, match="'desk': this is not a workflow, agent, tool"):
        async with memory_host("desk"):
            pass


def test_a_file_of_an_app_that_declares_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("limit = 3\n")

    with pytest.raises(AppError, match=r"app\.py: 3: this is not a workflow, agent, tool"):
        load_app(f"{tmp_path / 'app.py'}:limit")


def test_an_app_can_import_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text('NAME = "near"\n')
    (tmp_path / "app.py").write_text(APP)

    every = load_app(str(tmp_path / "app.py"))
    named = load_app(f"{tmp_path / 'app.py'}:both")

    assert [workflow["id"] for workflow in every.workflows] == ["near"]
    assert named.workflows == every.workflows


def test_an_app_is_a_python_file(tmp_path: Path) -> None:
    file = tmp_path / "app.txt"
    file.write_text("")

    with pytest.raises(AppError, match=r"must end with \.py"):
        load_app(str(file))


@pytest.mark.anyio
async def test_a_host_registers_a_changed_app_as_a_new_version_and_an_unchanged_one_not_at_all(
    tmp_path: Path,
) -> None:
    changed = desk()
    changed.add("more", "core.noop")
    settings = Settings(data_dir=tmp_path)
    versions: list[str] = []

    for flow in (desk(), desk(), changed, desk()):
        async with contributed_host(settings, collect([flow])) as host:
            versions.append((await host.library.row(SHARED, "desk")).version)

    assert [version.partition("-")[0] for version in versions] == ["1", "1", "2", "3"]
    assert versions[0].partition("-")[2] == versions[3].partition("-")[2]


def test_a_node_type_of_an_app_cannot_replace_a_built_in_one() -> None:
    @node("core.noop")
    def noop(ctx: object, config: dict[str, str], inputs: dict[str, str]) -> dict[str, str]:
        """Pretend."""
        return {}

    with pytest.raises(
        WorkflowError,
        match=r"node type core\.noop: every host already has a node type with this id",
    ):
        collect([noop])


@pytest.mark.anyio
async def test_other_content_under_an_existing_version_is_refused_by_name(
    tmp_path: Path,
) -> None:
    settings = Settings(data_dir=tmp_path)
    first, second = (
        collect([Agent("acme.clerk", model="a:b", version="1.0.0", instructions=said)])
        for said in ("Be kind.", "Be brief.")
    )
    async with contributed_host(settings, first):
        pass

    with pytest.raises(Conflict, match=r"agent local\.acme\.clerk has other content under version"):
        async with contributed_host(settings, second):
            pass
