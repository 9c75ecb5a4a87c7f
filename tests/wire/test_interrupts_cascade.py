from __future__ import annotations

import time

import pytest

from tests.support.client import Wire
from tests.support.interrupts import (
    ACCEPT,
    REJECT,
    accepted,
    answer,
    by_token,
    inbox,
    payload,
    refused,
    token_of,
    until_waiting,
)
from tests.wire.timing import is_within
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.both_stores

PARENT = "conformance-interrupt-parent-child-cancel"
CASCADE_SECONDS = 5


def family(wire: Wire) -> tuple[str, str, JsonObject]:
    """Start a parent that waits with its child; return both ids and the parent's snapshot."""
    parent = wire.create(PARENT)
    shown = until_waiting(wire, parent)
    [child] = shown["childRuns"]
    return parent, str(child["runId"]), shown


def test_a_parent_shows_where_its_child_waits(fixtures: Wire) -> None:
    _, child, shown = family(fixtures)

    assert shown["status"] == "waiting-approval"
    assert shown["currentNodeId"] == "spawn-child"
    assert shown["childRuns"][0]["status"] == "waiting-approval"
    assert fixtures.snapshot(child)["currentNodeId"] == "child-gate"


def test_cancelling_the_parent_cancels_the_child_and_its_wait(fixtures: Wire) -> None:
    def seconds() -> float:
        parent, child, _ = family(fixtures)
        token = token_of(fixtures, child)
        began = time.monotonic()
        fixtures.post(f"/v1/runs/{parent}/cancel", {"reason": "enough"})
        ended = fixtures.finished(child)
        took = time.monotonic() - began

        assert ended["status"] == fixtures.snapshot(parent)["status"] == "cancelled"
        assert payload(fixtures, child, "run.cancelled") == {
            "reason": "parent-cancelled",
            "parentRunId": parent,
        }
        assert refused(fixtures, child, "child-gate", ACCEPT) == (410, "interrupt_gone")
        late = by_token(fixtures, token, ACCEPT)
        assert (late.status_code, late.json()["error"]) == (410, "interrupt_gone")
        assert inbox(fixtures, runId=child) == []
        return took

    assert is_within(CASCADE_SECONDS, seconds)


def test_an_answered_child_lets_its_parent_continue(fixtures: Wire) -> None:
    parent, child, _ = family(fixtures)

    assert accepted(fixtures, child, "child-gate", ACCEPT) == "completed"

    assert fixtures.finished(parent)["status"] == "completed"


def test_a_rejected_child_fails_its_parent(fixtures: Wire) -> None:
    parent, child, _ = family(fixtures)

    answer(fixtures, child, "child-gate", REJECT)

    assert fixtures.finished(parent)["status"] == "failed"


def test_a_child_s_wait_is_answered_at_the_child_and_not_at_the_parent(fixtures: Wire) -> None:
    parent, child, _ = family(fixtures)

    assert refused(fixtures, parent, "spawn-child", ACCEPT) == (404, "interrupt_not_found")
    assert refused(fixtures, parent, "child-gate", ACCEPT) == (404, "interrupt_not_found")
    assert [item["runId"] for item in inbox(fixtures, runId=child)] == [child]
