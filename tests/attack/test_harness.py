"""The honest client must detect a host that does not serve it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.attack.attacked_host import AttackedHost, HonestClient, attacked
from tests.support.eventually import eventually


def test_the_honest_client_reports_no_fault_without_an_attack(tmp_path: Path) -> None:
    with attacked(tmp_path) as host:
        with HonestClient(host) as honest:
            honest.wait_for_round()

        host.kill_and_recover()

    assert len(honest.runs) >= 2


def test_the_honest_client_detects_a_frozen_host(tmp_path: Path) -> None:
    with attacked(tmp_path) as host:
        with pytest.raises(AssertionError, match="health checks"):
            _freeze(host)

        with HonestClient(host) as honest:
            honest.wait_for_round()


def _freeze(host: AttackedHost) -> None:
    with HonestClient(host) as honest:
        host.running.send_signal(signal.SIGSTOP)
        eventually(lambda: bool(honest.faults))
        host.running.send_signal(signal.SIGCONT)
