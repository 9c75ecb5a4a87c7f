"""Open streams must not take the service from others, and readers that never read cost little."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.attack.attacked import MALLORY, AttackedHost, HonestClient, attacked
from tests.fault.hosts import eventually
from tests.wire.raw_stream import RawStream, long_log
from tests.wire.steering import under_way

STREAMS = 700
READERS = 250
# What 250 readers of a log of 2 MB may cost the host in all.
MOST_GROWTH_MIB = 100


def _open(host: AttackedHost, stack: ExitStack, path: str, count: int) -> list[bytes]:
    """Open streams, 50 at a time, and return the first line of each response."""
    heads: list[bytes] = []
    while len(heads) < count:
        group = [stack.enter_context(RawStream(host, MALLORY, path)) for _ in range(50)]
        heads += [each.receive(100).partition(b"\r\n")[0] for each in group]
    return heads


def test_a_tenant_that_opens_hundreds_of_streams_is_refused_and_others_are_served(
    tmp_path: Path,
) -> None:
    with attacked(tmp_path, "--conformance", WOPR_MAX_IN_FLIGHT="50") as host:
        with host.client() as mallory:
            run_id = under_way(mallory)
            path = f"/v1/runs/{run_id}/events"
            with HonestClient(host) as honest, ExitStack() as stack:
                heads = _open(host, stack, path, STREAMS)
                refused = mallory.get(path)
                honest.wait_for_round()
            # There is room again once the readers are gone.
            eventually(lambda: mallory.get("/v1/runs").status_code == 200)
            mallory.post(f"/v1/runs/{run_id}/cancel")

        host.kill_and_recover()

    assert heads.count(b"HTTP/1.1 200 OK") == 300
    assert heads.count(b"HTTP/1.1 429 Too Many Requests") == STREAMS - 300
    assert refused.json()["error"] == "rate_limited"
    assert refused.json()["details"]["scope"] == "key"
    assert "300 open streams" in refused.json()["message"]
    assert honest.growth_mib < MOST_GROWTH_MIB


def test_readers_that_never_read_cost_little_memory_and_are_closed(tmp_path: Path) -> None:
    with attacked(tmp_path, "--conformance", WOPR_SEND_TIMEOUT_SECONDS="3") as host:
        with host.client() as mallory:
            definition, inputs = long_log()
            run_id = mallory.create(mallory.register(definition), inputs)
            mallory.finished(run_id)
            path = f"/v1/runs/{run_id}/events?streamMode=debug"
            with HonestClient(host) as honest, ExitStack() as stack:
                heads = _open(host, stack, path, READERS)
                honest.wait_for_round()
                eventually(lambda: "wopr_http_streams 0.0" in mallory.metrics())

        host.kill_and_recover()

    assert set(heads) == {b"HTTP/1.1 200 OK"}
    assert honest.growth_mib < MOST_GROWTH_MIB
