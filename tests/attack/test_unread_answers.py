"""Large answers that are not read must not fill the host's memory."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.attack.attacked import MALLORY, MALLORY_VIEWER, HonestClient, attacked
from tests.fault.hosts import eventually
from tests.wire.raw_stream import RawStream, long_log

CONNECTIONS = 60
# The budget of 64 MiB, and what making the answers takes meanwhile.
MOST_GROWTH_MIB = 250


@pytest.mark.parametrize("path", ["", "/debug-bundle"])
def test_answers_that_are_not_read_take_a_bounded_memory(tmp_path: Path, path: str) -> None:
    variables = {
        "WOPR_MAX_STREAM_BUFFER_BYTES": str(64 * 1024 * 1024),
        "WOPR_SEND_TIMEOUT_SECONDS": "3",
    }
    with attacked(tmp_path, "--conformance", **variables) as host:
        with host.client() as mallory:
            # Larger values would be stored apart, and the answer would only refer to them.
            definition, inputs = long_log(nodes=48, kilobytes=250)
            run_id = mallory.create(mallory.register(definition), inputs)
            mallory.finished(run_id)
        asked = f"/v1/runs/{run_id}{path}"
        with HonestClient(host) as honest, ExitStack() as stack:
            readers = [
                stack.enter_context(RawStream(host, MALLORY_VIEWER, asked))
                for _ in range(CONNECTIONS)
            ]
            heads = [reader.receive(12) for reader in readers]
            honest.wait_for_round()
        with host.client(MALLORY) as mallory:
            # Room is given back once the readers are gone.
            eventually(lambda: mallory.get(asked).status_code == 200)
        host.kill_and_recover()

    assert heads.count(b"HTTP/1.1 503") > 0
    assert set(heads) <= {b"HTTP/1.1 200", b"HTTP/1.1 503", b""}
    assert honest.growth_mib < MOST_GROWTH_MIB
