"""Reads of large runs are queued: a viewer must not stop the host or use all its memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.attack.attacked_host import MALLORY_VIEWER, AttackedHost, HonestClient, attacked
from tests.support.client import Wire
from tests.support.definitions import node, variable, workflow

AT_ONCE = 6
MAX_GROWTH_MIB = 700


def _run(mallory: Wire, letter: str) -> str:
    """Start a run of 24 nodes that each output 200 kB; a larger value would be stored once."""
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
def test_reads_of_large_runs_do_not_delay_other_clients(tmp_path: Path, read: str) -> None:
    with attacked(tmp_path, "--conformance") as host:
        with host.client() as mallory:
            a, b = _run(mallory, "a"), _run(mallory, "b")
        path = f"/v1/runs/{a}{read.format(b=b)}"
        with HonestClient(host) as honest, ThreadPoolExecutor(AT_ONCE) as pool:
            statuses = list(pool.map(partial(_status, host), [path] * AT_ONCE))
        host.kill_and_recover()

    assert set(statuses) <= {200, 503}
    assert 200 in statuses
    assert honest.growth_mib < MAX_GROWTH_MIB
