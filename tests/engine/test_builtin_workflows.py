from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import anyio
import msgspec
import pytest

from tests.protocol.conftest import OFFICIAL, Official
from wopr.host import definitions
from wopr.host.assembly import running_host
from wopr.host.definitions import conformance_fixtures, hello_workflow
from wopr.nodes.builtin import builtin_registry
from wopr.process.settings import Settings
from wopr.protocol.documents import Json, JsonObject, to_millis
from wopr.protocol.events import RunEvent
from wopr.protocol.runs import CreateRun, Owner, RunAccepted
from wopr.protocol.workflow import WorkflowDefinition
from wopr.runs.definitions.checks import check_definition
from wopr.runs.requests import NewRun

FIXTURES = {fixture["id"]: fixture for fixture in conformance_fixtures()}
SHIPPED = [*FIXTURES.values(), hello_workflow()]
# Text for people, which no scenario compares.
FREE_TEXT = {"name", "description", "title", "message", "summary", "position", "notes"}
EXECUTABLE = ("id", "version", "nodes", "edges", "triggers", "variables")
OPTIONAL = ("channels", "configurableSchema")
SETTINGS = ("timeout", "maxRetries", "maxLoopbackIterations")

# Fixtures that are newer than the published files of this checkout.
YOUNGER = {
    "conformance-approval-edit-accept",
    "conformance-approval-refine",
    "conformance-replay-side-effect",
}

every_fixture = pytest.mark.parametrize("fixture_id", sorted(FIXTURES))
every_workflow = pytest.mark.parametrize("document", SHIPPED, ids=lambda shipped: shipped["id"])


@pytest.fixture(scope="module")
def official() -> Official:
    if not (OFFICIAL / "fixtures").is_dir():
        pytest.skip("the published OpenWOP schemas and fixtures are not beside this checkout")
    return Official(OFFICIAL)


@pytest.fixture(scope="module")
def published(official: Official) -> dict[str, JsonObject]:
    return {workflow["id"]: workflow for workflow in official.workflows()}


def executable(workflow: JsonObject) -> JsonObject:
    """Return the parts of a workflow that affect its execution."""
    parts: JsonObject = {name: _without_text(workflow[name]) for name in EXECUTABLE}
    parts |= {name: _without_text(workflow.get(name)) for name in OPTIONAL}
    parts["settings"] = {name: workflow["settings"].get(name) for name in SETTINGS}
    needs = workflow["metadata"].items()
    return parts | {name: value for name, value in needs if name.startswith("requires")}


def _without_text(value: Json) -> Json:
    if isinstance(value, list):
        return [_without_text(item) for item in value]
    if isinstance(value, dict):
        # A variable's name is not free text: it has a type beside it.
        kept = FREE_TEXT - ({"name"} if "type" in value else set())
        return {key: _without_text(item) for key, item in value.items() if key not in kept}
    return value


@every_workflow
def test_a_shipped_workflow_decodes(document: JsonObject) -> None:
    definition = msgspec.convert(document, WorkflowDefinition)

    assert msgspec.to_builtins(definition)["id"] == document["id"]


def test_every_fixture_is_in_the_file_of_its_name() -> None:
    folder = files("wopr") / "workflows" / "conformance"

    names = sorted(file.name for file in folder.iterdir())

    assert names == sorted(f"{fixture_id}.json" for fixture_id in FIXTURES)
    assert len(FIXTURES) == 66


@every_fixture
def test_a_fixture_is_marked_as_fixture(fixture_id: str) -> None:
    fixture = FIXTURES[fixture_id]

    assert fixture["version"] == "1.0"
    assert fixture["metadata"]["tags"][0] == "conformance"


@every_fixture
def test_a_fixture_with_known_types_can_be_registered(fixture_id: str) -> None:
    registry = builtin_registry(with_conformance=True)
    fixture = FIXTURES[fixture_id]
    unknown = {n["typeId"] for n in fixture["nodes"] if registry.get(n["typeId"]) is None}
    if unknown:
        pytest.skip(f"this host has no {', '.join(sorted(unknown))}")

    assert check_definition(fixture, registry).id == fixture_id


@every_workflow
def test_a_shipped_workflow_is_valid_by_the_published_schema(
    document: JsonObject, official: Official
) -> None:
    assert official.fault("workflow-definition.schema.json", document) is None


@pytest.mark.parametrize("fixture_id", sorted(FIXTURES.keys() - YOUNGER))
def test_a_fixture_is_equivalent_to_the_published_one(
    fixture_id: str, published: dict[str, JsonObject]
) -> None:
    assert executable(FIXTURES[fixture_id]) == executable(published[fixture_id])


# Hello


async def log_of_hello(data_dir: Path, inputs: JsonObject) -> list[RunEvent]:
    """Run hello on its own host to its end."""
    async with running_host(Settings(data_dir=data_dir)) as host:
        compiled = await host.library.newest("acme", "hello")
        request = CreateRun(workflow_id="hello", inputs=inputs)
        new = NewRun(request=request, compiled=compiled, owner=Owner(tenant="acme"))
        accepted = msgspec.json.decode(await host.commands.create(new), type=RunAccepted)
        with anyio.fail_after(20):
            pages = host.run_reader.follow("acme", accepted.run_id, 0, heartbeat=1)
            return [
                msgspec.json.decode(event.body, type=RunEvent)
                async for page in pages
                if isinstance(page, list)
                for event in page
            ]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("inputs", "message", "passed_over"),
    [
        ({"name": "Ada"}, "Hello, Ada!", "greet-everyone"),
        ({}, "Hello, world!", "greet-you"),
    ],
)
async def test_hello_greets_branches_waits_and_signs_the_guest_book_twice(
    tmp_path: Path, inputs: JsonObject, message: str, passed_over: str
) -> None:
    log = await log_of_hello(tmp_path, inputs)

    assert log[-1].type == "run.completed"
    assert log[-1].payload["outputs"] == {"message": message}
    assert [event.node_id for event in log if event.type == "node.skipped"] == [passed_over]
    assert [event.type for event in log].count("channel.written") == 2
    waited = [to_millis(event.timestamp) for event in log if event.node_id == "breathe"]
    assert waited[-1] - waited[0] >= 500


# Upgrades


async def fixtures_of(data_dir: Path) -> list[str]:
    """Start a host with conformance workflows and return the fixtures that it advertises."""
    async with running_host(Settings(data_dir=data_dir, conformance=True)) as host:
        advertised: list[str] = msgspec.json.decode(host.discovery)["fixtures"]
        return advertised


@pytest.mark.anyio
async def test_fixtures_with_earlier_texts_in_the_database_are_advertised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = [fixture | {"description": "An earlier text."} for fixture in FIXTURES.values()]
    with monkeypatch.context() as patch:
        patch.setattr(definitions, "conformance_fixtures", lambda: earlier)
        before = await fixtures_of(tmp_path)

    assert await fixtures_of(tmp_path) == before
    assert "conformance-noop" in before


@pytest.mark.anyio
async def test_a_fixture_with_other_nodes_in_the_database_is_not_advertised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = FIXTURES["conformance-noop"] | {"nodes": FIXTURES["conformance-failure"]["nodes"]}
    other |= {"edges": FIXTURES["conformance-failure"]["edges"]}
    with monkeypatch.context() as patch:
        patch.setattr(definitions, "conformance_fixtures", lambda: [other])
        await fixtures_of(tmp_path)

    advertised = await fixtures_of(tmp_path)

    assert "conformance-noop" not in advertised
    assert "conformance-failure" in advertised
