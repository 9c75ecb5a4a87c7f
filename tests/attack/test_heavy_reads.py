"""Reads of large runs take turns: a viewer must not stop the host or take its memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.attack.attacked import MALLORY_VIEWER, AttackedHost, HonestClient, attacked
from tests.wire.client import Wire
from tests.wire.definitions import node, variable, workflow

AT_ONCE = 6
MOST_GROWTH_MIB = 700


def _run(mallory: Wire, letter: str) -> str:
    """A run of 24 nodes that each put out 200 kB: a larger value would be stored once, apart."""
    payload = {"type": "variable", "variableName": "payload"}
    nodes = [
        node(f"echo{number}", "core.identity", inputs={"payload": payload}) for number in range(24)
    ]
    definition = workflow(nodes, variables=[variable("payload", "object", required=True)])
    inputs = {"payload": {"a": [{f"k{letter}": number} for number in range(15_000)]}}
    run_id = mallory.create(mallory.register(definition), inputs)
    mallory.finished(run_id)
    return run_id


def _status(host: AttackedHost, path: str) -> int:
    with host.client(MALLORY_VIEWER) as viewer:
        return viewer.get(path, timeout=60).status_code


@pytest.mark.parametrize("read", [":diff?against={b}", "/debug-bundle"])
def test_reads_of_large_runs_leave_the_host_to_others(tmp_path: Path, read: str) -> None:
    with attacked(tmp_path, "--conformance") as host:
        with host.client() as mallory:
            a, b = _run(mallory, "a"), _run(mallory, "b")
        path = f"/v1/runs/{a}{read.format(b=b)}"
        with HonestClient(host) as honest, ThreadPoolExecutor(AT_ONCE) as pool:
            statuses = list(pool.map(partial(_status, host), [path] * AT_ONCE))
        host.kill_and_recover()

    assert set(statuses) <= {200, 503}
    assert 200 in statuses
    assert honest.growth_mib < MOST_GROWTH_MIB
