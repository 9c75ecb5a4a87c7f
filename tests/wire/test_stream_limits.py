from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from tests.support.client import Frame, Wire
from tests.support.console import Person
from tests.support.eventually import eventually
from tests.support.host import ACME, DEVELOPER, GLOBEX, ServedHost
from tests.support.long_runs import under_way
from tests.support.raw_stream import RawStream, long_log, long_run
from wopr.protocol.documents import JsonObject

Connect = Callable[..., Wire]
NewHost = Callable[..., ServedHost]
LARGEST_CHUNK_BYTES = 64 * 1024
SEND_TIMEOUT_SECONDS = 0.5
CHANCES = 5
MCP_ACCEPT = {"Accept": "application/json, text/event-stream"}


@contextmanager
def streams(wire: Wire, run_id: str, count: int) -> Generator[list[Iterator[Frame]], None, None]:
    """Follow a run over so many connections; each has received its first frame."""
    with ExitStack() as opened:
        frames = [opened.enter_context(wire.stream(run_id)) for _ in range(count)]
        for each in frames:
            next(each)
        yield frames


def test_a_key_at_its_stream_limit_is_refused_and_another_key_is_not(
    new_host: NewHost, connect: Connect
) -> None:
    host = new_host("--conformance", WOPR_MAX_STREAMS_PER_KEY="2")
    wire, colleague = connect(ACME, host), connect(DEVELOPER, host)
    run_id = under_way(wire)

    with streams(wire, run_id, 2):
        refused = wire.get(f"/v1/runs/{run_id}/events")
        with streams(colleague, run_id, 1):
            pass

    details = refused.json()["details"]
    assert refused.status_code == 429
    assert refused.json()["error"] == "rate_limited"
    assert "2 open streams" in refused.json()["message"]
    assert 'the quota "streams" of this key is 2' in refused.json()["message"]
    assert (details["scope"], details["limit"]) == ("key", 2)
    assert int(refused.headers["retry-after"]) * 1000 == details["retryAfterMs"]
    wire.post(f"/v1/runs/{run_id}/cancel")


def test_a_tenant_at_its_stream_limit_does_not_affect_other_tenants(
    new_host: NewHost, connect: Connect
) -> None:
    host = new_host("--conformance", WOPR_MAX_STREAMS_PER_TENANT="2")
    wire, colleague, globex = (connect(key, host) for key in (ACME, DEVELOPER, GLOBEX))
    run_id, other = under_way(wire), under_way(globex)

    with streams(wire, run_id, 1), streams(colleague, run_id, 1):
        refused = colleague.get(f"/v1/runs/{run_id}/events")
        with streams(globex, other, 2):
            pass

    assert refused.status_code == 429
    assert refused.json()["details"]["scope"] == "tenant"
    assert "2 open streams" in refused.json()["message"]
    wire.post(f"/v1/runs/{run_id}/cancel")
    globex.post(f"/v1/runs/{other}/cancel")


def test_a_process_at_its_stream_limit_says_so(new_host: NewHost, connect: Connect) -> None:
    host = new_host("--conformance", WOPR_MAX_STREAMS="1")
    wire = connect(ACME, host)
    run_id = under_way(wire)

    with streams(wire, run_id, 1):
        refused = wire.get(f"/v1/runs/{run_id}/events")

    assert refused.status_code == 429
    assert refused.json()["details"]["scope"] == "global"
    wire.post(f"/v1/runs/{run_id}/cancel")


def test_a_closed_stream_frees_its_place(new_host: NewHost, connect: Connect) -> None:
    host = new_host("--conformance", WOPR_MAX_STREAMS_PER_KEY="1")
    wire = connect(ACME, host)
    run_id = under_way(wire)

    with streams(wire, run_id, 1):
        pass

    eventually(lambda: "wopr_http_streams 0.0" in wire.metrics())
    with streams(wire, run_id, 1):
        pass
    wire.post(f"/v1/runs/{run_id}/cancel")


def test_a_waiting_poll_counts_and_an_immediate_one_is_answered(
    new_host: NewHost, connect: Connect
) -> None:
    host = new_host("--conformance", WOPR_MAX_STREAMS_PER_KEY="1")
    wire, waiting = connect(ACME, host), connect(ACME, host)
    run_id = under_way(wire)
    path = f"/v1/runs/{run_id}/events/poll"

    with ThreadPoolExecutor(1) as pool:
        poll = pool.submit(waiting.poll, run_id, lastSequence=1, timeout=60)
        eventually(lambda: "wopr_http_streams 1.0" in wire.metrics())
        refused = wire.get(path, params={"lastSequence": 1, "timeout": 60})
        at_once = wire.get(path, params={"lastSequence": 1, "timeout": 0})
        with_news = wire.get(path, params={"lastSequence": 0, "timeout": 60})
        wire.post(f"/v1/runs/{run_id}/cancel")

    assert refused.status_code == 429
    assert refused.json()["details"]["scope"] == "key"
    assert at_once.json()["events"] == []
    assert len(with_news.json()["events"]) == 1
    assert poll.result()["events"]


def test_open_streams_and_waiting_polls_do_not_count_as_requests_in_progress(
    new_host: NewHost, connect: Connect
) -> None:
    host = new_host("--conformance", WOPR_MAX_IN_FLIGHT="3")
    wire, waiting = connect(ACME, host), connect(ACME, host)
    run_id = under_way(wire)

    with streams(wire, run_id, 3), ThreadPoolExecutor(2) as pool:
        polls = [pool.submit(waiting.poll, run_id, lastSequence=1, timeout=60) for _ in range(2)]
        eventually(lambda: "wopr_http_streams 5.0" in wire.metrics())
        served = [wire.get("/v1/runs").status_code for _ in range(3)]
        wire.post(f"/v1/runs/{run_id}/cancel")

    assert served == [200, 200, 200]
    assert all(poll.result()["isTerminal"] for poll in polls)


def test_live_pages_of_the_console_have_a_separate_limit(
    new_host: NewHost, connect: Connect
) -> None:
    host = new_host(
        "--conformance", WOPR_MAX_STREAMS_PER_KEY="1", WOPR_MAX_CONSOLE_STREAMS_PER_KEY="2"
    )
    wire = connect(ACME, host)
    run_id = under_way(wire)
    path = f"/runs/{run_id}/live"

    with Person(host.url) as person, ExitStack() as opened:
        person.sign_in(ACME)
        opened.enter_context(streams(wire, run_id, 1))
        tabs = [opened.enter_context(person.http.stream("GET", path)) for _ in range(2)]
        third = person.get(path)

    assert [tab.status_code for tab in tabs] == [200, 200]
    assert third.status_code == 429
    assert "2 open streams" in third.text
    assert int(third.headers["retry-after"]) > 0
    wire.post(f"/v1/runs/{run_id}/cancel")


def test_streams_of_mcp_clients_count_with_those_of_their_key(
    new_host: NewHost, connect: Connect
) -> None:
    host = new_host("--conformance", WOPR_MAX_STREAMS_PER_KEY="1")
    wire = connect(ACME, host)
    opening = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    session = wire.http.post("/mcp", json=opening, headers=MCP_ACCEPT).headers["mcp-session-id"]
    headers = MCP_ACCEPT | {"Mcp-Session-Id": session}
    run_id = under_way(wire)

    tools = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    listed = wire.http.post("/mcp", json=tools, headers=headers)
    in_progress = wire.metrics()
    with wire.http.stream("GET", "/mcp", headers=headers) as listening:
        refused = wire.get(f"/v1/runs/{run_id}/events")
        second = wire.http.post("/mcp", json=opening, headers=MCP_ACCEPT)

    assert (listed.status_code, listening.status_code) == (200, 200)
    # Only the request for the metrics itself is in progress.
    assert "wopr_http_in_flight 1.0" in in_progress
    assert (refused.status_code, second.status_code) == (429, 429)
    assert second.json()["details"]["scope"] == "key"
    wire.post(f"/v1/runs/{run_id}/cancel")


def test_no_chunk_of_a_stream_is_larger_than_64_kib(acme: Wire, host: ServedHost) -> None:
    definition, inputs = long_log(nodes=3, kilobytes=150)
    run_id = acme.create(acme.register(definition), inputs)
    acme.finished(run_id)

    for query in ("streamMode=debug", "streamMode=values", "streamMode=debug&bufferMs=50"):
        path = f"/v1/runs/{run_id}/events?{query}"
        with RawStream(host, ACME, path, {"Connection": "close"}) as reader:
            reader.until_closed()

            assert max(map(len, reader.chunks)) <= LARGEST_CHUNK_BYTES
            assert sum(map(len, reader.chunks)) > 150_000


def test_large_events_arrive_completely_in_every_mode(acme: Wire) -> None:
    definition, inputs = long_log(nodes=3, kilobytes=150)
    run_id = acme.create(acme.register(definition), inputs)
    acme.finished(run_id)

    log = acme.log(run_id)
    batches = acme.frames(run_id, streamMode="debug", bufferMs=50)
    snapshots = acme.frames(run_id, streamMode="values")

    assert [frame.json for frame in acme.frames(run_id, streamMode="debug")] == log
    assert [event for batch in batches for event in batch.json] == log
    assert [frame.json["payload"]["status"] for frame in snapshots][-1] == "completed"
    assert snapshots[-1].json["payload"] == acme.snapshot(run_id)


def test_a_reader_that_stops_reading_is_closed_and_can_resume(
    new_host: NewHost, connect: Connect
) -> None:
    host = new_host("--conformance", WOPR_SEND_TIMEOUT_SECONDS=str(SEND_TIMEOUT_SECONDS))
    wire = connect(ACME, host)
    run_id = long_run(wire)
    path = f"/v1/runs/{run_id}/events?streamMode=debug"

    with RawStream(host, ACME, path) as reader:
        reader.receive(100)
        eventually(lambda: "wopr_http_streams 0.0" in wire.metrics())
        reader.until_closed()
        first = reader.frames
    frames = [*first]
    while frames[-1].event != "run.completed":
        # On a busy machine this reader may stop too.
        resume = {"Last-Event-ID": frames[-1].id, "Connection": "close"}
        with RawStream(host, ACME, path, resume) as reader:
            reader.until_closed()
            frames += reader.frames

    log = _log_read_in_peace(host, run_id)
    assert 0 < len(first) < len(log)
    assert [frame.json for frame in frames] == log


def _log_read_in_peace(host: ServedHost, run_id: str) -> list[JsonObject]:
    """Read the log from a host that waits for its readers."""
    del host.variables["WOPR_SEND_TIMEOUT_SECONDS"]
    host.restart()
    with Wire(host.url, ACME) as patient:
        return patient.log(run_id)


def _read_slowly(host: ServedHost, path: str) -> tuple[float, float, list[Frame]]:
    """Read slowly to the end; return the total seconds, the longest pause, and the frames."""
    longest = 0.0
    with RawStream(host, ACME, path, {"Connection": "close"}) as reader:
        began = before = time.monotonic()
        while reader.receive(64 * 1024):
            time.sleep(SEND_TIMEOUT_SECONDS / 100)
            now = time.monotonic()
            longest = max(longest, now - before)
            before = now
    return before - began, longest, reader.frames


def test_a_slow_reader_that_continues_reading_is_not_closed(
    new_host: NewHost, connect: Connect
) -> None:
    host = new_host("--conformance", WOPR_SEND_TIMEOUT_SECONDS=str(SEND_TIMEOUT_SECONDS))
    wire = connect(ACME, host)
    run_id = long_run(wire)
    path = f"/v1/runs/{run_id}/events?streamMode=debug"

    seconds, longest, frames = _read_slowly(host, path)
    for _ in range(CHANCES):
        # A busy machine may stop the reader for longer than allowed.
        if longest < SEND_TIMEOUT_SECONDS / 2:
            break
        seconds, longest, frames = _read_slowly(host, path)

    assert seconds > SEND_TIMEOUT_SECONDS
    assert [frame.json for frame in frames] == _log_read_in_peace(host, run_id)


@pytest.mark.parametrize("setting", ["MAX_STREAMS", "MAX_STREAMS_PER_KEY", "SEND_TIMEOUT_SECONDS"])
def test_a_limit_of_streams_must_be_positive(setting: str, new_host: NewHost) -> None:
    with pytest.raises(AssertionError, match=f"{setting.lower()} must be"):
        new_host(**{f"WOPR_{setting}": "0"})
