from __future__ import annotations

import httpx
import pytest

from tests.support.client import Wire
from tests.support.definitions import node, workflow
from tests.support.host import ACME, ServedHost
from tests.support.interrupts import ACCEPT, accepted, gate, waiting_run
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.both_stores

MODES = ["updates", "values", "messages", "debug"]

NOT_UPDATES = {
    "node.started",
    "variable.changed",
    "output.chunk",
    "provider.usage",
    "channel.written",
}


@pytest.fixture
def busy(acme: Wire) -> str:
    """Return an ended run that wrote events of many types."""
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


def test_updates_is_the_default_and_omits_the_excluded_types(acme: Wire, busy: str) -> None:
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


def test_a_frame_is_the_event_of_the_log_with_its_sequence_as_id(acme: Wire, busy: str) -> None:
    log = acme.log(busy)

    frames = acme.frames(busy, streamMode="debug")

    assert [frame.json for frame in frames] == log
    assert [frame.id for frame in frames] == [str(event["sequence"]) for event in log]
    assert [frame.event for frame in frames] == [event["type"] for event in log]


def test_values_are_snapshots_that_end_with_the_last_one(acme: Wire) -> None:
    run_id = waiting_run(acme, node("a"), gate(), node("c"))

    with acme.stream(run_id, streamMode="values") as stream:
        frames = [next(stream)]
        accepted(acme, run_id, "gate", ACCEPT)
        frames += [frame for frame in stream if not frame.comment]

    statuses = [frame.json["payload"]["status"] for frame in frames]
    assert {frame.event for frame in frames} == {"state.snapshot"}
    assert statuses[0] == "waiting-approval"
    assert statuses[-1] == "completed"
    assert frames[-1].json["payload"] == acme.snapshot(run_id)
    assert [int(f.id) for f in frames] == sorted({int(f.id) for f in frames})


def test_a_resumed_values_stream_begins_with_the_current_snapshot(acme: Wire) -> None:
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


def test_a_run_without_a_model_has_no_messages(acme: Wire) -> None:
    run_id = acme.create("conformance-noop")

    assert acme.frames(run_id, streamMode="messages") == []


def test_several_modes_are_combined_in_order_without_duplicates(acme: Wire, busy: str) -> None:
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
def test_an_unknown_mode_is_refused_with_the_known_ones(acme: Wire, mode: str) -> None:
    run_id = acme.create("conformance-noop")

    response = acme.get(f"/v1/runs/{run_id}/events", params={"streamMode": mode})

    assert response.status_code == 400
    assert response.json()["error"] == "unsupported_stream_mode"
    assert response.json()["details"]["supported"] == MODES


def test_a_stream_resumes_strictly_after_the_last_event(acme: Wire, busy: str) -> None:
    log = acme.log(busy)
    for last in range(len(log) - 1):
        frames = acme.frames(busy, {"Last-Event-ID": str(last)}, streamMode="debug")

        assert [frame.json for frame in frames] == log[last + 1 :]


@pytest.mark.parametrize("beyond", [0, 1, 1000])
def test_a_reconnect_after_the_end_is_closed_without_events(
    acme: Wire, busy: str, beyond: int
) -> None:
    last = acme.log(busy)[-1]["sequence"] + beyond

    assert acme.frames(busy, {"Last-Event-ID": str(last)}, streamMode="debug") == []


@pytest.mark.parametrize("value", ["abc", "-1", "1.0", "", "9" * 40])
def test_a_last_event_id_that_is_not_a_sequence_is_refused(acme: Wire, value: str) -> None:
    run_id = acme.create("conformance-noop")

    response = acme.get(f"/v1/runs/{run_id}/events", headers={"Last-Event-ID": value})

    assert response.status_code == 400
    assert response.json()["details"]["field"] == "Last-Event-ID"


def test_two_readers_receive_the_same_bytes(acme: Wire, busy: str, host: ServedHost) -> None:
    path = f"{host.url}/v1/runs/{busy}/events?streamMode=debug"
    headers = {"Authorization": f"Bearer {ACME}"}

    first, second = (
        httpx.get(path, headers=headers, trust_env=False, timeout=60).content for _ in range(2)
    )

    assert first == second
    assert first.count(b"\n\n") == len(acme.log(busy))


def test_with_accept_json_the_whole_log_is_returned_at_once(acme: Wire) -> None:
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
def test_without_accept_json_the_response_is_a_stream(acme: Wire, accept: str | None) -> None:
    run_id = acme.create("conformance-noop")
    headers = {} if accept is None else {"Accept": accept}

    response = acme.get(f"/v1/runs/{run_id}/events", headers=headers)

    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("params", [{"streamMode": "nonsense"}, {"bufferMs": "5001"}])
def test_an_invalid_parameter_is_refused_before_the_format_is_chosen(
    acme: Wire, params: dict[str, str]
) -> None:
    run_id = acme.create("conformance-noop")
    for accept in ("application/json", "text/event-stream"):
        response = acme.get(f"/v1/runs/{run_id}/events", params=params, headers={"Accept": accept})

        assert response.status_code == 400
        assert response.headers["content-type"] == "application/json"
