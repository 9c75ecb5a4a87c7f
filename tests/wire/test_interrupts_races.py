from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.client import Wire
from tests.support.host import ACME, ServedHost
from tests.support.interrupts import (
    ACCEPT,
    REJECT,
    accepted,
    answer,
    by_token,
    events,
    external,
    gate,
    inbox,
    payload,
    principal_of,
    token_of,
    waiting_run,
)
from tests.wire.conftest import Connect
from wopr.protocol.documents import Json

pytestmark = pytest.mark.both_stores

CLIENTS = 50


def at_once(calls: list[Callable[[], httpx.Response]]) -> list[httpx.Response]:
    with ThreadPoolExecutor(max_workers=len(calls)) as pool:
        return [done.result() for done in [pool.submit(call) for call in calls]]


@pytest.fixture
def crowd(connect: Connect) -> list[Wire]:
    """Connect fifty clients with separate connections."""
    return [connect(ACME) for _ in range(CLIENTS)]


def test_one_of_fifty_equal_answers_is_accepted_and_the_others_get_its_author(
    acme: Wire, crowd: list[Wire]
) -> None:
    run_id = waiting_run(acme, gate())

    responses = at_once([lambda w=w: answer(w, run_id, "gate", ACCEPT) for w in crowd])  # type: ignore[misc]  # each its own

    assert Counter(r.status_code for r in responses) == {200: 1, 409: CLIENTS - 1}
    for late in (r.json() for r in responses if r.status_code == 409):
        assert late["error"] == "interrupt_already_resolved"
        assert late["details"]["resolvedBy"] == principal_of(ACME)
    assert len(events(acme, run_id, "interrupt.resolved")) == 1
    assert acme.types(run_id).count("run.completed") == 1


def test_the_first_of_concurrent_accepts_and_rejects_decides(acme: Wire, crowd: list[Wire]) -> None:
    run_id = waiting_run(acme, gate())
    values = [ACCEPT, REJECT] * (CLIENTS // 2)

    responses = at_once(
        [
            lambda w=w, v=v: answer(w, run_id, "gate", v)  # type: ignore[misc]  # each its own
            for w, v in zip(crowd, values, strict=True)
        ]
    )

    [winner] = [r for r in responses if r.status_code == 200]
    decided = payload(acme, run_id, "approval.received")["action"]
    assert winner.json()["status"] == ("completed" if decided == "accept" else "failed")
    assert acme.snapshot(run_id)["status"] == winner.json()["status"]


def test_answers_and_a_token_compete_for_one_wait(acme: Wire, crowd: list[Wire]) -> None:
    run_id = waiting_run(acme, external())
    token = token_of(acme, run_id)
    event = {"orderId": "o1"}

    def call(index: int, wire: Wire) -> httpx.Response:
        if index % 2:
            return by_token(wire, token, event)
        return answer(wire, run_id, "wait", event)

    responses = at_once([lambda i=i, w=w: call(i, w) for i, w in enumerate(crowd)])  # type: ignore[misc]  # each its own

    assert Counter(r.status_code for r in responses) == {200: 1, 409: CLIENTS - 1}
    assert len(events(acme, run_id, "interrupt.resolved")) == 1


def test_concurrent_votes_are_all_counted_once(acme: Wire, crowd: list[Wire]) -> None:
    run_id = waiting_run(acme, gate(requiredApprovals=CLIENTS))

    def vote(index: int, wire: Wire) -> httpx.Response:
        return answer(wire, run_id, "gate", ACCEPT | {"voter": f"v{index}"})

    responses = at_once([lambda i=i, w=w: vote(i, w) for i, w in enumerate(crowd)])  # type: ignore[misc]  # each its own

    assert {r.status_code for r in responses} == {200}
    assert acme.snapshot(run_id)["status"] == "completed"
    granted = [
        e["payload"]["quorumProgress"]["granted"] for e in events(acme, run_id, "approval.granted")
    ]
    assert granted == list(range(1, CLIENTS + 1))


def test_a_concurrent_answer_and_cancel_cause_one_end(acme: Wire, crowd: list[Wire]) -> None:
    for _ in range(5):
        run_id = waiting_run(acme, gate())
        calls: list[Callable[[], httpx.Response]] = [
            lambda r=run_id: answer(crowd[0], r, "gate", ACCEPT),  # type: ignore[misc]  # this run
            lambda r=run_id: crowd[1].post(f"/v1/runs/{r}/cancel", {}),  # type: ignore[misc]  # this run
        ]

        answered, cancelled = at_once(calls)

        status = acme.snapshot(run_id)["status"]
        assert cancelled.status_code == 200
        assert answered.status_code == (200 if status == "completed" else 422)
        assert inbox(acme, runId=run_id) == []


@pytest.mark.parametrize(
    ("waits", "node_id", "value"),
    [
        (gate(), "gate", ACCEPT),
        (external(), "wait", {"orderId": "o1"}),
        (
            gate("ask", "core.clarificationGate", questions=[{"id": "q", "question": "?"}]),
            "ask",
            {"answers": {"q": 1}},
        ),
        (gate("convo", "core.conversationGate"), "convo", {"operation": "close"}),
    ],
    ids=["approval", "external-event", "clarification", "conversation"],
)
def test_a_wait_survives_a_killed_host(
    tmp_path: Path, waits: dict[str, Json], node_id: str, value: Json
) -> None:
    host = ServedHost(tmp_path)
    host.start()
    with Wire(host.url, ACME) as wire:
        run_id = waiting_run(wire, waits)
        token = token_of(wire, run_id)
        [before] = inbox(wire, runId=run_id)
        log = wire.log(run_id)

    host.kill()
    host.start()

    with Wire(host.url, ACME) as wire:
        [after] = inbox(wire, runId=run_id)
        assert after | {"ageMs": 0} == before | {"ageMs": 0}
        assert wire.log(run_id) == log
        assert wire.document(f"/v1/interrupts/{token}")["kind"] == before["kind"]
        assert accepted(wire, run_id, node_id, value) == "completed"
        assert wire.log(run_id)[: len(log)] == log
    host.stop()


def test_votes_survive_a_killed_host(tmp_path: Path) -> None:
    host = ServedHost(tmp_path, ("--conformance",))
    host.start()
    with Wire(host.url, ACME) as wire:
        run_id = waiting_run(wire, gate(requiredApprovals=2))
        accepted(wire, run_id, "gate", ACCEPT | {"voter": "a"})

    host.kill()
    host.start()

    with Wire(host.url, ACME) as wire:
        assert accepted(wire, run_id, "gate", ACCEPT | {"voter": "a"}) == "waiting-approval"
        assert accepted(wire, run_id, "gate", ACCEPT | {"voter": "b"}) == "completed"
    host.stop()
