"""Large unread responses must not fill the host's memory."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.attack.attacked_host import MALLORY, MALLORY_VIEWER, HonestClient, attacked
from tests.support.client import Wire
from tests.support.eventually import eventually
from tests.support.raw_stream import RawStream, long_run

CONNECTIONS = 60
# The budget of 64 MiB, and the memory to create the responses.
MAX_GROWTH_MIB = 250


def _status(wire: Wire, path: str) -> int:
    """Return the status of a response whose body is not read."""
    with wire.http.stream("GET", path) as response:
        return response.status_code


@pytest.mark.parametrize("path", ["", "/debug-bundle"])
def test_unread_responses_use_bounded_memory(tmp_path: Path, path: str) -> None:
    variables = {
        "WOPR_MAX_STREAM_BUFFER_BYTES": str(64 * 1024 * 1024),
        "WOPR_SEND_TIMEOUT_SECONDS": "3",
    }
    with attacked(tmp_path, "--conformance", **variables) as host:
        with host.client() as mallory:
            # Larger values would be stored separately, and the response would only refer to them.
            run_id = long_run(mallory, nodes=48, kilobytes=250)
        asked = f"/v1/runs/{run_id}{path}"
        with HonestClient(host) as honest, ExitStack() as stack:
            readers = [
                stack.enter_context(RawStream(host, MALLORY_VIEWER, asked))
                for _ in range(CONNECTIONS)
            ]
            heads = [reader.receive(12) for reader in readers]
            honest.wait_for_round()
        with host.client(MALLORY) as mallory:
            # Memory is released once the readers are gone.
            eventually(lambda: _status(mallory, asked) == 200)
        host.kill_and_recover()

    assert heads.count(b"HTTP/1.1 503") > 0
    assert set(heads) <= {b"HTTP/1.1 200", b"HTTP/1.1 503", b""}
    assert honest.growth_mib < MAX_GROWTH_MIB
