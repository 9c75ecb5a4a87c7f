from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from wopr.api.events import Frame
from wopr.api.text import plain, short
from wopr.cli.runs.events import event_line, summary

if TYPE_CHECKING:
    from tests.cli.conftest import FakeHost, Wopr

HOSTILE = (
    "[bold red]x[/] \x1b[2J\x1b]0;title\x07 \u009b31m \u202eevil :smile: [link=http://x]y[/link]"
)
SHOWN = "[bold red]x[/] [2J]0;title 31m evil :smile: [link=http://x]y[/link]"
UNSAFE = set("\x1b\x07\u009b\u202e")


def test_hostile_text_becomes_plain_text() -> None:
    assert plain(HOSTILE) == SHOWN
    assert plain("one\r\ntwo\tthree") == "one two three"
    assert plain("\ud800") == ""


def test_hostile_text_in_a_run_is_shown_as_text(host: FakeHost, wopr: Wopr) -> None:
    host.run(
        status="failed",
        error={"code": "c", "message": HOSTILE},
        outputs={HOSTILE: HOSTILE},
        tags=[HOSTILE],
        nodeStates={HOSTILE: {"status": HOSTILE, "reason": HOSTILE}},
    )

    result = wopr("runs", "show", "r1")

    assert f"c: {SHOWN}" in result.stdout
    assert f"tags        {SHOWN}" in result.stdout
    assert not UNSAFE & set(result.stdout)


def test_hostile_text_in_an_event_is_shown_as_text(host: FakeHost, wopr: Wopr) -> None:
    host.run()
    event = host.event(0, "log.appended", HOSTILE.replace("\n", ""), message=HOSTILE)
    host.stream("r1", [event, host.event(1, "run.completed")])

    result = wopr("runs", "tail", "r1")

    assert "[bold red]x[/]" in result.stdout
    assert not UNSAFE & set(result.stdout)


def test_hostile_text_in_an_error_is_shown_as_text(host: FakeHost, wopr: Wopr) -> None:
    errors = [{"path": HOSTILE, "message": HOSTILE}]
    host.refuse("GET /v1/runs/r1", 400, "validation_error", HOSTILE, errors=errors)

    result = wopr("runs", "show", "r1")

    assert f"error: {SHOWN}" in result.stderr
    assert not UNSAFE & set(result.stderr)


def test_json_is_the_same_document_without_terminal_control_characters(
    host: FakeHost, wopr: Wopr
) -> None:
    host.answer(
        "GET /v1/runs/r1",
        json.dumps(
            {"runId": HOSTILE[:9], "workflowId": HOSTILE, "status": "running"}, ensure_ascii=False
        ).encode(),
    )

    result = wopr("runs", "show", "r1", "--json")

    assert json.loads(result.stdout)["workflowId"] == HOSTILE
    assert not UNSAFE & set(result.stdout)


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ({"outputs": {"message": "hi", "n": 1}}, 'outputs message="hi" n=1'),
        ({"nodeId": "a", "runId": "r", "typeId": "t"}, 'typeId="t"'),
        (
            {"error": {"code": "x", "message": "m"}, "attempts": 2},
            'error code="x" message="m"  attempts=2',
        ),
        ({"empty": {}, "none": None, "zero": 0}, "zero=0"),
        (None, ""),
        ("text", '"text"'),
        ([1, 2], "[1,2]"),
        ({"ok": False}, "ok=false"),
    ],
)
def test_a_payload_is_summarized(payload: object, told: str) -> None:
    assert summary(payload) == told


def test_long_values_and_long_payloads_are_cut() -> None:
    assert len(short("x" * 500)) == 72
    assert len(summary({f"k{n}": "x" * 50 for n in range(50)})) == 160


@pytest.mark.parametrize(
    "data",
    [
        {"payload": {"a": 1}},
        {"payload": None, "timestamp": "never", "sequence": 3},
        {"sequence": "three", "nodeId": 5},
        {"a": 1},
        {},
    ],
)
def test_a_frame_of_any_form_is_printed_as_a_line(data: dict[str, object]) -> None:
    frame = Frame("run.annotated", json.dumps(data).encode())

    assert "run.annotated" in event_line(frame, "2026-01-02T03:04:05.000Z").plain


def test_a_pipe_gets_no_colour_and_no_wrapping(host: FakeHost, wopr: Wopr) -> None:
    host.run(outputs={"long": "x" * 500})

    result = wopr("runs", "show", "r1")

    assert "\x1b" not in result.stdout
    assert "x" * 500 in result.stdout
