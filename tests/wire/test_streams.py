from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.wire.client import Wire
from tests.wire.definitions import delay, node, workflow
from tests.wire.host import ACME, ServedHost
from wopr.protocol.documents import Json, JsonObject

MODES = ["updates", "values", "messages", "debug"]
# Enough tokens, slow enough, that readers can join while the run is under way.
TALK = {"tokens": [f"t{number} " for number in range(120)], "delayMsPerToken": 3}
READERS = 20
NOT_UPDATES = {
    "node.started",
    "variable.changed",
    "output.chunk",
    "provider.usage",
    "channel.written",
}


@pytest.fixture
def busy(acme: Wire) -> str:
    """A finished run that wrote events of many types."""
    definition = workflow(
        [
            node("set", "core.setVariable", config={"name": "x", "value": 1}),
            node(
                "write",
                "core.channelWrite",
                config={"channelName": "c", "reducer": "append", "value": 1},
            ),
            node("ai", "core.ai.callPrompt", config={"promptId": "p"}),
            node("fail", "core.fail"),
            node("after"),
        ],
        settings={"maxRetries": 0},
    )
    run_id = acme.create(acme.register(definition), configurable=_talk(["a", "b"]))
    acme.finished(run_id)
    return run_id


def _talk(tokens: list[str], delay_ms: int = 0) -> JsonObject:
    config = {"tokens": tokens, "delayMsPerToken": delay_ms}
    return {"mockProvider": {"id": "stream-text", "config": config}}


def _talking(acme: Wire) -> str:
    return acme.create(
        "conformance-stream-text",
        configurable={"mockProvider": {"id": "stream-text", "config": TALK}},
    )


def test_updates_is_the_default_and_leaves_out_what_it_must(acme: Wire, busy: str) -> None:
    frames = acme.frames(busy)

    types = [frame.event for frame in frames]
    assert types == [
        "run.started",
        "node.completed",
        "node.completed",
        "node.completed",
        "node.failed",
        "run.failed",
    ]
    assert set(acme.types(busy)) >= NOT_UPDATES
    assert acme.frames(busy, streamMode="updates") == frames


def test_a_frame_is_the_event_of_the_log_under_its_sequence(acme: Wire, busy: str) -> None:
    log = acme.log(busy)

    frames = acme.frames(busy, streamMode="debug")

    assert [frame.json for frame in frames] == log
    assert [frame.id for frame in frames] == [str(event["sequence"]) for event in log]
    assert [frame.event for frame in frames] == [event["type"] for event in log]


def test_values_are_snapshots_that_end_with_the_last_one(acme: Wire) -> None:
    definition = workflow([node("a"), delay("b", 60), node("c")])
    run_id = acme.create(acme.register(definition))

    frames = acme.frames(run_id, streamMode="values")

    statuses = [frame.json["payload"]["status"] for frame in frames]
    assert {frame.event for frame in frames} == {"state.snapshot"}
    assert statuses[0] == "running"
    assert statuses[-1] == "completed"
    assert frames[-1].json["payload"] == acme.snapshot(run_id)
    assert [int(f.id) for f in frames] == sorted({int(f.id) for f in frames})


def test_a_resumed_values_stream_begins_with_the_run_as_it_stands(acme: Wire) -> None:
    run_id = acme.create("conformance-cancellable")

    with acme.stream(run_id, {"Last-Event-ID": "1"}, streamMode="values") as frames:
        first = next(frames)

    acme.post(f"/v1/runs/{run_id}/cancel")
    assert first.json["payload"]["status"] == "running"


def test_messages_are_the_chunks_and_nothing_else(acme: Wire, busy: str) -> None:
    frames = acme.frames(busy, streamMode="messages")

    chunks = [event for event in acme.log(busy) if event["type"] == "output.chunk"]
    assert [frame.event for frame in frames] == ["ai.message.chunk"] * 2
    assert [frame.json for frame in frames] == [event["payload"] for event in chunks]


def test_messages_of_a_run_without_a_model_are_none(acme: Wire) -> None:
    run_id = acme.create("conformance-noop")

    assert acme.frames(run_id, streamMode="messages") == []


def test_a_mix_is_the_union_in_order_without_duplicates(acme: Wire, busy: str) -> None:
    frames = acme.frames(busy, streamMode="updates,messages")

    ids = [int(frame.id) for frame in frames]
    chunks = [f for f in frames if f.event == "ai.message.chunk"]
    assert ids == sorted(set(ids))
    assert len(chunks) == 2
    assert [f for f in frames if f not in chunks] == acme.frames(busy, streamMode="updates")


def test_a_mix_with_debug_has_every_event_once(acme: Wire, busy: str) -> None:
    frames = acme.frames(busy, streamMode="debug,updates,messages,updates")

    assert [frame.json for frame in frames] == acme.log(busy)


@pytest.mark.parametrize(
    "mode",
    ["nonsense", "updates,nonsense", "values,updates", "", "updates,", "Updates", "updates;debug"],
)
def test_a_mode_that_does_not_exist_is_refused_with_those_that_do(acme: Wire, mode: str) -> None:
    run_id = acme.create("conformance-noop")

    response = acme.get(f"/v1/runs/{run_id}/events", params={"streamMode": mode})

    assert response.status_code == 400
    assert response.json()["error"] == "unsupported_stream_mode"
    assert response.json()["details"]["supported"] == MODES


@pytest.mark.parametrize("milliseconds", ["5001", "-1", "abc", "", "1.5", "9" * 30, "٣"])
def test_a_buffer_out_of_bounds_is_refused(acme: Wire, milliseconds: str) -> None:
    run_id = acme.create("conformance-noop")

    response = acme.get(f"/v1/runs/{run_id}/events", params={"bufferMs": milliseconds})

    assert response.status_code == 400
    assert response.json()["error"] == "validation_error"
    assert response.json()["details"]["field"] == "bufferMs"


@pytest.mark.parametrize("milliseconds", [1, 5000])
def test_a_buffered_stream_sends_every_event_inside_batches(acme: Wire, milliseconds: int) -> None:
    run_id = acme.create("conformance-delay", {"delayMs": 30})

    frames = acme.frames(run_id, streamMode="debug", bufferMs=milliseconds)

    events = [event for frame in frames for event in frame.json]
    assert {frame.event for frame in frames} == {"batch"}
    assert events == acme.log(run_id)
    assert all(frame.json for frame in frames)
    assert [int(f.id) for f in frames] == [f.json[-1]["sequence"] for f in frames]


def test_a_buffer_of_zero_is_none(acme: Wire) -> None:
    run_id = acme.create("conformance-noop")

    assert acme.frames(run_id, bufferMs=0) == acme.frames(run_id)


def test_the_terminal_event_does_not_wait_for_a_long_buffer(acme: Wire) -> None:
    began = time.monotonic()
    run_id = acme.create("conformance-delay", {"delayMs": 100})

    frames = acme.frames(run_id, bufferMs=4000)

    assert time.monotonic() - began < 2
    assert frames[-1].json[-1]["type"] == "run.completed"


def test_a_buffered_batch_leaves_when_its_time_is_up(acme: Wire) -> None:
    run_id = acme.create("conformance-cancellable")
    began = time.monotonic()

    with acme.stream(run_id, streamMode="debug", bufferMs=150) as frames:
        first = next(frames)
    waited = time.monotonic() - began

    acme.post(f"/v1/runs/{run_id}/cancel")
    assert [event["type"] for event in first.json] == ["run.started", "node.started"]
    assert 0.1 < waited < 1.5


def test_a_stream_resumes_strictly_after_the_last_event(acme: Wire, busy: str) -> None:
    log = acme.log(busy)
    for last in range(len(log) - 1):
        frames = acme.frames(busy, {"Last-Event-ID": str(last)}, streamMode="debug")

        assert [frame.json for frame in frames] == log[last + 1 :]


@pytest.mark.parametrize("beyond", [0, 1, 1000])
def test_a_reconnect_after_the_end_closes_with_nothing(acme: Wire, busy: str, beyond: int) -> None:
    last = acme.log(busy)[-1]["sequence"] + beyond

    assert acme.frames(busy, {"Last-Event-ID": str(last)}, streamMode="debug") == []


@pytest.mark.parametrize("value", ["abc", "-1", "1.0", "", "9" * 40])
def test_a_last_event_id_that_is_no_sequence_is_refused(acme: Wire, value: str) -> None:
    run_id = acme.create("conformance-noop")

    response = acme.get(f"/v1/runs/{run_id}/events", headers={"Last-Event-ID": value})

    assert response.status_code == 400
    assert response.json()["details"]["field"] == "Last-Event-ID"


def test_readers_who_join_a_run_at_any_moment_see_exactly_its_log(
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


def test_a_reader_that_keeps_losing_its_connection_misses_nothing(acme: Wire) -> None:
    run_id = _talking(acme)
    seen: list[Json] = []
    last: str | None = None

    while not seen or not seen[-1]["type"].startswith("run.completed"):
        resume = {} if last is None else {"Last-Event-ID": last}
        with acme.stream(run_id, resume, streamMode="debug") as frames:
            for _, frame in zip(range(7), frames, strict=False):
                seen.append(frame.json)
                last = frame.id

    assert seen == acme.log(run_id)


def test_two_readers_get_the_same_bytes(acme: Wire, busy: str, host: ServedHost) -> None:
    path = f"{host.url}/v1/runs/{busy}/events?streamMode=debug"
    headers = {"Authorization": f"Bearer {ACME}"}

    first, second = (httpx.get(path, headers=headers, trust_env=False).content for _ in range(2))

    assert first == second
    assert first.count(b"\n\n") == len(acme.log(busy))


def test_asked_for_json_the_stream_answers_at_once_with_the_whole_log(acme: Wire) -> None:
    run_id = acme.create("conformance-cancellable")

    events = acme.log(run_id)

    acme.post(f"/v1/runs/{run_id}/cancel")
    assert [event["type"] for event in events] == ["run.started", "node.started"]


def test_json_of_a_named_mode_is_filtered(acme: Wire, busy: str) -> None:
    found = acme.document(
        f"/v1/runs/{busy}/events",
        params={"streamMode": "updates"},
        headers={"Accept": "application/json"},
    )

    assert [e["type"] for e in found["events"]] == [f.event for f in acme.frames(busy)]


@pytest.mark.parametrize(
    "accept", [None, "*/*", "text/event-stream", "text/event-stream, application/json"]
)
def test_without_a_wish_for_json_the_answer_is_a_stream(acme: Wire, accept: str | None) -> None:
    run_id = acme.create("conformance-noop")
    headers = {} if accept is None else {"Accept": accept}

    response = acme.get(f"/v1/runs/{run_id}/events", headers=headers)

    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("params", [{"streamMode": "nonsense"}, {"bufferMs": "5001"}])
def test_a_bad_parameter_is_refused_before_the_format_is_chosen(
    acme: Wire, params: dict[str, str]
) -> None:
    run_id = acme.create("conformance-noop")
    for accept in ("application/json", "text/event-stream"):
        response = acme.get(f"/v1/runs/{run_id}/events", params=params, headers={"Accept": accept})

        assert response.status_code == 400
        assert response.headers["content-type"] == "application/json"


def test_a_quiet_stream_stays_alive_with_comments(
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


def test_a_host_that_stops_ends_its_streams_promptly(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host("--conformance")
    wire = connect(ACME, host)
    run_id = wire.create("conformance-cancellable")

    with wire.stream(run_id, streamMode="debug") as frames:
        events = [next(frames), next(frames)]
        began = time.monotonic()
        host.stop()
        rest = list(frames)

    assert [frame.event for frame in events] == ["run.started", "node.started"]
    assert rest == []
    assert time.monotonic() - began < 5


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


def test_a_stream_holds_its_data_on_one_line(acme: Wire) -> None:
    run_id = acme.create("conformance-identity", {"payload": {"text": "a\n\nid: 9\r\nb\u2028c"}})

    frames = acme.frames(run_id, streamMode="debug")

    assert [f.event for f in frames] == acme.types(run_id)
    assert json.loads(frames[0].data)["payload"]["inputs"]["payload"]["text"].startswith("a\n\nid")


def test_too_many_readers_of_one_run_are_asked_to_come_back(
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
