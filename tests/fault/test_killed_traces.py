"""A host killed between two exports of one trace: what was acknowledged is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.hosts import FragileHost, eventually
from tests.wire.fleet import agents_of, held
from tests.wire.otlp import PATIENT, Request, of, send_json, told


@pytest.fixture
def host(tmp_path: Path) -> Iterator[FragileHost]:
    fragile = FragileHost(tmp_path / "host", (), PATIENT)
    fragile.start()
    yield fragile
    if fragile.process is not None:
        fragile.kill()


def test_a_kill_between_two_exports_leaves_one_whole_run(host: FragileHost) -> None:
    requests = [Request(f"agent-{number}") for number in range(5)]
    for request in requests:
        assert send_json(host.wire, request.call, request.wish).status_code == 200
    host.kill()
    host.start()

    for request in requests:
        send_json(host.wire, request.answer, request.invocation, request.root)

    for request in requests:
        lines = told(host.wire, request.run_id)
        assert len(of(lines, "tool_invocation")) == len(of(lines, "agent_run_end")) == 1
        [agent] = agents_of(host.wire, request.run_id)
        assert agent["outcome"] == "converged"
    assert len(host.wire.document("/api/runs")["runs"]) == len(requests)
    host.check()


def test_a_host_killed_while_it_tells_tells_every_trace_once(host: FragileHost) -> None:
    requests = [Request() for _ in range(60)]
    for request in requests:
        send_json(host.wire, *request.whole())
    eventually(lambda: bool(held(host.wire, requests[0].run_id)))
    host.kill()
    host.start()

    for request in requests:
        # The exporter has had no answer, for all it knows.
        send_json(host.wire, *request.whole())

    for request in requests:
        assert len(of(told(host.wire, request.run_id), "agent_run_end")) == 1
    seen = host.wire.document("/api/runs", params={"limit": 200})["runs"]
    assert sorted(run["run_id"] for run in seen) == sorted(each.run_id for each in requests)
    host.check()
