from __future__ import annotations

import time

import pytest

from tests.support.client import Wire
from tests.wire.timing import is_within

LONGEST_MS = 5000


@pytest.mark.parametrize("milliseconds", ["5001", "-1", "abc", "", "1.5", "9" * 30, "٣"])
def test_a_buffer_out_of_bounds_is_refused(acme: Wire, milliseconds: str) -> None:
    run_id = acme.create("conformance-noop")

    response = acme.get(f"/v1/runs/{run_id}/events", params={"bufferMs": milliseconds})

    assert response.status_code == 400
    assert response.json()["error"] == "validation_error"
    assert response.json()["details"]["field"] == "bufferMs"


@pytest.mark.parametrize("milliseconds", [1, LONGEST_MS])
def test_a_buffered_stream_sends_every_event_inside_batches(acme: Wire, milliseconds: int) -> None:
    run_id = acme.create("conformance-delay", {"delayMs": 30})

    frames = acme.frames(run_id, streamMode="debug", bufferMs=milliseconds)

    events = [event for frame in frames for event in frame.json]
    assert {frame.event for frame in frames} == {"batch"}
    assert events == acme.log(run_id)
    assert all(frame.json for frame in frames)
    assert [int(f.id) for f in frames] == [f.json[-1]["sequence"] for f in frames]


def test_a_buffer_of_zero_disables_batching(acme: Wire) -> None:
    run_id = acme.create("conformance-noop")

    assert acme.frames(run_id, bufferMs=0) == acme.frames(run_id)


def test_the_terminal_event_does_not_wait_for_a_long_buffer(acme: Wire) -> None:
    def seconds() -> float:
        began = time.monotonic()
        run_id = acme.create("conformance-delay", {"delayMs": 100})
        frames = acme.frames(run_id, bufferMs=LONGEST_MS)
        took = time.monotonic() - began

        assert frames[-1].json[-1]["type"] == "run.completed"
        return took

    assert is_within(LONGEST_MS / 1000, seconds)


def test_a_buffered_batch_is_sent_when_its_time_is_over(acme: Wire) -> None:
    run_id = acme.create("conformance-cancellable")
    began = time.monotonic()

    with acme.stream(run_id, streamMode="debug", bufferMs=150) as frames:
        first = next(frames)
    waited = time.monotonic() - began

    assert acme.snapshot(run_id)["status"] == "running"
    acme.post(f"/v1/runs/{run_id}/cancel")
    assert [event["type"] for event in first.json] == ["run.started", "node.started"]
    assert waited > 0.1
