from __future__ import annotations

import msgspec
import pytest

from wopr.http.mcp.elicitation import form_of
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.interrupts import InboxItem


def item(kind: str, data: JsonObject, answers: JsonObject, **more: Json) -> InboxItem:
    """Return a wait with defaults for what a test does not care about."""
    return msgspec.convert(
        {
            "interruptId": "i",
            "runId": "r",
            "nodeId": "n",
            "workflowId": "w",
            "kind": kind,
            "key": "k",
            "status": "waiting-input",
            "requestedAt": "2026-01-01T00:00:00.000Z",
            "question": "Well?",
            "askedBy": {"nodeName": "Ask", "workflowId": "w"},
            "data": data,
            "answers": answers,
            "answerUrl": "/v1/runs/r/interrupts/n",
            **more,
        },
        InboxItem,
    )


GOVERNED = {"x-host-wopr-governance": {"requiredRole": "admin"}}
QUESTIONS = {"questions": [{"id": "a", "question": "How many?", "schema": {"type": "integer"}}]}
CUSTOM = {"type": "object", "properties": {"size": {"type": "number"}}, "required": ["size"]}


@pytest.mark.parametrize(
    ("wait", "content", "value"),
    [
        (
            item("approval", {}, {"accept": "", "refine": ""}),
            {"action": "refine", "reason": "shorter"},
            {"action": "refine", "refineFeedback": {"scope": "whole", "text": "shorter"}},
        ),
        (
            item("approval", {}, {"ask": ""}),
            {"action": "ask", "reason": "why?"},
            {"action": "ask", "question": "why?"},
        ),
        (
            item("approval", GOVERNED, {"granted": "", "rejected": ""}),
            {"decision": "granted", "reason": "fine"},
            {"decision": "granted", "reason": "fine"},
        ),
        (
            item("low-confidence", {}, {"accept": "", "decision": "", "reject": ""}),
            {"action": "reject"},
            {"action": "reject"},
        ),
        (
            item("x-host-acme-look", {}, {"accept": "", "reject": "", "value": ""}),
            {"action": "accept", "reason": "fine"},
            {"action": "accept", "feedback": "fine"},
        ),
        (item("clarification", QUESTIONS, {"answers": ""}), {"a": 3}, {"answers": {"a": 3}}),
        (
            item("conversation.exchange", {}, {"exchange": "", "close": ""}),
            {"operation": "exchange", "content": "hello"},
            {"operation": "exchange", "turn": {"content": "hello"}},
        ),
        (
            item("custom", {}, {"value": ""}, resumeSchema=CUSTOM),
            {"size": 2},
            {"size": 2},
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, InboxItem) else "",
)
def test_the_content_of_a_form_becomes_the_resume_value_of_its_kind(
    wait: InboxItem, content: JsonObject, value: JsonObject
) -> None:
    form = form_of(wait)

    assert form is not None
    assert form.read(content) == value
    assert content.keys() <= form.schema["properties"].keys()


@pytest.mark.parametrize(
    "wait",
    [
        item("external-event", {"eventType": "paid", "correlation": {}}, {"event": ""}),
        item("approval", {}, {"edit-accept": ""}),
        item("custom", {}, {"value": ""}),
        item("custom", {}, {"value": ""}, resumeSchema={"type": "array"}),
        item(
            "custom",
            {},
            {"value": ""},
            resumeSchema={"type": "object", "properties": {"a": {"type": "object"}}},
        ),
        item(
            "clarification",
            {"questions": [{"id": "a", "question": "Which?", "schema": {"type": "array"}}]},
            {"answers": ""},
        ),
        item("conversation.exchange", {"outcomeSchema": {}}, {"exchange": ""}),
    ],
    ids=lambda wait: wait.kind,
)
def test_a_wait_that_needs_more_than_a_form_can_hold_has_no_form(wait: InboxItem) -> None:
    assert form_of(wait) is None


def test_a_form_names_the_requester_and_cuts_long_text() -> None:
    form = form_of(item("approval", {"artifactData": "x" * 9000}, {"accept": "Goes on."}))

    assert form is not None
    assert form.message.startswith("Well?")
    assert form.message.endswith("Asked by Ask of w, run r.")
    assert len(form.message) < 5000
