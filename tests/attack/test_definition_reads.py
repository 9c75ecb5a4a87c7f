"""Lookups among many large definitions read their ids only."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.attack.attacked_host import MALLORY_VIEWER, AttackedHost, HonestClient, attacked
from tests.support.client import Wire
from tests.support.definitions import node, workflow

DEFINITIONS = 60
AT_ONCE = 20
MAX_GROWTH_MIB = 150


def _register_large(mallory: Wire) -> None:
    """Register many workflows of about a megabyte."""
    for _ in range(DEFINITIONS):
        config = {"name": "v", "value": "x" * 1_000_000}
        mallory.register(workflow([node("a", "core.setVariable", config=config)]))


def _status(host: AttackedHost, number: int) -> int:
    with host.client(MALLORY_VIEWER) as viewer:
        return viewer.get(f"/v1/workflows/unknown-{number}", timeout=60).status_code


def test_requests_for_unknown_workflows_read_no_definitions(tmp_path: Path) -> None:
    with attacked(tmp_path) as host:
        with host.client() as mallory:
            _register_large(mallory)
        with HonestClient(host) as honest, ThreadPoolExecutor(AT_ONCE) as pool:
            statuses = set(pool.map(partial(_status, host), range(2 * AT_ONCE)))
            honest.wait_for_round()

    assert statuses == {404}
    assert honest.growth_mib < MAX_GROWTH_MIB


def test_a_definition_with_many_unknown_children_is_refused_at_once(tmp_path: Path) -> None:
    decision = {"kind": "next-worker", "nextWorkerIds": [f"unknown{n}" for n in range(2000)]}
    rules = [{"when": "true", "decision": decision}]
    supervisor = node("s", "core.orchestrator.supervisor", config={"rules": rules})
    with attacked(tmp_path) as host, host.client() as mallory:
        _register_large(mallory)
        with HonestClient(host) as honest:
            definition = workflow([supervisor, node("d", "core.dispatch")])
            answer = mallory.post("/v1/workflows:validate", definition)
            honest.wait_for_round()

    assert "there is no workflow 'unknown99'" in answer.text
    assert "only the first 100 are listed" in answer.text
    assert honest.growth_mib < MAX_GROWTH_MIB
