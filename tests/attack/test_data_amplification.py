"""A workflow that doubles its data must not fill memory and disk."""

from __future__ import annotations

from pathlib import Path

from tests.attack.attacked_host import MIB, HonestClient, attacked
from tests.support.definitions import fresh, from_variable, node, variable, workflow


def test_a_workflow_that_doubles_a_variable_fails_with_the_reason(tmp_path: Path) -> None:
    config = {"name": "v", "expression": "variables.v + variables.v"}
    nodes = [node(f"n{n}", "core.setVariable", config=config) for n in range(18)]
    start = variable("v", defaultValue="x" * 1024)
    definition = workflow(nodes, id=fresh("double"), variables=[start])

    with attacked(tmp_path) as host, host.client() as mallory:
        mallory.register(definition)

        with HonestClient(host) as honest:
            found = [mallory.finished(mallory.create(definition["id"])) for _ in range(2)]
            honest.wait_for_round()

        assert {run["error"]["code"] for run in found} == {"value_too_large"}
        assert len(mallory.get(f"/v1/runs/{found[0]['runId']}").content) < 2 * MIB
        assert host.db.stat().st_size < 2 * 20 * MIB
        assert honest.growth_mib < 300
        host.kill_and_recover()


def test_a_large_value_passed_through_many_nodes_does_not_delay_other_clients(
    tmp_path: Path,
) -> None:
    passed = {"v": from_variable("v")}
    nodes = [node(f"n{n}", "core.identity", inputs=passed) for n in range(20)]
    definition = workflow(nodes, id=fresh("pass"), variables=[variable("v", "array")])
    inputs = {"v": [{"a": 1, "b": 2, "c": 3}] * 190_000}

    with attacked(tmp_path) as host, host.client() as mallory:
        mallory.register(definition)

        with HonestClient(host) as honest:
            found = mallory.finished(mallory.create(definition["id"], inputs))
            exports = [mallory.http.get("/v1/export/runs") for _ in range(3)]
            honest.wait_for_round()

        assert found["status"] == "completed", found
        assert [len(export.content) < 4 * MIB for export in exports] == [True] * 3
        assert honest.growth_mib < 600
        host.kill_and_recover()
