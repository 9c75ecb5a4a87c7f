from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.client import Wire
from tests.support.host import ACME, ServedHost
from tests.support.long_runs import SLOW
from tests.wire.timing import is_within
from wopr.protocol.documents import Json

pytestmark = pytest.mark.both_stores
of_connections = pytest.mark.sqlite("open connections are not in the store")

# Enough tokens, slow enough, that readers can join during the run.
TALK = {"tokens": [f"t{number} " for number in range(120)], "delayMsPerToken": 3}
READERS = 20


def _talking(acme: Wire) -> str:
    return acme.create(
        "conformance-stream-text",
        configurable={"mockProvider": {"id": "stream-text", "config": TALK}},
    )


def test_readers_that_join_a_run_at_any_moment_receive_exactly_its_log(
    acme: Wire, host: ServedHost
) -> None:
    run_id = _talking(acme)
    moments = random.Random(7)
    plans = [(moments.random() * 0.5, number % 4 == 0) for number in range(READERS)]

    def read(plan: tuple[float, bool]) -> list[Json]:
        joins_after, is_buffered = plan
        with Wire(host.url, ACME) as wire:
            threading.Event().wait(joins_after)
            frames = wire.frames(run_id, streamMode="debug", bufferMs=20 if is_buffered else 0)
        if is_buffered:
            return [event for frame in frames for event in frame.json]
        return [frame.json for frame in frames]

    with ThreadPoolExecutor(READERS) as pool:
        seen = list(pool.map(read, plans))

    log = acme.log(run_id)
    assert len(log) > 120
    assert all(events == log for events in seen)


def test_a_reader_that_repeatedly_loses_its_connection_misses_nothing(acme: Wire) -> None:
    run_id = _talking(acme)
    seen: list[Json] = []
    last: str | None = None

    while not seen or not seen[-1]["type"].startswith("run.completed"):
        resume = {} if last is None else {"Last-Event-ID": last}
        with acme.stream(run_id, resume, streamMode="debug") as frames:
            events = (frame for frame in frames if not frame.comment)
            for _, frame in zip(range(7), events, strict=False):
                seen.append(frame.json)
                last = frame.id

    assert seen == acme.log(run_id)


@of_connections
def test_an_idle_stream_is_kept_alive_with_comments(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host("--conformance", WOPR_HEARTBEAT_SECONDS="0.2")
    wire = connect(ACME, host)
    run_id = wire.create("conformance-cancellable")

    with wire.stream(run_id) as frames, wire.stream(run_id, bufferMs=5000) as buffered:
        plain = [next(frames) for _ in range(3)]
        batched = [next(buffered) for _ in range(2)]

    assert [frame.comment for frame in plain] == ["", "keepalive", "keepalive"]
    assert "keepalive" in [frame.comment for frame in batched]
    wire.post(f"/v1/runs/{run_id}/cancel")


@of_connections
def test_a_host_that_stops_ends_its_streams_promptly(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    def seconds() -> float:
        host = new_host("--conformance")
        wire = connect(ACME, host)
        run_id = wire.create("conformance-cancellable", SLOW)
        with wire.stream(run_id, streamMode="debug") as frames:
            events = [next(frames), next(frames)]
            began = time.monotonic()
            host.stop()
            rest = list(frames)
        took = time.monotonic() - began

        assert [frame.event for frame in events] == ["run.started", "node.started"]
        assert rest == []
        return took

    assert is_within(5, seconds)


def test_a_run_can_be_followed_again_after_a_restart(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host("--conformance")
    before = connect(ACME, host)
    run_id = before.create("conformance-delay", {"delayMs": 1500})
    with before.stream(run_id, streamMode="debug") as frames:
        first = [next(frames), next(frames)]

    host.restart()
    after = connect(ACME, host)
    rest = after.frames(run_id, {"Last-Event-ID": first[-1].id}, streamMode="debug")

    assert [f.json for f in (*first, *rest)] == after.log(run_id)
    assert rest[-1].event == "run.completed"


def test_a_stream_has_its_data_on_one_line(acme: Wire) -> None:
    run_id = acme.create("conformance-identity", {"payload": {"text": "a\n\nid: 9\r\nb\u2028c"}})

    frames = acme.frames(run_id, streamMode="debug")

    assert [f.event for f in frames] == acme.types(run_id)
    assert json.loads(frames[0].data)["payload"]["inputs"]["payload"]["text"].startswith("a\n\nid")


@of_connections
def test_too_many_readers_of_one_run_get_a_retry_time(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host("--conformance", WOPR_MAX_READERS_PER_RUN="1")
    wire = connect(ACME, host)
    run_id = wire.create("conformance-cancellable")

    with wire.stream(run_id) as frames:
        next(frames)
        second = wire.get(f"/v1/runs/{run_id}/events")

    assert second.status_code == 429
    assert second.json()["details"]["scope"] == "route"
    assert int(second.headers["retry-after"]) * 1000 == second.json()["details"]["retryAfterMs"]
