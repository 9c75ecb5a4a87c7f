"""Forks over HTTP: created, followed to their end, and compared with their source."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from tests.support.client import DEADLINE_SECONDS, TERMINAL, Wire
from wopr.protocol.documents import Json, JsonObject

ANSWERS: dict[str, JsonObject] = {
    "waiting-approval": {"action": "accept"},
    "waiting-input": {"answers": {"q1": "x"}},
    "waiting-external": {"orderId": "fixture-order-1", "status": "completed"},
}


class EventContent(msgspec.Struct, rename="camel"):
    """The content of an event without its ids and its time."""

    type: str
    payload: msgspec.Raw
    node_id: str = ""


class Log(msgspec.Struct):
    events: list[EventContent]


def log_content(wire: Wire, run_id: str) -> list[tuple[str, str, bytes]]:
    """Return a run's log without ids and times."""
    response = wire.http.get(f"/v1/runs/{run_id}/events", headers={"Accept": "application/json"})
    assert response.status_code == 200, response.text
    log = msgspec.json.decode(response.content, type=Log)
    return [(event.type, event.node_id, bytes(event.payload)) for event in log.events]


def fork(wire: Wire, run_id: str, mode: str = "replay", **body: Json) -> str:
    """Fork a run and return the fork's id."""
    response = wire.post(f"/v1/runs/{run_id}:fork", {"mode": mode, **body})
    assert response.status_code == 201, response.text
    return str(response.json()["runId"])


def forked(wire: Wire, run_id: str, mode: str = "replay", **body: Json) -> str:
    """Fork a run and wait for the fork's end."""
    found = fork(wire, run_id, mode, **body)
    until_ended(wire, found)
    return found


def until_ended(
    wire: Wire, run_id: str, answer: Callable[[JsonObject], None] | None = None
) -> None:
    """Wait for a run's end; until then, call `answer` with each snapshot."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (shown := wire.snapshot(run_id))["status"] not in TERMINAL:
        assert time.monotonic() < deadline, shown
        if answer is not None:
            answer(shown)
        params = {"lastSequence": shown["lastSequence"], "timeout": 1}
        wire.http.get(f"/v1/runs/{run_id}/events/poll", params=params)


def diff(wire: Wire, a: str, b: str) -> JsonObject:
    return wire.document(f"/v1/runs/{a}:diff", params={"against": b})
