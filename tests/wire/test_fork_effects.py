"""Forks and external calls: a replay uses the record, a branch calls again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.client import Wire
from tests.support.definitions import delay, node, variable, workflow
from tests.support.eventually import eventually
from tests.support.forks import forked, log_content, until_ended
from tests.support.host import ACME, ServedHost, served
from tests.support.webhook_receiver import Handler, Received, Receiver, receiving
from tests.wire.conftest import Connect
from wopr.protocol.documents import JsonObject

APPROVAL = {"title": "May it?", "actions": ["accept", "reject"]}


@pytest.fixture
def outside() -> Iterator[Receiver]:
    """Start a service that answers with the number of its calls."""

    def count(request: Received, handler: Handler) -> None:
        body = b'{"call": %d}' % len(receiver.requests)
        handler.answer(200, body, **{"Content-Type": "application/json"})

    with receiving(count) as receiver:
        yield receiver


@pytest.fixture(scope="module")
def free_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """Start a host whose nodes may call this machine."""
    data_dir = tmp_path_factory.mktemp("free")
    with served(data_dir, "--conformance", WOPR_ALLOW_PRIVATE_DESTINATIONS="1") as running:
        yield running


@pytest.fixture
def wire(free_host: ServedHost, connect: Connect) -> Wire:
    return connect(ACME, free_host)


def calling(outside: Receiver, *around: JsonObject, method: str = "POST") -> JsonObject:
    config = {"url": f"{outside.url}/do", "method": method}
    return workflow([*around, node("call", "wopr.http.request", config=config), node("end")])


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_replay_uses_the_recorded_response_and_makes_no_call(
    wire: Wire, outside: Receiver, method: str
) -> None:
    source = wire.run(wire.register(calling(outside, method=method)))["runId"]

    replays = [forked(wire, source, fromSeq=start) for start in (0, 2, 3)]

    assert len(outside.requests) == 1
    for replay in replays:
        assert log_content(wire, replay) == log_content(wire, source)


def test_a_branch_makes_the_call_again(wire: Wire, outside: Receiver) -> None:
    source = wire.run(wire.register(calling(outside)))["runId"]

    branch = forked(wire, source, "branch", fromSeq=1)

    assert len(outside.requests) == 2
    calls = [wire.snapshot(run)["nodeStates"]["call"]["outputs"] for run in (source, branch)]
    assert [call["body"]["call"] for call in calls] == [1, 2]
    keys = {request.headers["idempotency-key"] for request in outside.requests}
    assert len(keys) == 2


def test_a_branch_from_after_the_call_keeps_its_response(wire: Wire, outside: Receiver) -> None:
    source = wire.run(wire.register(calling(outside)))["runId"]
    after = next(e["sequence"] for e in wire.log(source) if e["type"] == "node.completed") + 1

    forked(wire, source, "branch", fromSeq=after)

    assert len(outside.requests) == 1


def test_failed_attempts_are_replayed_as_they_failed(wire: Wire, outside: Receiver) -> None:
    answers = iter([503, 503, 200])

    def recover(request: Received, handler: Handler) -> None:
        handler.answer(next(answers))

    outside.behave = recover
    config = {"url": f"{outside.url}/do", "method": "GET"}
    retried = node(
        "call",
        "wopr.http.request",
        config=config,
        settings={"maxRetries": 3, "backoff": {"initialMs": 1}},
    )
    source = wire.run(wire.register(workflow([retried])))
    assert source["status"] == "completed"

    replay = forked(wire, source["runId"])

    assert len(outside.requests) == 3
    assert log_content(wire, replay) == log_content(wire, source["runId"])


def test_an_effect_that_the_source_never_reached_fails_the_replay(
    wire: Wire, outside: Receiver
) -> None:
    source = wire.create(wire.register(calling(outside, delay("wait", 120_000))))
    wire.events_until(source, "node.started")
    assert wire.post(f"/v1/runs/{source}/cancel").status_code == 200
    wire.finished(source)

    response = wire.post(f"/v1/runs/{source}:fork", {"mode": "replay"})
    replay = str(response.json()["runId"])
    until_ended(wire, replay)

    assert response.status_code == 201
    failed = [event for event in wire.log(replay) if event["type"] == "node.failed"]
    assert [(e["nodeId"], e["payload"]["error"]["code"]) for e in failed] == [
        ("call", "replay_source_missing")
    ]
    assert "node.completed" not in [
        e["type"] for e in wire.log(replay) if e.get("nodeId") == "call"
    ]
    assert outside.requests == []


def test_replays_of_a_cancelled_run_are_equal(wire: Wire, outside: Receiver) -> None:
    source = wire.create(wire.register(calling(outside, delay("wait", 120_000))))
    wire.events_until(source, "node.started")
    wire.post(f"/v1/runs/{source}/cancel")
    wire.finished(source)

    first, second = forked(wire, source), forked(wire, source)

    assert log_content(wire, first) == log_content(wire, second)


def test_a_branch_has_changed_options_and_keeps_the_others(wire: Wire) -> None:
    definition = workflow([node("a"), node("b")])
    source = wire.run(
        wire.register(definition),
        configurable={"recursionLimit": 9, "own": {"x": 1}},
        tags=["red"],
        metadata={"who": "ada", "why": "test"},
    )
    overlay = {"configurable": {"recursionLimit": 7}, "tags": ["blue"], "metadata": {"who": "bob"}}

    for start in (0, 3):
        branch = forked(wire, source["runId"], "branch", fromSeq=start, runOptionsOverlay=overlay)
        shown = wire.snapshot(branch)
        assert shown["configurable"] == {"recursionLimit": 7, "own": {"x": 1}}
        assert shown["tags"] == ["blue"]
        assert shown["metadata"] == {"who": "bob", "why": "test"}
        listed = wire.document("/v1/runs", params={"tag": "blue"})["items"]
        assert branch in [item["runId"] for item in listed]
    assert wire.snapshot(source["runId"])["tags"] == ["red"]


def test_an_overlay_affects_the_branch(wire: Wire) -> None:
    definition = workflow([node("a"), node("b"), node("c")])
    source = wire.run(wire.register(definition))["runId"]
    overlay = {"configurable": {"recursionLimit": 2}}

    branch = forked(wire, source, "branch", fromSeq=3, runOptionsOverlay=overlay)

    assert wire.snapshot(branch)["error"]["code"] == "recursion_limit_exceeded"


def until_waiting_at(wire: Wire, run_id: str, node_id: str) -> None:
    """Wait until the run waits for an approval at a node."""

    def is_waiting() -> bool:
        shown = wire.snapshot(run_id)
        return (shown["status"], shown.get("currentNodeId")) == ("waiting-approval", node_id)

    eventually(is_waiting)


def approve(wire: Wire, run_id: str, node_id: str) -> None:
    body = {"resumeValue": {"action": "accept"}}
    response = wire.post(f"/v1/runs/{run_id}/interrupts/{node_id}", body)
    assert response.status_code == 200, response.text


def test_answers_before_the_fork_point_are_kept_and_later_ones_are_asked_again(
    wire: Wire,
) -> None:
    gates = [node(name, "core.approvalGate", config=APPROVAL) for name in ("first", "second")]
    source = wire.create(wire.register(workflow(gates)))
    for name in ("first", "second"):
        until_waiting_at(wire, source, name)
        approve(wire, source, name)
    wire.finished(source)
    after_first = next(
        e["sequence"]
        for e in wire.log(source)
        if e["type"] == "node.completed" and e["nodeId"] == "first"
    )

    branch = str(
        wire.post(f"/v1/runs/{source}:fork", {"mode": "branch", "fromSeq": after_first + 1}).json()[
            "runId"
        ]
    )
    replay = forked(wire, source)

    asked = [
        e["nodeId"]
        for e in wire.events_until(branch, "approval.requested")
        if e["type"] == "node.suspended"
    ]
    assert asked[0] == "first"
    until_waiting_at(wire, branch, "second")
    approve(wire, branch, "second")
    assert wire.finished(branch)["status"] == "completed"
    assert log_content(wire, replay) == log_content(wire, source)


def test_variables_and_channels_at_the_fork_point_are_those_of_the_history(wire: Wire) -> None:
    write = {"channelName": "c", "value": "one", "reducer": "append"}
    definition = workflow(
        [
            node("set", "core.setVariable", config={"name": "x", "value": 1}),
            node("write", "core.channelWrite", config=write),
            node("more", "core.channelWrite", config=write | {"value": "two"}),
            node("add", "core.setVariable", config={"name": "x", "expression": "variables.x + 1"}),
        ],
        variables=[variable("x", "number")],
    )
    source = wire.run(wire.register(definition))

    # Within a node's execution the node is executed again, and writes once more.
    ends = [e["sequence"] for e in wire.log(source["runId"]) if e["type"] == "node.completed"]
    for start in (0, 1, *(end + 1 for end in ends)):
        shown = wire.snapshot(forked(wire, source["runId"], "branch", fromSeq=start))
        assert shown["variables"] == source["variables"]
        assert shown["status"] == "completed"
