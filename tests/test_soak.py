"""The evaluation of the soak test: what passes and what fails."""

from __future__ import annotations

import httpx
import pytest
from bench.soak import Findings, Refused, report


def _samples(*mib: float) -> list[tuple[float, float]]:
    return [(float(at), each) for at, each in enumerate(mib)]


def _content() -> Findings:
    found = Findings(requests=300, memory_mib=_samples(100, 110, 105, 120, 112, 118))
    found.seconds = [0.01] * 300
    found.attacks["wrong keys", "401 unauthenticated"] = 7
    return found


def test_a_soak_without_faults_passes_and_counts_refused_attacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert report(_content())

    shown = capsys.readouterr().out
    assert "401 unauthenticated x7" in shown
    assert shown.endswith("passed\n")


def test_a_soak_with_a_fault_a_lost_run_or_growing_memory_fails() -> None:
    faulty, lossy, growing = _content(), _content(), _content()
    faulty.faults.append("GET /v1/runs: 500")
    lossy.lost.append("run-1: answered 404")
    growing.memory_mib = _samples(100, 100, 200, 200, 300, 300)

    assert not report(faulty)
    assert not report(lossy)
    assert not report(growing)


def test_a_soak_that_delays_or_refuses_honest_clients_fails() -> None:
    slow, busy = _content(), _content()
    slow.seconds[:6] = [2.5] * 6
    busy.statuses["503"] = 6

    assert not report(slow)
    assert not report(busy)


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_an_error_is_a_fault_unless_it_has_a_retry_time(status: int) -> None:
    found = Findings()

    with pytest.raises(Refused):
        found.check_response("GET /v1/runs", httpx.Response(status), "no")

    assert found.faults == [f"GET /v1/runs: {status} no"]


def test_a_busy_host_with_a_retry_time_is_no_fault() -> None:
    found = Findings()

    with pytest.raises(Refused):
        found.check_response(
            "GET /v1/runs", httpx.Response(503, headers={"Retry-After": "1"}), "busy"
        )

    assert found.faults == []
    assert found.statuses["503"] == 1
