from __future__ import annotations

import pytest

from wopr.feedback.judges import (
    MAX_EVENT_BYTES,
    MAX_EVENTS,
    InvalidJudgeOutput,
    JudgeSkipped,
    annotation_of,
    first_events,
    judge_inputs,
)
from wopr.protocol.documents import Json, JsonObject
from wopr.store.port import StoredEvent

SNAPSHOT = b'{"runId":"r","outputs":{"text":"hi","parts":["a","b"]}}'


def event(sequence: int, body: bytes = b"{}") -> StoredEvent:
    return StoredEvent(sequence=sequence, type="node.completed", body=body)


@pytest.mark.parametrize(
    ("outputs", "signal"),
    [
        ({"rating": 4}, {"kind": "rating", "rating": 4}),
        ({"rating": 4.0}, {"kind": "rating", "rating": 4}),
        ({"label": "tone"}, {"kind": "label", "label": "tone"}),
        ({"correction": ""}, {"kind": "correction", "correction": ""}),
        ({"flag": True}, {"kind": "flag"}),
        ({"flag": False, "rating": 2}, {"kind": "rating", "rating": 2}),
        ({"flag": True, "rating": None, "cost": 3}, {"kind": "flag"}),
        ({"end": {"rating": 1}}, {"kind": "rating", "rating": 1}),
    ],
    ids=str,
)
def test_outputs_that_name_one_signal_are_a_verdict(outputs: Json, signal: JsonObject) -> None:
    request = annotation_of(outputs)

    given = {name: getattr(request.signal, name) for name in signal}
    assert given == signal


def test_a_verdict_can_have_a_note() -> None:
    assert annotation_of({"rating": 3, "note": "because"}).note == "because"


@pytest.mark.parametrize(
    "outputs",
    [
        *(None, [], "good", {}, {"a": {"rating": 1}, "b": {"rating": 2}}),
        *({"rating": 0}, {"rating": 2.5}, {"rating": True}, {"label": 3}),
        *({"flag": 1}, {"rating": 3, "label": "x"}, {"rating": 3, "note": 5}),
    ],
    ids=str,
)
def test_invalid_outputs_are_no_verdict(outputs: Json) -> None:
    with pytest.raises(InvalidJudgeOutput):
        annotation_of(outputs)


def test_a_judge_that_flags_nothing_gives_no_signal() -> None:
    with pytest.raises(JudgeSkipped):
        annotation_of({"flag": False})


def test_a_judge_gets_the_run_and_its_log_marked_untrusted() -> None:
    inputs = judge_inputs(SNAPSHOT, [event(0, b'{"sequence":0}')], 3, {})

    assert inputs == {
        "run": {"runId": "r", "outputs": {"text": "hi", "parts": ["a", "b"]}},
        "events": [{"sequence": 0}],
        "eventsLeftOut": 2,
        "contentTrust": "untrusted",
    }


def test_a_mapping_includes_named_values_and_omits_missing_ones() -> None:
    mapping = {
        "answer": "run.outputs.text",
        "second": "run.outputs.parts.1",
        "none": "run.outputs.parts.7",
        "odd": "run.outputs.parts.-1",
        "deep": "run.runId.x",
        "missing": "run.nothing",
        "log": "events",
    }

    inputs = judge_inputs(SNAPSHOT, [], 0, mapping)

    assert inputs == {"answer": "hi", "second": "b", "log": [], "contentTrust": "untrusted"}


def test_a_long_log_is_limited_by_number_and_size() -> None:
    many = [event(n) for n in range(MAX_EVENTS + 5)]
    large = [event(n, b"x" * (MAX_EVENT_BYTES // 2)) for n in range(4)]

    assert len(first_events(many)) == MAX_EVENTS
    assert [kept.sequence for kept in first_events(large)] == [0, 1]
