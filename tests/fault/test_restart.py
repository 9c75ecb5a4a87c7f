from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice

import msgspec
import pytest

from tests.fault.hosts import FragileHost, eventually
from tests.fault.receiver import receiving
from tests.fault.rival import Rival
from tests.wire.client import Wire
from tests.wire.definitions import delay, node, workflow
from wopr.protocol.documents import JsonObject
from wopr.protocol.times import to_millis
from wopr.runtime.wishes import CancelWish
from wopr.store.port import Wish

pytestmark = pytest.mark.timeout(600)

NewHost = Callable[..., FragileHost]

LATE_MS = 1000
TRIES = 8


def now_ms() -> int:
    return round(time.time() * 1000)


def crash_and_restart(host: FragileHost) -> int:
    """Kill the host and start it again; answers when it served again."""
    host.kill()
    host.start()
    return now_ms()


def instants(wire: Wire, run_id: str, event_type: str) -> list[int]:
    return [to_millis(e["timestamp"]) for e in wire.log(run_id) if e["type"] == event_type]


def started(wire: Wire, definition: JsonObject, *wanted: str) -> str:
    """Start a run of a definition and wait until its log has a wanted event."""
    run_id = wire.create(wire.register(definition))
    wire.events_until(run_id, *(wanted or ("node.started",)))
    return run_id


def is_in_time_once(attempt: Callable[[], bool]) -> bool:
    """Whether one of several attempts is in time: what is held up by a busy machine is late."""
    return any(attempt() for _ in range(TRIES))


def test_a_delay_goes_on_where_it_was(new_host: NewHost) -> None:
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


def test_a_delay_that_passed_while_the_host_was_down_is_over_at_once(new_host: NewHost) -> None:
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


def test_the_wait_before_another_attempt_goes_on_where_it_was(new_host: NewHost) -> None:
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
    """A run that is asked to pause while its first node waits.

    On a busy machine the wish may come when that is over; then it is another run's turn.
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
    """A parent that waits for a child that sleeps."""
    child = wire.register(workflow([delay("sleep", milliseconds)]))
    calling = workflow([node("call", "core.subWorkflow", config={"workflowId": child})])
    parent_id = started(wire, calling, "node.dispatched")
    [dispatch] = [e for e in wire.log(parent_id) if e["type"] == "node.dispatched"]
    return parent_id, dispatch["payload"]["childRunId"]


def test_a_cancellation_that_reached_the_parent_reaches_the_child(new_host: NewHost) -> None:
    host = new_host()
    parent_id, child_id = family(host.wire, 30_000)
    host.kill()
    # What the host commits for the parent, had it died right after that commit.
    wish = msgspec.json.encode(CancelWish(reason="parent-cancelled", parent_run_id=parent_id))
    rival = Rival(host.database)
    rival.append(parent_id, "node.cancelled", {"nodeId": "call"}, "call")
    rival.append(parent_id, "run.cancelled", wishes=(Wish(run_id=child_id, body=wish),))

    host.start()
    found = host.wire.finished(child_id)

    assert found["status"] == "cancelled"
    assert host.wire.log(child_id)[-1]["payload"] == {
        "reason": "parent-cancelled",
        "parentRunId": parent_id,
    }


def test_a_cancellation_that_was_acknowledged_reaches_the_child_after_a_crash(
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


def test_words_that_are_on_the_log_are_not_streamed_again(new_host: NewHost) -> None:
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


def test_credentials_that_were_cut_short_do_not_keep_a_host_from_starting(
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


def test_an_effect_that_is_recorded_is_not_performed_again(new_host: NewHost) -> None:
    host = new_host(WOPR_ALLOW_PRIVATE_DESTINATIONS="1")
    with receiving() as receiver:
        run_id = started(host.wire, posting(receiver.url), "node.completed")

        crash_and_restart(host)
        found = host.wire.finished(run_id)

        assert found["status"] == "completed"
        assert len(receiver.keys) == 1


def test_an_effect_that_was_under_way_is_sent_again_with_the_same_key(new_host: NewHost) -> None:
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


def test_another_attempt_at_an_effect_has_the_key_of_the_first(new_host: NewHost) -> None:
    host = new_host(WOPR_ALLOW_PRIVATE_DESTINATIONS="1")
    with receiving() as receiver:
        trying = posting(receiver.url, maxRetries=3, backoff={"initialMs": 1000})

        def is_killed_between_attempts() -> bool:
            receiver.keys, receiver.statuses = [], [503, 429]
            run_id = started(host.wire, trying, "node.retried")
            host.kill()
            # Killed during an attempt, the host has to make that one again.
            is_between = len(receiver.keys) == 1
            host.start()
            found = host.wire.finished(run_id)

            assert found["status"] == "completed"
            assert len(receiver.keys) == 3 or not is_between
            assert len(set(receiver.keys)) == 1
            return is_between

        assert is_in_time_once(is_killed_between_attempts)
