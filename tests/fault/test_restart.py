from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice

import msgspec
import pytest

from tests.fault.receiver import receiving
from tests.fault.second_writer import SecondWriter
from tests.support.client import Wire
from tests.support.definitions import delay, node, workflow
from tests.support.eventually import eventually
from tests.support.fragile_host import FragileHost
from wopr.protocol.documents import JsonObject, to_millis
from wopr.runs.active import PendingCancel
from wopr.store.port import PendingCommand

pytestmark = pytest.mark.timeout(600)

NewHost = Callable[..., FragileHost]

LATE_MS = 1000
TRIES = 8


def now_ms() -> int:
    return round(time.time() * 1000)


def crash_and_restart(host: FragileHost) -> int:
    """Kill the host and start it again; return when it served again."""
    host.kill()
    host.start()
    return now_ms()


def instants(wire: Wire, run_id: str, event_type: str) -> list[int]:
    return [to_millis(e["timestamp"]) for e in wire.log(run_id) if e["type"] == event_type]


def started(wire: Wire, definition: JsonObject, *wanted: str) -> str:
    """Start a run of a definition and wait for an event."""
    run_id = wire.create(wire.register(definition))
    wire.events_until(run_id, *(wanted or ("node.started",)))
    return run_id


def is_in_time_once(attempt: Callable[[], bool]) -> bool:
    """Return whether one of several attempts is in time; a busy machine can delay some."""
    return any(attempt() for _ in range(TRIES))


def test_a_delay_continues_after_a_restart(new_host: NewHost) -> None:
    host = new_host()

    def goes_on_in_time() -> bool:
        run_id = started(host.wire, workflow([delay("wait", 4000)]))

        served = crash_and_restart(host)
        found = host.wire.finished(run_id)

        [began] = instants(host.wire, run_id, "node.started")
        [ended] = instants(host.wire, run_id, "node.completed")
        assert found["status"] == "completed"
        assert began + 4000 <= ended
        return ended <= max(began + 4000, served) + LATE_MS

    assert is_in_time_once(goes_on_in_time)


def test_a_delay_that_passed_while_the_host_was_down_ends_at_once(new_host: NewHost) -> None:
    host = new_host()

    def is_over_at_once() -> bool:
        run_id = started(host.wire, workflow([delay("wait", 2000)]))
        host.kill()
        down = now_ms()
        eventually(lambda: now_ms() > down + 2000)

        host.start()
        served = now_ms()
        host.wire.finished(run_id)

        [ended] = instants(host.wire, run_id, "node.completed")
        return down < ended <= served + LATE_MS

    assert is_in_time_once(is_over_at_once)


def test_the_wait_before_a_retry_continues_after_a_restart(new_host: NewHost) -> None:
    host = new_host()
    settings = {"maxRetries": 1, "backoff": {"initialMs": 4000}}
    failing = workflow([node("fail", "core.fail", settings=settings)])

    def goes_on_in_time() -> bool:
        run_id = started(host.wire, failing, "node.retried")

        served = crash_and_restart(host)
        found = host.wire.finished(run_id)

        [retried] = instants(host.wire, run_id, "node.retried")
        [_, again] = instants(host.wire, run_id, "node.started")
        assert found["status"] == "failed"
        assert retried + 4000 <= again
        return again <= max(retried + 4000, served) + LATE_MS

    assert is_in_time_once(goes_on_in_time)


def test_a_deadline_that_passed_while_the_host_was_down_fails_the_run(new_host: NewHost) -> None:
    host = new_host()
    run_id = host.wire.create(
        "conformance-run-duration-breach",
        {"delayMs": 30_000},
        configurable={"runTimeoutMs": 1000},
    )
    began = now_ms()
    host.kill()
    eventually(lambda: now_ms() > began + 1000)

    host.start()
    found = host.wire.finished(run_id)

    types = host.wire.types(run_id)
    assert (found["status"], found["error"]["code"]) == ("failed", "run_timeout")
    assert types[-3:] == ["node.cancelled", "cap.breached", "run.failed"]


def asked_to_pause(wire: Wire, policy: str, milliseconds: int) -> str:
    """Start a run that is asked to pause while its first node waits.

    On a busy machine the request can arrive after the wait; then another run is started.
    """
    definition = workflow([delay("wait", milliseconds), node("after")])
    types: list[str] = []
    for _ in range(TRIES):
        run_id = started(wire, definition)
        answer = wire.post(f"/v1/runs/{run_id}:pause", {"drainPolicy": policy})
        types = wire.types(run_id)
        is_drained = policy != "immediate" and "node.completed" in types
        if answer.status_code == 202 and not is_drained:
            return run_id
    raise AssertionError(f"no run was asked in time; the last one was at {types}")


def test_a_pause_that_waits_for_a_node_survives_a_crash(new_host: NewHost) -> None:
    host = new_host()
    run_id = asked_to_pause(host.wire, "drain-current-node", 3000)

    crash_and_restart(host)
    host.wire.events_until(run_id, "run.paused")

    assert host.wire.types(run_id)[-2:] == ["node.completed", "run.paused"]
    assert host.wire.post(f"/v1/runs/{run_id}:resume").status_code == 202
    assert host.wire.finished(run_id)["status"] == "completed"


@pytest.mark.parametrize("policy", ["immediate", "drain-current-node"])
def test_a_paused_run_stays_paused_and_can_be_resumed(new_host: NewHost, policy: str) -> None:
    host = new_host()
    run_id = asked_to_pause(host.wire, policy, 1500)
    host.wire.events_until(run_id, "run.paused")
    before = host.wire.log(run_id)

    crash_and_restart(host)

    assert host.wire.snapshot(run_id)["status"] == "paused"
    assert host.wire.log(run_id) == before
    assert host.wire.post(f"/v1/runs/{run_id}:resume").status_code == 202
    assert host.wire.finished(run_id)["status"] == "completed"


def family(wire: Wire, milliseconds: int) -> tuple[str, str]:
    """Start a parent that waits for a sleeping child."""
    child = wire.register(workflow([delay("sleep", milliseconds)]))
    calling = workflow([node("call", "core.subWorkflow", config={"workflowId": child})])
    parent_id = started(wire, calling, "node.dispatched")
    [dispatch] = [e for e in wire.log(parent_id) if e["type"] == "node.dispatched"]
    return parent_id, dispatch["payload"]["childRunId"]


def test_a_cancellation_of_the_parent_reaches_the_child(new_host: NewHost) -> None:
    host = new_host()
    parent_id, child_id = family(host.wire, 30_000)
    host.kill()
    # The state after the parent's commit, if the host had died right after it.
    command = msgspec.json.encode(PendingCancel(reason="parent-cancelled", parent_run_id=parent_id))
    rival = SecondWriter(host.database)
    rival.append(parent_id, "node.cancelled", {"nodeId": "call"}, "call")
    rival.append(
        parent_id, "run.cancelled", commands=(PendingCommand(run_id=child_id, body=command),)
    )

    host.start()
    found = host.wire.finished(child_id)

    assert found["status"] == "cancelled"
    assert host.wire.log(child_id)[-1]["payload"] == {
        "reason": "parent-cancelled",
        "parentRunId": parent_id,
    }


def test_an_acknowledged_cancellation_reaches_the_child_after_a_crash(
    new_host: NewHost,
) -> None:
    host = new_host()
    parent_id, child_id = family(host.wire, 30_000)

    answer = host.wire.post(f"/v1/runs/{parent_id}/cancel")
    crash_and_restart(host)

    assert answer.json()["status"] == "cancelled"
    assert host.wire.snapshot(parent_id)["status"] == "cancelled"
    assert host.wire.finished(child_id)["status"] == "cancelled"


def test_a_child_that_ends_after_a_restart_wakes_its_parent(new_host: NewHost) -> None:
    host = new_host()
    parent_id, child_id = family(host.wire, 1500)

    crash_and_restart(host)

    assert host.wire.finished(child_id)["status"] == "completed"
    assert host.wire.finished(parent_id)["status"] == "completed"
    assert host.wire.types(parent_id).count("node.dispatched") == 1


def test_logged_events_are_not_streamed_again(new_host: NewHost) -> None:
    host = new_host()
    words = [f"word{number} " for number in range(12)]
    provider = {"id": "stream-text", "config": {"tokens": words, "delayMsPerToken": 150}}
    run_id = host.wire.create("conformance-stream-text", configurable={"mockProvider": provider})
    with host.wire.stream(run_id, streamMode="messages") as frames:
        heard = [frame.json["chunk"] for frame in islice(frames, 4)]

    crash_and_restart(host)
    host.wire.finished(run_id)

    log = host.wire.log(run_id)
    chunks = [event["payload"]["chunk"] for event in log if event["type"] == "output.chunk"]
    assert heard == words[:4]
    assert chunks == words
    assert host.wire.types(run_id).count("node.started") == 1


def test_truncated_credentials_do_not_prevent_the_start_of_a_host(
    new_host: NewHost,
) -> None:
    host = new_host()
    host.kill()
    host.data_dir.joinpath("credentials.json").write_bytes(b'{"url": "ht')

    host.start()

    assert host.wire.get("/readyz").status_code == 200


def posting(url: str, **settings: object) -> JsonObject:
    config = {"url": url, "method": "POST", "body": {"amount": 1}, "timeoutMs": 60_000}
    effect = node("effect", "wopr.http.request", config=config, settings=settings)
    return workflow([effect, delay("wait", 1500)])


def test_a_recorded_effect_is_not_performed_again(new_host: NewHost) -> None:
    host = new_host(WOPR_ALLOW_PRIVATE_DESTINATIONS="1")
    with receiving() as receiver:
        run_id = started(host.wire, posting(receiver.url), "node.completed")

        crash_and_restart(host)
        found = host.wire.finished(run_id)

        assert found["status"] == "completed"
        assert len(receiver.keys) == 1


def test_an_effect_in_progress_is_sent_again_with_the_same_key(new_host: NewHost) -> None:
    host = new_host(WOPR_ALLOW_PRIVATE_DESTINATIONS="1")
    with receiving() as receiver:
        receiver.may_answer.clear()
        run_id = started(host.wire, posting(receiver.url))
        eventually(lambda: len(receiver.keys) == 1)

        crash_and_restart(host)
        eventually(lambda: len(receiver.keys) == 2)
        receiver.may_answer.set()
        found = host.wire.finished(run_id)

        assert found["status"] == "completed"
        assert receiver.keys[0] is not None
        assert receiver.keys[0] == receiver.keys[1]


def test_a_retried_effect_has_the_key_of_the_first_attempt(new_host: NewHost) -> None:
    host = new_host(WOPR_ALLOW_PRIVATE_DESTINATIONS="1")
    with receiving() as receiver:
        trying = posting(receiver.url, maxRetries=3, backoff={"initialMs": 1000})

        def is_killed_between_attempts() -> bool:
            receiver.keys, receiver.statuses = [], [503, 429]
            run_id = started(host.wire, trying, "node.retried")
            host.kill()
            # Killed during an attempt, the host repeats that attempt.
            is_between = len(receiver.keys) == 1
            host.start()
            found = host.wire.finished(run_id)

            assert found["status"] == "completed"
            assert len(receiver.keys) == 3 or not is_between
            assert len(set(receiver.keys)) == 1
            return is_between

        assert is_in_time_once(is_killed_between_attempts)
