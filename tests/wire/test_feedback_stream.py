"""`run.annotated` is sent only to live readers of updates."""

from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.feedback import CANARY, annotate, live_run, until
from tests.support.recorder import NOTICE
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.both_stores


@pytest.mark.parametrize("mode", ["updates", "debug", "updates,messages"])
def test_a_reader_of_updates_receives_annotations(acme: Wire, mode: str) -> None:
    with live_run(acme) as run_id, acme.stream(run_id, streamMode=mode) as frames:
        until(frames, "node.completed")

        stored = annotate(acme, run_id, {"kind": "correction", "correction": f"not {CANARY}"})
        heard = until(frames, NOTICE)[-1]

    assert heard.id == ""
    assert heard.json == stored
    assert CANARY not in heard.data


@pytest.mark.parametrize("mode", ["values", "messages"])
def test_a_reader_of_values_or_messages_receives_no_annotations(acme: Wire, mode: str) -> None:
    with live_run(acme) as run_id, acme.stream(run_id, streamMode=mode) as frames:
        annotate(acme, run_id)
        acme.post(f"/v1/runs/{run_id}/cancel")

        events = [frame.event for frame in frames]

    assert NOTICE not in events


def test_every_reader_receives_it_once_and_the_log_does_not_contain_it(acme: Wire) -> None:
    with (
        live_run(acme) as run_id,
        acme.stream(run_id) as one,
        acme.stream(run_id, streamMode="debug") as other,
    ):
        until(one, "node.completed")
        until(other, "node.completed")
        stored = [annotate(acme, run_id)["annotationId"] for _ in range(3)]
        acme.post(f"/v1/runs/{run_id}/cancel")

        rest = [list(one), list(other)]

    for frames in rest:
        heard = [frame.json["annotationId"] for frame in frames if frame.event == NOTICE]
        assert heard == stored
        assert frames[-1].event == "run.cancelled"
        sequences = [int(frame.id) for frame in frames if frame.event != NOTICE]
        assert sequences == sorted(set(sequences))


def test_a_later_or_resumed_reader_does_not_receive_it(acme: Wire) -> None:
    with live_run(acme) as run_id:
        annotate(acme, run_id)
        with (
            acme.stream(run_id) as fresh,
            acme.stream(run_id, headers={"Last-Event-ID": "0"}) as resumed,
        ):
            until(fresh, "node.completed")
            acme.post(f"/v1/runs/{run_id}/cancel")
            events = [frame.event for frame in (*fresh, *resumed)]

    assert "run.cancelled" in events
    assert NOTICE not in events


def test_a_batching_reader_receives_it_in_a_separate_frame(acme: Wire) -> None:
    with (
        live_run(acme) as run_id,
        acme.stream(run_id, streamMode="debug", bufferMs=5000) as frames,
        acme.stream(run_id) as follower,
    ):
        until(follower, "node.completed")
        stored = annotate(acme, run_id)

        batch, heard = until(frames, NOTICE)[-2:]

    assert heard.json == stored
    assert heard.id == ""
    assert batch.event == "batch"
    assert NOTICE not in [event["type"] for event in batch.json]


def test_neither_poll_nor_the_json_log_contains_it(acme: Wire) -> None:
    with live_run(acme) as run_id:
        newest = acme.poll(run_id, lastSequence=-1)["lastEventSeq"]
        stored = annotate(acme, run_id)

        polled = acme.poll(run_id, lastSequence=newest, timeout=1)

        assert polled["events"] == []
        assert NOTICE not in acme.types(run_id)
        assert stored["annotationId"] not in str(acme.log(run_id))


def test_readers_of_another_run_or_tenant_do_not_receive_it(acme: Wire, globex: Wire) -> None:
    with (
        live_run(acme) as run_id,
        live_run(acme) as other,
        live_run(globex) as foreign,
        acme.stream(other) as beside,
        globex.stream(foreign) as elsewhere,
    ):
        until(beside, "node.completed")
        until(elsewhere, "node.completed")
        annotate(acme, run_id)
        acme.post(f"/v1/runs/{other}/cancel")
        globex.post(f"/v1/runs/{foreign}/cancel")

        events = [frame.event for frame in (*beside, *elsewhere)]

    assert events.count("run.cancelled") == 2
    assert NOTICE not in events


def test_the_notice_is_not_an_event_of_the_protocol_s_log(acme: Wire) -> None:
    schema: JsonObject = acme.document("/v1/schemas/run-event-payloads.json")

    assert NOTICE not in schema["$defs"]
