"""Killed hosts: forks continue, webhooks lose nothing, the audit log stays complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.killing import mortal
from tests.support.definitions import node, workflow
from tests.support.forks import fork, log_content, until_ended
from tests.support.webhook_receiver import Handler, Received, receiving, take

FREE = {
    "WOPR_ALLOW_PRIVATE_DESTINATIONS": "1",
    "WOPR_WEBHOOK_RETRY_MS": "20",
    "WOPR_WEBHOOK_OPEN_SECONDS": "0.1",
    "WOPR_WEBHOOK_ATTEMPTS": "1000",
}
DELIVERED_IN_ONE_TURN = 32


def test_webhooks_of_a_killed_host_are_all_delivered_in_order(tmp_path: Path) -> None:
    with receiving() as receiver, mortal(tmp_path / "host", **FREE) as host:
        killed_at = 40

        def take_some(request: Received, handler: Handler) -> None:
            if len(receiver.requests) >= killed_at:
                handler.answer(503)
            else:
                take(request, handler)

        receiver.behave = take_some
        with host.wire() as wire:
            assert wire.post("/v1/webhooks", {"url": receiver.url, "events": ["*"]}).is_success
            runs = [wire.create("conformance-multi-node") for _ in range(20)]
            receiver.until(lambda came: len(came) >= killed_at)
        host.kill()
        taken_before = len(receiver.requests)
        receiver.behave = take
        host.start()
        receiver.until_ended(*runs)

        with host.wire() as wire:
            lengths = {run_id: len(wire.log(run_id)) for run_id in runs}
    for run_id, length in lengths.items():
        came = [r.json["sequence"] for r in receiver.requests if r.json["runId"] == run_id]
        assert list(dict.fromkeys(came)) == list(range(length))
    repeated = len(receiver.requests) - sum(lengths.values())
    assert 0 <= repeated <= taken_before + DELIVERED_IN_ONE_TURN


def test_events_and_their_deliveries_are_written_together(tmp_path: Path) -> None:
    with receiving() as receiver, mortal(tmp_path / "host", **FREE) as host:
        receiver.behave = lambda request, handler: handler.answer(503)
        with host.wire() as wire:
            assert wire.post("/v1/webhooks", {"url": receiver.url, "events": ["*"]}).is_success
            runs = [wire.create("conformance-noop") for _ in range(5)]
        host.kill()
        host.start()
        receiver.behave = take
        receiver.until_ended(*runs)

        with host.wire() as wire:
            for run_id in runs:
                told = {r.json["sequence"] for r in receiver.requests if r.json["runId"] == run_id}
                assert told == set(range(len(wire.log(run_id))))


@pytest.mark.parametrize("mode", ["replay", "branch"])
def test_a_fork_interrupted_by_a_kill_is_complete_in_the_end(tmp_path: Path, mode: str) -> None:
    nodes = [
        node(f"n{number}", "core.setVariable", config={"name": f"v{number}", "value": number})
        for number in range(900)
    ]
    definition = workflow(nodes)
    with mortal(tmp_path / "host") as host:
        with host.wire() as wire:
            wire.register(definition)
            source = wire.create(definition["id"], configurable={"recursionLimit": 1000})
            until_ended(wire, source)
            length = int(wire.snapshot(source)["lastSequence"]) + 1
            copy = fork(wire, source, mode, fromSeq=length - 1)
        host.kill_and_restart()
        with host.wire() as wire:
            until_ended(wire, copy)
            assert log_content(wire, copy) == log_content(wire, source)
            assert wire.snapshot(copy)["variables"] == wire.snapshot(source)["variables"]
            ids = [event["eventId"] for event in wire.log(copy)]
            causes = [event.get("causationId", ids[0]) for event in wire.log(copy)]
            assert set(causes) <= set(ids)


def test_a_replay_interrupted_by_a_kill_continues_without_a_second_effect(tmp_path: Path) -> None:
    def count(request: Received, handler: Handler) -> None:
        handler.answer(200, b"%d" % len(outside.requests))

    with receiving(count) as outside, mortal(tmp_path / "host", **FREE) as host:
        config = {"url": outside.url, "method": "POST", "timeoutMs": 60_000}
        calls = [node(f"c{number}", "wopr.http.request", config=config) for number in range(30)]
        definition = workflow(calls)
        with host.wire() as wire:
            wire.register(definition)
            source = wire.create(definition["id"])
            until_ended(wire, source)
            copy = fork(wire, source)
        host.kill_and_restart()
        with host.wire() as wire:
            until_ended(wire, copy)
            assert log_content(wire, copy) == log_content(wire, source)
    assert len(outside.requests) == 30


def test_the_audit_log_of_a_killed_host_is_complete(
    tmp_path: Path,
) -> None:
    with mortal(tmp_path / "host") as host:
        cancelled: list[str] = []
        for _ in range(3):
            with host.wire() as wire:
                for _ in range(10):
                    run_id = wire.create("conformance-cancellable", {"delayMs": 60_000})
                    assert wire.post(f"/v1/runs/{run_id}/cancel").is_success
                    cancelled.append(run_id)
            host.kill_and_restart()
        with host.wire() as wire:
            entries = wire.document("/v1/audit", params={"limit": 200})["items"]
            verdict = wire.document("/v1/audit/verify", params={"fromSeq": 0, "toSeq": 1000})

    done = [entry["resource"] for entry in entries if entry["action"] == "run.cancel"]
    assert done == cancelled[::-1]
    assert verdict["chainValid"]
    assert "the audit log is valid" in host.command("audit", "verify")
