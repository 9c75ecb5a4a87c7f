"""A host killed between two exports of one trace: acknowledged spans are stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.fragile_host import FragileHost
from tests.support.kahn import agents_of, stored_lines
from tests.support.otlp import PATIENT, Request, fleet_lines, of, send_json


@pytest.fixture
def host(tmp_path: Path) -> Iterator[FragileHost]:
    fragile = FragileHost(tmp_path / "host", (), PATIENT)
    fragile.start()
    yield fragile
    if fragile.process is not None:
        fragile.kill()


def test_a_kill_between_two_exports_leaves_one_complete_run(host: FragileHost) -> None:
    requests = [Request(f"agent-{number}") for number in range(5)]
    for request in requests:
        assert send_json(host.wire, request.call, request.wish).status_code == 200
    host.kill()
    host.start()

    for request in requests:
        send_json(host.wire, request.answer, request.invocation, request.root)

    for request in requests:
        lines = fleet_lines(host.wire, request.run_id)
        assert len(of(lines, "tool_invocation")) == len(of(lines, "agent_run_end")) == 1
        [agent] = agents_of(host.wire, request.run_id)
        assert agent["outcome"] == "converged"
    assert len(host.wire.document("/api/runs")["runs"]) == len(requests)
    host.check()


def test_a_host_killed_while_it_converts_traces_converts_every_trace_once(
    host: FragileHost,
) -> None:
    requests = [Request() for _ in range(60)]
    for request in requests:
        send_json(host.wire, *request.all_spans())
    eventually(lambda: bool(stored_lines(host.wire, requests[0].run_id)))
    host.kill()
    host.start()

    for request in requests:
        # The exporter got no response.
        send_json(host.wire, *request.all_spans())

    for request in requests:
        assert len(of(fleet_lines(host.wire, request.run_id), "agent_run_end")) == 1
    seen = host.wire.document("/api/runs", params={"limit": 200})["runs"]
    assert sorted(run["run_id"] for run in seen) == sorted(each.run_id for each in requests)
    host.check()
