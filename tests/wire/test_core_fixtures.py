from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.long_runs import SLOW
from tests.wire.timing import in_time
from wopr.protocol.documents import Json, JsonObject

pytestmark = pytest.mark.both_stores

NESTED = {
    "text": "héllo ☃",
    "list": [1, 2.5, None, {"deep": [True, []]}],
    "empty": {},
    "big": 2**53,
}
STREAM_TEXT = {
    "mockProvider": {
        "id": "stream-text",
        "config": {
            "tokens": ["Hello", " ", "world", "!"],
            "delayMsPerToken": 10,
            "finishReason": "stop",
            "usage": {"promptTokens": 5, "completionTokens": 4, "totalTokens": 9},
        },
    }
}
# Fixtures that need only a start, with their log in the contract's table.
STRAIGHT = {
    "conformance-noop": "S noop+ noop✓ C",
    "conformance-delay": "S wait+ wait✓ C",
    "conformance-failure": "S fail+ fail✗ F",
    "conformance-multi-node": "S a+ a✓ b+ b✓ c+ c✓ C",
    "conformance-configurable-schema": "S noop+ noop✓ C",
    "conformance-capability-missing": "S n1✗ F",
    "conformance-version-fold": "S noop+ noop✓ C",
    "conformance-subworkflow-child": "S child-n1+ child-n1✓ child-n2+ child-n2✓ C",
    "conformance-subworkflow-input-mapping-child": "S noop+ noop✓ C",
    "conformance-dispatch-input-mapping-child": "S noop+ noop✓ C",
    "conformance-dispatch-output-mapping-child": "S noop+ noop✓ C",
    "conformance-dispatch-cross-worker-handoff-child-a": "S noop+ noop✓ C",
    "conformance-dispatch-cross-worker-handoff-child-b": "S noop+ noop✓ C",
    "conformance-multi-agent-handoff-child": "S noop+ noop✓ C",
    "conformance-dispatch-deterministic-fail-child": "S fail+ fail✗ F",
}
# Fixtures with separate tests.
DRIVEN = {
    "conformance-identity",
    "conformance-idempotent",
    "conformance-cancellable",
    "conformance-cap-breach",
    "conformance-run-duration-breach",
    "conformance-channel-ttl",
    "conformance-stream-text",
    "conformance-subworkflow-parent",
    "conformance-subworkflow-input-mapping",
    "conformance-subworkflow-input-mapping-no-default",
    "conformance-dispatch-cancellable-child",
}
SIGNS = {
    "run.started": "S",
    "run.completed": "C",
    "run.failed": "F",
    "run.cancelled": "X",
    "node.started": "{}+",
    "node.completed": "{}✓",
    "node.failed": "{}✗",
}


def spelled(log: list[JsonObject]) -> str:
    """Return a log in the notation of the contract; other types are written with their node."""
    return " ".join(
        SIGNS.get(event["type"], f"{event['type']}({{}})").format(event.get("nodeId", ""))
        for event in log
    ).replace("()", "")


def payload(log: list[JsonObject], event_type: str, node_id: str | None = None) -> JsonObject:
    """Return the payload of the only event of a type."""
    found = [e for e in log if e["type"] == event_type and node_id in (None, e.get("nodeId"))]
    assert len(found) == 1, spelled(log)
    only: JsonObject = found[0]["payload"]
    return only


def test_discovery_lists_every_core_fixture(fixtures: Wire) -> None:
    listed = set(fixtures.document("/.well-known/openwop")["fixtures"])

    assert listed >= STRAIGHT.keys() | DRIVEN


def test_discovery_lists_no_fixture_that_requires_unadvertised_capabilities(fixtures: Wire) -> None:
    discovery = fixtures.document("/.well-known/openwop")
    agents: JsonObject = discovery.get("agents", {})
    for name in discovery["fixtures"]:
        definition = fixtures.document(f"/v1/workflows/{name}")

        configs = [each["config"] for each in definition["nodes"]]
        pins = [each["agent"] for each in definition["nodes"] if "agent" in each]
        children = [config["workflowId"] for config in configs if "workflowId" in config]
        assert not pins or agents.get("supported"), name
        assert not any("memoryAction" in c for c in configs) or agents.get("memoryBackends"), name
        assert not any("emitDuplicateMessageId" in c for c in configs) or agents.get("supported")
        assert all(fixtures.get(f"/v1/workflows/{c}").status_code == 200 for c in children), name


@pytest.mark.parametrize("workflow_id", STRAIGHT)
def test_a_fixture_writes_exactly_the_log_of_its_table(fixtures: Wire, workflow_id: str) -> None:
    inputs = {"delayMs": 20} if workflow_id == "conformance-delay" else None

    run_id = fixtures.create(workflow_id, inputs)
    fixtures.finished(run_id)

    log = fixtures.log(run_id)
    assert spelled(log) == STRAIGHT[workflow_id]
    assert [event["sequence"] for event in log] == list(range(len(log)))
    assert len({event["eventId"] for event in log}) == len(log)


def test_every_seeded_workflow_is_returned_unchanged(fixtures: Wire) -> None:
    for workflow_id in STRAIGHT.keys() | DRIVEN:
        found = fixtures.document(f"/v1/workflows/{workflow_id}")
        assert (found["id"], found["version"]) == (workflow_id, "1.0")
        fixtures.recorder.check("workflow-definition.schema.json", found)


@pytest.mark.parametrize("value", [NESTED, {}, {"list": [[[]]]}])
def test_identity_returns_any_json_unchanged(fixtures: Wire, value: Json) -> None:
    run_id = fixtures.create("conformance-identity", {"payload": value})

    found = fixtures.finished(run_id)

    log = fixtures.log(run_id)
    assert spelled(log) == "S echo+ echo✓ C"
    assert found["variables"]["payload"] == value
    assert payload(log, "run.started")["inputs"] == {"payload": value}
    assert payload(log, "node.completed")["outputs"] == {"payload": value}


def test_a_run_is_running_while_it_sleeps_for_the_requested_time(fixtures: Wire) -> None:
    def seen_running(milliseconds: int) -> str | None:
        run_id = fixtures.create("conformance-delay", {"delayMs": milliseconds})
        return run_id if fixtures.snapshot(run_id)["status"] == "running" else None

    found = fixtures.finished(in_time(seen_running))

    assert found["status"] == "completed"
    assert found["nodeStates"]["wait"]["status"] == "completed"


def test_failure_ends_with_a_code_and_a_message(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-failure")

    found = fixtures.finished(run_id)

    failed = payload(fixtures.log(run_id), "run.failed")
    expected = {"code": "conformance_test_failure", "message": "Intentional conformance failure"}
    assert found["status"] == "failed"
    assert found["error"] == expected
    assert failed["error"]["code"] == "conformance_test_failure"
    assert failed["failedNodeId"] == "fail"


def test_cancellable_is_cancelled_at_once(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-cancellable", SLOW)

    answer = fixtures.post(f"/v1/runs/{run_id}/cancel", {"reason": "enough"})
    found = fixtures.finished(run_id)

    log = fixtures.log(run_id)
    assert (answer.status_code, found["status"]) == (200, "cancelled")
    assert spelled(log) == "S wait+ node.cancelled(wait) X"
    assert payload(log, "run.cancelled")["reason"] == "enough"


def test_idempotent_ignores_its_nonce(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-idempotent", {"nonce": "n-1"})

    assert fixtures.finished(run_id)["status"] == "completed"
    assert spelled(fixtures.log(run_id)) == "S noop+ noop✓ C"


def test_the_node_cap_stops_the_run_before_the_excess_node(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-cap-breach", configurable={"recursionLimit": 3})

    found = fixtures.finished(run_id)

    log = fixtures.log(run_id)
    breach = payload(log, "cap.breached")
    assert spelled(log) == "S n1+ n1✓ n2+ n2✓ n3+ n3✓ cap.breached(n4) F"
    assert found["error"]["code"] == "recursion_limit_exceeded"
    assert breach == {"kind": "node-executions", "limit": 3, "observed": 4, "nodeId": "n4"}


def test_without_its_own_cap_the_same_workflow_completes(fixtures: Wire) -> None:
    assert fixtures.run("conformance-cap-breach")["status"] == "completed"


def test_a_run_that_takes_too_long_is_stopped_strictly_after_its_limit(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-run-duration-breach", configurable={"runTimeoutMs": 1000})

    found = fixtures.finished(run_id)

    log = fixtures.log(run_id)
    breach = payload(log, "cap.breached")
    assert spelled(log) == "S wait+ node.cancelled(wait) cap.breached F"
    assert found["error"]["code"] == "run_timeout"
    assert (breach["kind"], breach["limit"]) == ("run-duration", 1000)
    assert breach["observed"] > 1000
    assert "nodeId" not in breach


def test_a_missing_capability_is_named_and_its_node_never_starts(fixtures: Wire) -> None:
    found = fixtures.run("conformance-capability-missing")

    assert found["error"]["code"] == "capability_not_provided"
    assert "conformance.never-provided" in found["error"]["message"]
    assert found["nodeStates"]["n1"]["status"] == "failed"
    assert "startedAt" not in found["nodeStates"]["n1"]


def test_expired_channel_entries_are_pruned_when_the_next_one_is_written(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-channel-ttl")

    found = fixtures.finished(run_id)

    writes = [e["payload"] for e in fixtures.log(run_id) if e["type"] == "channel.written"]
    (entry,) = found["variables"]["events"]
    assert [write["value"]["value"] for write in writes] == ["a", "b", "c", "d"]
    assert {write["reducer"] for write in writes} == {"append"}
    assert entry["value"] == "d"
    assert isinstance(entry["_ts"], int | float)


def test_streamed_text_is_in_order_and_its_end_is_marked(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-stream-text", configurable=STREAM_TEXT)

    chunks = fixtures.frames(run_id, streamMode="messages")

    found = fixtures.finished(run_id)
    assert [frame.event for frame in chunks] == ["ai.message.chunk"] * 4
    assert [frame.json["chunk"] for frame in chunks] == ["Hello", " ", "world", "!"]
    assert [frame.json["isLast"] for frame in chunks] == [False, False, False, True]
    assert {(frame.json["nodeId"], frame.json["runId"]) for frame in chunks} == {("ai", run_id)}
    assert chunks[-1].json["meta"]["finishReason"] == "stop"
    assert chunks[-1].json["meta"]["usage"]["completionTokens"] == 4
    assert found["status"] == "completed"


def test_one_usage_is_reported_for_a_model_call_before_its_node_completes(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-stream-text", configurable=STREAM_TEXT)
    fixtures.finished(run_id)

    log = fixtures.log(run_id)

    usage = payload(log, "provider.usage")
    types = [event["type"] for event in log]
    assert (usage["inputTokens"], usage["outputTokens"]) == (5, 4)
    assert types.index("provider.usage") < types.index("node.completed")


def test_any_version_that_can_be_forced_completes_and_is_returned(fixtures: Wire) -> None:
    allowed = fixtures.document("/.well-known/openwop")["testing"]["forceEngineVersionRange"]
    for version in range(allowed["min"], allowed["max"] + 1):
        forced = {"X-Force-Engine-Version": str(version)}

        run_id = fixtures.create("conformance-version-fold", headers=forced)

        assert fixtures.finished(run_id)["engineVersion"] == str(version)
        assert fixtures.poll(run_id, timeout=1)["isComplete"]


def test_a_parent_gets_its_child_s_outputs(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-subworkflow-parent")

    found = fixtures.finished(run_id)

    log = fixtures.log(run_id)
    outputs = payload(log, "node.completed", "subwf-call")["outputs"]
    child = fixtures.snapshot(outputs["childRunId"])
    assert "subwf-call+ node.dispatched(subwf-call)" in spelled(log)
    assert found["status"] == "completed"
    assert found["variables"]["childOutcome"] == "child-completed"
    assert outputs["childStatus"] == "completed"
    assert payload(log, "node.dispatched")["childRunId"] == outputs["childRunId"]
    assert child["status"] == "completed"
    assert (child["parentRunId"], child["parentNodeId"]) == (run_id, "subwf-call")
    assert found["childRuns"][0]["runId"] == outputs["childRunId"]


def test_a_mapped_input_reaches_the_child(fixtures: Wire) -> None:
    found = fixtures.run("conformance-subworkflow-input-mapping")

    child = fixtures.snapshot(found["childRuns"][0]["runId"])
    assert child["variables"]["receivedPrdId"] == "prd-1"
    assert child["inputs"] == {"receivedPrdId": "prd-1"}


def test_a_mapped_input_without_a_value_is_absent_and_never_null(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-subworkflow-input-mapping-no-default")

    found = fixtures.finished(run_id)

    child = fixtures.snapshot(found["childRuns"][0]["runId"])
    assert child["variables"].get("receivedPrdId", "baked-in") == "baked-in"
    expected = "S subwf-call+ node.dispatched(subwf-call) subwf-call✓ C"
    assert spelled(fixtures.log(run_id)) == expected


def test_the_cancellable_child_waits_until_it_is_cancelled(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-dispatch-cancellable-child")

    fixtures.post(f"/v1/runs/{run_id}/cancel")

    assert fixtures.finished(run_id)["status"] == "cancelled"


def test_a_fixture_that_needs_missing_capabilities_is_not_advertised(fixtures: Wire) -> None:
    promised = fixtures.document("/.well-known/openwop")["fixtures"]

    assert "conformance-conversation-capability-negotiation" not in promised
    assert "conformance-wasm-pack-roundtrip" not in promised
