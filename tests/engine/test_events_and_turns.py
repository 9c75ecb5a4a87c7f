from __future__ import annotations

import pytest

from tests.engine.waits import EVENT, conversation, refusal, wait
from wopr.engine.resume_values import DeliveredValue, TurnValue, read_resume_value
from wopr.protocol.documents import Json

# External events


def test_an_event_matches_when_it_has_every_key_of_the_correlation() -> None:
    event = EVENT["correlation"] | {"more": 1}  # type: ignore[operator]  # an object

    assert read_resume_value(wait("external-event", EVENT), event) == DeliveredValue(event)


def test_an_event_can_be_wrapped_and_is_passed_on_unwrapped() -> None:
    event = {"orderId": "o1", "lines": [1.0, {"n": True}]}

    assert read_resume_value(
        wait("external-event", EVENT), {"eventPayload": event}
    ) == DeliveredValue(event)


def test_a_flat_event_can_have_a_member_named_event_payload() -> None:
    data = {"eventType": "x", "correlation": {"a": 1}}

    assert read_resume_value(
        wait("external-event", data), {"a": 1, "eventPayload": "raw"}
    ) == DeliveredValue({"a": 1, "eventPayload": "raw"})


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"orderId": "o1"},
        {"orderId": "o2", "lines": [1, {"n": True}]},
        {"orderId": "o1", "lines": [1, {"n": 1}]},
        {"orderId": "o1", "lines": [True, {"n": True}]},
        {"orderId": "o1", "lines": [1]},
        {"orderId": "o1", "lines": [1, {"n": True, "m": 1}]},
        {"eventPayload": {"orderId": "o2", "lines": [1, {"n": True}]}},
    ],
)
def test_an_event_that_differs_anywhere_is_a_mismatch(event: Json) -> None:
    refused = refusal(wait("external-event", EVENT), event)

    assert refused.code == "correlation_mismatch"


@pytest.mark.parametrize("value", [None, "paid", 1, []])
def test_an_event_must_be_an_object(value: Json) -> None:
    assert refusal(wait("external-event", EVENT), value).code == "validation_error"


# Conversations


def test_a_turn_keeps_the_conversation_open_and_a_close_ends_it() -> None:
    said = read_resume_value(conversation(), {"operation": "exchange", "turn": {"content": "yes"}})
    closed = read_resume_value(conversation(), {"operation": "close", "outcome": {"ok": True}})

    assert said == TurnValue("yes", is_close=False, outcome="yes")
    assert closed == TurnValue(None, is_close=True, outcome={"ok": True})


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"operation": "open"},
        {"operation": "exchange"},
        {"operation": "exchange", "turn": {}},
    ],
)
def test_an_invalid_turn_is_refused(value: Json) -> None:
    assert refusal(conversation(), value).field.startswith("resumeValue.")


def test_a_turn_must_satisfy_the_schema_of_the_conversation() -> None:
    interrupt = conversation(outcomeSchema={"type": "string"})

    refused = refusal(interrupt, {"operation": "exchange", "turn": {"content": 1}})

    assert refused.field == "resumeValue.turn.content"
