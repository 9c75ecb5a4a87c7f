from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.client import Wire
from tests.support.definitions import node, variable, workflow
from tests.support.host import ACME, ServedHost
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.both_stores


def test_a_poll_without_a_sequence_begins_at_the_first_event(acme: Wire) -> None:
    run_id = acme.create("conformance-noop")

    page = acme.poll(run_id, timeout=1)

    assert page["events"] == acme.log(run_id)
    assert page == {
        "runId": run_id,
        "events": page["events"],
        "lastEventSeq": 3,
        "runStatus": "completed",
        "isTerminal": True,
        "isComplete": True,
    }


@pytest.mark.parametrize("name", ["lastSequence", "since"])
def test_the_last_sequence_is_exclusive_under_both_of_its_names(acme: Wire, name: str) -> None:
    run_id = acme.create("conformance-noop")

    zero = acme.poll(run_id, **{name: 0}, timeout=1)
    two = acme.poll(run_id, **{name: 2}, timeout=1)

    assert [event["sequence"] for event in zero["events"]] == [1, 2, 3]
    assert [event["sequence"] for event in two["events"]] == [3]


@pytest.mark.parametrize("last", [3, 4, 1_000_000])
def test_after_the_end_of_an_ended_run_a_poll_is_empty_at_once(acme: Wire, last: int) -> None:
    run_id = acme.create("conformance-noop")

    # A host that waited would respond too late for this client.
    query = {"lastSequence": last, "timeout": 60}
    page = acme.document(f"/v1/runs/{run_id}/events/poll", params=query, timeout=30)

    assert page["events"] == []
    assert page["isComplete"]


def test_a_poll_waits_for_the_next_event(acme: Wire) -> None:
    run_id = acme.create("conformance-delay", {"delayMs": 300})

    page = acme.poll(run_id, lastSequence=1, timeout=30)

    assert page["events"][0]["type"] == "node.completed"


def test_a_poll_ends_at_its_timeout(acme: Wire) -> None:
    run_id = acme.create("conformance-cancellable")
    began = time.monotonic()

    page = acme.poll(run_id, lastSequence=1, timeout=1)
    waited = time.monotonic() - began

    acme.post(f"/v1/runs/{run_id}/cancel")
    assert waited > 0.9
    assert page["events"] == []
    assert page["lastEventSeq"] == 1
    assert (page["isTerminal"], page["isComplete"]) == (False, False)


def test_a_waiting_poll_returns_the_cancel_event(acme: Wire, host: ServedHost) -> None:
    run_id = acme.create("conformance-cancellable")

    with Wire(host.url, ACME) as other, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.poll, run_id, lastSequence=1, timeout=30)
        acme.post(f"/v1/runs/{run_id}/cancel")
        page = waiting.result(timeout=60)

    assert page["events"][-1]["type"] == "run.cancelled"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lastSequence", "abc"),
        ("lastSequence", "-2"),
        ("lastSequence", "9" * 30),
        ("since", "1.5"),
        ("timeout", "-1"),
        ("timeout", "61"),
        ("timeout", "soon"),
        ("timeout", ""),
    ],
)
def test_an_invalid_number_is_refused_by_name(acme: Wire, name: str, value: str) -> None:
    run_id = acme.create("conformance-noop")

    response = acme.get(f"/v1/runs/{run_id}/events/poll", params={name: value})

    assert response.status_code == 400
    assert response.json()["error"] == "validation_error"
    assert response.json()["details"]["field"] == name


def test_polling_page_by_page_returns_the_log_of_a_long_run(acme: Wire) -> None:
    tokens = {"tokens": [f"t{number}" for number in range(1200)]}
    mock = {"mockProvider": {"id": "stream-text", "config": tokens}}
    run_id = acme.create("conformance-stream-text", configurable=mock)
    acme.finished(run_id)
    events: list[JsonObject] = []

    while not (page := acme.poll(run_id, lastSequence=len(events) - 1, timeout=1))["isComplete"]:
        events += page["events"]
    events += page["events"]

    assert [event["sequence"] for event in events] == list(range(1205))
    assert events == acme.log(run_id)


def test_the_log_of_an_ended_run_has_the_same_bytes_every_time(acme: Wire) -> None:
    run_id = acme.create("conformance-failure")
    acme.finished(run_id)
    path = f"/v1/runs/{run_id}/events/poll"

    answers = {acme.get(path).content for _ in range(3)}

    assert len(answers) == 1


def test_a_timeout_of_zero_returns_the_available_events_at_once(acme: Wire) -> None:
    run_id = acme.create("conformance-approval")
    log = acme.events_until(run_id, "interrupt.requested")

    page = acme.poll(run_id, timeout=0)
    past = acme.poll(run_id, lastSequence=page["lastEventSeq"], timeout=0)

    assert page["events"][: len(log)] == log
    assert past["events"] == []
    assert (past["isTerminal"], past["isComplete"]) == (False, False)
    assert past["runStatus"] == "waiting-approval"


def test_polls_return_a_large_log_in_parts_of_limited_size(acme: Wire) -> None:
    text = {"type": "variable", "variableName": "text"}
    nodes = [node(f"n{number}", "core.identity", inputs={"text": text}) for number in range(12)]
    definition = workflow(nodes, variables=[variable("text")])
    run_id = acme.create(acme.register(definition), {"text": "x" * 100_000})
    acme.finished(run_id)

    pages = [acme.poll(run_id, timeout=0)]
    while not pages[-1]["isComplete"]:
        pages.append(acme.poll(run_id, lastSequence=pages[-1]["lastEventSeq"], timeout=0))

    assert [event for page in pages for event in page["events"]] == acme.log(run_id)
    assert max(len(json.dumps(page)) for page in pages) < 500_000


def test_one_poll_returns_many_small_events(acme: Wire) -> None:
    nodes = [node(f"n{number}") for number in range(120)]
    run_id = acme.create(acme.register(workflow(nodes)))
    acme.finished(run_id)

    page = acme.poll(run_id, timeout=0)

    assert page["isComplete"]
    assert page["events"] == acme.log(run_id)
