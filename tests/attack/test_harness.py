"""The honest client must notice a host that does not serve it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.attack.attacked import AttackedHost, HonestClient, attacked
from tests.fault.hosts import eventually


def test_an_honest_client_is_content_with_a_host_that_is_not_attacked(tmp_path: Path) -> None:
    with attacked(tmp_path) as host:
        with HonestClient(host) as honest:
            honest.wait_for_round()

        host.kill_and_recover()

    assert len(honest.runs) >= 2


def test_an_honest_client_notices_a_host_that_is_frozen(tmp_path: Path) -> None:
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
