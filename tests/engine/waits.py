"""Waits of every kind, and the errors of answers that they refuse."""

from __future__ import annotations

import pytest
from hypothesis import settings

from wopr.engine.interrupts import Interrupt, waiting_status
from wopr.engine.resume_values import InvalidResumeValue, read_resume_value
from wopr.protocol.documents import Json, JsonObject

ACTIONS = ["accept", "reject", "refine", "edit-accept", "ask"]
EVENT = {"eventType": "order.paid", "correlation": {"orderId": "o1", "lines": [1, {"n": True}]}}

quick = settings(max_examples=200, deadline=None)


def wait(kind: str, data: JsonObject, **more: Json) -> Interrupt:
    """Return a pending wait of this kind."""
    return Interrupt(
        interrupt_id="int-gate:0",
        kind=kind,
        event_kind=kind,
        key="gate:0",
        requested_at=0,
        suspended_event="e1",
        status=waiting_status(kind),
        data=data,
        **more,
    )


def gate(actions: list[str] | None = None, **data: Json) -> Interrupt:
    base = {"artifactId": "a", "artifactType": "draft", "title": "Fine?"}
    return wait("approval", base | {"actions": ACTIONS if actions is None else actions} | data)


def conversation(**data: Json) -> Interrupt:
    return wait("conversation.exchange", {"conversationId": "c", "prompt": "So?"} | data)


def refusal(interrupt: Interrupt, value: Json) -> InvalidResumeValue:
    with pytest.raises(InvalidResumeValue) as caught:
        read_resume_value(interrupt, value)
    return caught.value
