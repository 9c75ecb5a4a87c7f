"""A host killed in the middle of its agents' work continues where it stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.agent_definitions import (
    DONE,
    answer,
    child,
    children,
    decision_kinds,
    events_of,
    next_worker,
    only_event,
    phases,
    supervised,
)
from tests.support.client import DEADLINE_SECONDS, Wire
from tests.support.definitions import delay, node, variable, workflow
from tests.support.host import ACME, ServedHost
from wopr.protocol.documents import JsonObject

NewHost = Callable[..., ServedHost]


def killed_and_started(host: ServedHost) -> None:
    host.kill()
    host.start()


@pytest.mark.parametrize("seen", ["runOrchestrator.decided", "node.dispatched", "node.started"])
def test_a_loop_killed_in_every_turn_starts_no_child_twice(new_host: NewHost, seen: str) -> None:
    host = new_host("--conformance")
    with Wire(host.url, ACME) as wire:
        worker = wire.register(
            child(delay("wait", 150), variables=[variable("outcome", defaultValue="done")])
        )
        plan = [next_worker(worker), next_worker(worker, worker), DONE]
        mapping = {"outputMapping": {"result": "outcome"}}
        definition = supervised(*plan, dispatch=mapping, variables=[variable("result")])
        run_id = wire.create(wire.register(definition))
    for times in (1, 2):
        with Wire(host.url, ACME) as wire:
            wire.events_until(run_id, seen, times=times)
        killed_and_started(host)

    with Wire(host.url, ACME) as wire:
        found = wire.finished(run_id)
        log = wire.log(run_id)

        assert found["status"] == "completed"
        assert decision_kinds(log) == ["next-worker", "next-worker", "terminate"]
        assert len(set(children(log))) == 3
        once = ["dispatch.began", "dispatch.succeeded", "child.completed", "output.harvested"]
        assert phases(log) == once * 3
        page = wire.document("/v1/runs", params={"workflowId": worker})
        assert {item["runId"] for item in page["items"]} == set(children(log))
        assert [event["sequence"] for event in log] == list(range(len(log)))


def test_a_held_decision_survives_a_crash_and_is_carried_out_once(new_host: NewHost) -> None:
    host = new_host("--conformance")
    with Wire(host.url, ACME) as wire:
        unsure = next_worker("conformance-noop", confidence=0.1)
        run_id = wire.create(wire.register(supervised(unsure, DONE)))
        wire.events_until(run_id, "interrupt.requested")
    killed_and_started(host)

    with Wire(host.url, ACME) as wire:
        assert wire.snapshot(run_id)["status"] == "waiting-approval"
        answer(wire, run_id, "dispatch", {"action": "accept"})

        assert wire.finished(run_id)["status"] == "completed"
        assert len(children(wire.log(run_id))) == 1


class BlockingService:
    """A service that blocks its clients until it is opened."""

    def __init__(self) -> None:
        self.keys: list[str | None] = []
        self.reached = threading.Event()
        self.opened = threading.Event()
        door = self

        class Waiter(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                door.keys.append(self.headers.get("idempotency-key"))
                door.reached.set()
                door.opened.wait(DEADLINE_SECONDS)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Waiter)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def door() -> Iterator[BlockingService]:
    built = BlockingService()
    thread = threading.Thread(target=built.server.serve_forever, args=(0.05,))
    thread.start()
    yield built
    built.opened.set()
    built.server.shutdown()
    thread.join()
    built.server.server_close()


def test_a_tool_call_interrupted_by_a_crash_is_one_call_with_one_return(
    new_host: NewHost, door: BlockingService
) -> None:
    host = new_host(WOPR_ALLOW_PRIVATE_DESTINATIONS="1")
    config: JsonObject = {"url": door.url, "method": "POST"}
    with Wire(host.url, ACME) as wire:
        call = node("call", "wopr.http.request", config=config)
        run_id = wire.create(wire.register(workflow([call])))
        assert door.reached.wait(DEADLINE_SECONDS)
        # The call is logged before it is made.
        assert [e["type"] for e in wire.log(run_id)][-1] == "agent.toolCalled"
    host.kill()
    door.opened.set()
    host.start()

    with Wire(host.url, ACME) as wire:
        assert wire.finished(run_id)["status"] == "completed"
        log = wire.log(run_id)

    called, returned = only_event(log, "agent.toolCalled"), only_event(log, "agent.toolReturned")
    assert returned["causationId"] == called["eventId"]
    assert returned["payload"]["callId"] == called["payload"]["callId"]
    assert len(set(door.keys)) == 1
    assert events_of(log, "node.retried") == []
