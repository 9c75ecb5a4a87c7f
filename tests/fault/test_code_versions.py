"""A host that restarts with other code skips what it cannot run, and continues when it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from tests.conftest import Database
from tests.fault.apps import write_app
from tests.support.client import Wire
from tests.support.console import Person
from tests.support.definitions import edge, node
from tests.support.eventually import eventually
from tests.support.fragile_host import FragileHost
from tests.support.host import ACME, DEVELOPER, GLOBEX
from tests.support.in_process import bench, numbered
from wopr.engine.outcome import Completed
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.timeout(300)

ORDER = "order"


def with_app(host: FragileHost, app: Path | None, *options: str) -> Wire:
    """Start the host on its data with this app, or without one."""
    chosen = () if app is None else ("--app", str(app))
    host.options = (*chosen, *options)
    host.hang_up()
    if host.process is not None:
        host.stop()
    host.start()
    return host.wire


async def register_order(host: FragileHost) -> None:
    """Register a workflow whose second node exists only in the newer app."""

    async def never(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
        raise AssertionError("nothing is started here")

    types = [
        NodeType(type_id=f"shop.{name}", execute=never, is_async=True)
        for name in ("reserve", "ship")
    ]
    url = host.variables.get("WOPR_DB", "")
    host.data_dir.mkdir(parents=True, exist_ok=True)
    async with bench(host.data_dir, *types, new_id=numbered(), url=url) as registering:
        nodes = [node("reserve", "shop.reserve"), node("ship", "shop.ship")]
        await registering.register(nodes, id=ORDER, edges=[edge("reserve", "ship")])


def waits(wire: Wire, run_id: str) -> list[JsonObject]:
    """Return the nodes whose code a run waits for, once it waits."""
    eventually(lambda: "waitingForCode" in wire.snapshot(run_id))
    found: list[JsonObject] = wire.snapshot(run_id)["waitingForCode"]
    return found


@pytest.fixture(scope="module")
def apps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("apps")


@pytest.fixture(scope="module")
def old(apps: Path) -> Path:
    return write_app(apps, "reserve")


@pytest.fixture(scope="module")
def new(apps: Path) -> Path:
    return write_app(apps, "reserve", "ship")


@contextmanager
def ordering(folder: Path, new_database: Callable[[], Database]) -> Iterator[FragileHost]:
    """Return a host with the workflow, not yet started; its database is checked at the end."""
    with new_database() as variables:
        host = FragileHost(folder, variables=variables)
        anyio.run(register_order, host)
        yield host
        host.check()


@pytest.fixture
def host(tmp_path: Path, new_database: Callable[[], Database]) -> Iterator[FragileHost]:
    with ordering(tmp_path / "host", new_database) as host:
        yield host


@pytest.fixture(scope="module")
def waiting(
    tmp_path_factory: pytest.TempPathFactory, new_database: Callable[[], Database], old: Path
) -> Iterator[tuple[FragileHost, str]]:
    """Return a host with a run that waits for code."""
    with ordering(tmp_path_factory.mktemp("waiting"), new_database) as host:
        wire = with_app(host, old, "--code-version", "v1")
        run_id = wire.create(ORDER)
        waits(wire, run_id)
        yield host, run_id


def test_a_run_waits_for_the_code_of_its_next_node_and_continues_when_it_is_available(
    host: FragileHost, old: Path, new: Path
) -> None:
    wire = with_app(host, old)
    run_id = wire.create(ORDER)

    assert waits(wire, run_id) == [{"nodeId": "ship", "typeId": "shop.ship"}]
    assert wire.snapshot(run_id)["status"] == "running"
    assert "no process can run a node" in host.log()

    wire = with_app(host, new, "--code-version", "2026.11-b")
    snapshot = wire.finished(run_id)
    assert snapshot["status"] == "completed"
    assert "waitingForCode" not in snapshot
    versions = {name: view["codeVersion"] for name, view in snapshot["nodeStates"].items()}
    assert versions["reserve"].startswith("app-")
    assert versions["ship"] == "2026.11-b"
    stamped = [event for event in wire.log(run_id) if event.get("codeVersion") == "2026.11-b"]
    assert [event["type"] for event in stamped] == ["node.started", "node.completed"]


def test_a_running_node_without_code_after_a_restart_is_called_when_the_code_is_back(
    host: FragileHost, apps: Path
) -> None:
    slow = write_app(apps / "slow", "reserve", "ship", seconds=60)
    quick = write_app(apps / "quick", "reserve", "ship", seconds=0)
    wire = with_app(host, slow)
    run_id = wire.create(ORDER)
    wire.events_until(run_id, "node.started")

    host.kill()
    wire = with_app(host, None)
    assert waits(wire, run_id) == [{"nodeId": "reserve", "typeId": "shop.reserve"}]

    assert with_app(host, quick).finished(run_id)["status"] == "completed"


def test_an_operator_sees_the_versions_of_live_processes_and_the_waiting_runs(
    waiting: tuple[FragileHost, str],
) -> None:
    host, run_id = waiting

    found = host.wire.document("/v1/processes")

    [process] = found["processes"]
    assert (process["kind"], process["codeVersion"], process["executes"]) == ("api", "v1", True)
    assert "shop.reserve" in process["nodeTypes"]
    assert "shop.ship" not in process["nodeTypes"]
    assert found["codeVersions"] == [{"codeVersion": "v1", "processes": 1}]
    assert [run["runId"] for run in found["waitingRuns"]] == [run_id]


def test_runs_that_wait_for_code_can_be_listed_and_are_counted(
    waiting: tuple[FragileHost, str],
) -> None:
    host, run_id = waiting

    [listed] = host.wire.document("/v1/runs?waitingForCode=true")["items"]

    assert listed["runId"] == run_id
    assert listed["waitingForCode"] == [{"nodeId": "ship", "typeId": "shop.ship"}]
    assert "wopr_runs_waiting_for_code 1.0" in host.wire.metrics()


def test_another_tenant_sees_no_waiting_runs_and_a_developer_sees_no_processes(
    waiting: tuple[FragileHost, str],
) -> None:
    host, _ = waiting

    with Wire(host.url, GLOBEX) as other, Wire(host.url, DEVELOPER) as developer:
        assert other.document("/v1/processes")["waitingRuns"] == []
        assert other.document("/v1/runs?waitingForCode=true")["items"] == []
        assert developer.get("/v1/processes").status_code == 403


def test_the_command_line_names_the_code_versions_and_the_nodes_that_wait(
    waiting: tuple[FragileHost, str],
) -> None:
    host, run_id = waiting

    told = host.command("processes", "--url", host.url, "--api-key", ACME)
    shown = host.command("runs", "show", run_id, "--url", host.url, "--api-key", ACME)

    assert "v1" in told
    assert "ship (shop.ship)" in told
    assert "no process can run ship (shop.ship)" in shown


def test_the_page_of_a_run_names_the_node_that_no_process_can_run(
    waiting: tuple[FragileHost, str],
) -> None:
    host, run_id = waiting

    with Person(host.url) as person:
        assert person.sign_in(ACME).status_code == 303
        page = person.page(f"/runs/{run_id}")
        processes = person.page("/settings")

    assert "No process can run ship (shop.ship)." in page.text
    assert f"/runs/{run_id}/nodes/ship" in page.links
    assert "/settings#processes" in page.links
    assert processes.all("section", id="processes")
    assert f"/runs/{run_id}" in processes.links


def test_an_invalid_filter_is_refused(waiting: tuple[FragileHost, str]) -> None:
    host, _ = waiting

    refused = host.wire.get("/v1/runs?waitingForCode=yes")

    assert refused.status_code == 400
    assert refused.json()["details"]["field"] == "waitingForCode"


def test_a_run_that_waits_for_code_can_be_cancelled(waiting: tuple[FragileHost, str]) -> None:
    host, _ = waiting
    run_id = host.wire.create(ORDER)
    waits(host.wire, run_id)

    host.wire.post(f"/v1/runs/{run_id}/cancel", {})

    assert host.wire.finished(run_id)["status"] == "cancelled"
    listed = host.wire.document("/v1/runs?waitingForCode=true")["items"]
    assert run_id not in [run["runId"] for run in listed]


def test_a_preview_counts_a_node_of_unknown_code_among_the_effects(
    host: FragileHost, old: Path, new: Path
) -> None:
    wire = with_app(host, new)
    run_id = wire.create(ORDER)
    wire.finished(run_id)

    for app in (new, old, None):
        wire = with_app(host, app)
        body = {"mode": "branch", "fromSeq": 0}
        response = wire.post(f"/v1/runs/{run_id}:fork", body, params={"dryRun": "true"})

        assert response.json()["effectsAgain"] == ["reserve", "ship"], app
