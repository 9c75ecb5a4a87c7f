"""Open streams must not delay others, and readers that never read must use little memory."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.attack.attacked_host import MALLORY, AttackedHost, HonestClient, attacked
from tests.support.eventually import eventually
from tests.support.long_runs import under_way
from tests.support.raw_stream import RawStream, long_run

STREAMS = 700
READERS = 250
# The memory that 250 readers of a log of 2 MB may use in total.
MAX_GROWTH_MIB = 100


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
            # There is capacity again once the readers are gone.
            eventually(lambda: mallory.get("/v1/runs").status_code == 200)
            mallory.post(f"/v1/runs/{run_id}/cancel")

        host.kill_and_recover()

    assert heads.count(b"HTTP/1.1 200 OK") == 300
    assert heads.count(b"HTTP/1.1 429 Too Many Requests") == STREAMS - 300
    assert refused.json()["error"] == "rate_limited"
    assert refused.json()["details"]["scope"] == "key"
    assert "300 open streams" in refused.json()["message"]
    assert honest.growth_mib < MAX_GROWTH_MIB


def test_readers_that_never_read_use_little_memory_and_are_closed(tmp_path: Path) -> None:
    with attacked(tmp_path, "--conformance", WOPR_SEND_TIMEOUT_SECONDS="3") as host:
        with host.client() as mallory:
            run_id = long_run(mallory)
            path = f"/v1/runs/{run_id}/events?streamMode=debug"
            with HonestClient(host) as honest, ExitStack() as stack:
                heads = _open(host, stack, path, READERS)
                honest.wait_for_round()
                eventually(lambda: "wopr_http_streams 0.0" in mallory.metrics())

        host.kill_and_recover()

    assert set(heads) == {b"HTTP/1.1 200 OK"}
    assert honest.growth_mib < MAX_GROWTH_MIB
