"""The agent and memory workflows, as in the contract's tables.

Every test runs twice: with the project's own definitions and with the published ones.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.support.agent_definitions import (
    agent_events,
    events_of,
    only_event,
    run_and_log,
    waiting_run,
)
from tests.support.client import Wire
from tests.support.host import ServedHost
from tests.support.stored_files import stored
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.both_stores

FIXTURES = {
    "conformance-dispatch-loop",
    "conformance-orchestrator-dispatch",
    "conformance-orchestrator-terminate",
    "conformance-orchestrator-low-confidence",
    "conformance-dispatch-input-mapping",
    "conformance-dispatch-input-mapping-no-default",
    "conformance-dispatch-output-mapping",
    "conformance-dispatch-cross-worker-handoff",
    "conformance-dispatch-per-worker-override",
    "conformance-dispatch-deterministic-fail-child",
    "conformance-dispatch-cancellable-child",
    "conformance-multi-agent-handoff",
    "conformance-multi-agent-handoff-child",
    "conformance-multi-agent-confidence-escalation",
    "conformance-agent-identity",
    "conformance-agent-reasoning",
    "conformance-agent-reasoning-streaming",
    "conformance-agent-low-confidence",
    "conformance-agent-pack-provenance",
    "conformance-agent-pack-handoff-schema-validation",
    "conformance-agent-memory-roundtrip",
    "conformance-agent-memory-redaction",
    "conformance-agent-memory-ttl",
    "conformance-agent-memory-cross-tenant",
    "conformance-message-reducer",
}
STRUCTURED = "conformance-agent-pack-handoff-schema-validation"
TASK: JsonObject = {"text": "It rained.", "extractionFields": ["weather"]}


def test_every_working_fixture_is_advertised(fixtures: Wire) -> None:
    assert set(fixtures.document("/.well-known/openwop")["fixtures"]) >= FIXTURES


def test_a_fixture_for_a_missing_capability_is_not_seeded(fixtures: Wire) -> None:
    listed = fixtures.document("/.well-known/openwop")["fixtures"]

    assert "conformance-agent-channel-dispatch" not in listed
    assert fixtures.get("/v1/workflows/conformance-agent-channel-dispatch").status_code == 404


# Agents


def test_the_agent_identity_fixture(fixtures: Wire) -> None:
    found, log = run_and_log(fixtures, "conformance-agent-identity")

    assert found["status"] == "completed"
    assert found["agent"]["agentId"] == "core.conformance.identity-agent"
    assert agent_events(log) == []


def test_the_agent_reasoning_fixture(fixtures: Wire) -> None:
    found, log = run_and_log(fixtures, "conformance-agent-reasoning")

    assert found["status"] == "completed"
    assert [event["type"] for event in log] == [
        "run.started",
        "node.started",
        "agent.reasoned",
        "agent.toolCalled",
        "agent.toolReturned",
        "agent.handoff",
        "agent.decided",
        "node.completed",
        "run.completed",
    ]
    reasoned, called, returned, handoff, decided = (event["payload"] for event in log[2:7])
    assert reasoned["reasoning"] == ("Decomposed query, decided to call a tool, then handed off.")
    assert reasoned["verbosity"] == "summary"
    assert called["inputs"] == returned["outcome"] == {"x": 1}
    assert called["callId"] == returned["callId"]
    assert returned["durationMs"] == 1
    assert log[4]["causationId"] == log[3]["eventId"]
    assert handoff["fromAgentId"] == "core.conformance.reasoning-agent"
    assert handoff["toAgentId"] == "core.conformance.handoff-target"
    assert decided["decision"] == {"next": "done"}
    assert decided["confidence"] == 1
    assert log[7]["payload"]["outputs"] == {}
    assert found["agent"] == {"agentId": "core.conformance.handoff-target"}


def test_reasoning_switched_off_removes_only_the_reasoning(fixtures: Wire) -> None:
    _, full = run_and_log(fixtures, "conformance-agent-reasoning")
    options = {"reasoningVerbosity": "off"}
    _, quiet = run_and_log(fixtures, "conformance-agent-reasoning", configurable=options)

    types = [event["type"] for event in full]
    types.remove("agent.reasoned")
    assert [event["type"] for event in quiet] == types


def test_the_agent_reasoning_streaming_fixture(fixtures: Wire) -> None:
    _, log = run_and_log(fixtures, "conformance-agent-reasoning-streaming")

    *deltas, closing = agent_events(log)
    chunks = [
        "Let me think about this. ",
        "First, the user is asking a question. ",
        "Therefore, I should respond clearly.",
    ]
    assert [event["payload"]["delta"] for event in deltas] == chunks
    assert [event["payload"]["sequence"] for event in deltas] == [0, 1, 2]
    assert closing["payload"]["reasoning"] == "".join(chunks)
    assert {event["payload"]["agentId"] for event in agent_events(log)} == {
        "core.conformance.streaming-reasoner"
    }


def test_the_agent_low_confidence_fixture(fixtures: Wire) -> None:
    run_id = waiting_run(fixtures, "conformance-agent-low-confidence")

    suspended = only_event(fixtures.log(run_id), "node.suspended")["payload"]

    assert fixtures.snapshot(run_id)["status"] == "waiting-approval"
    assert suspended["reason"] == "low-confidence"
    assert suspended["agentId"] == "core.conformance.low-conf-decider"
    assert (suspended["threshold"], suspended["observed"]) == (0.7, 0.5)


@pytest.mark.parametrize("threshold", [0.3, 0.5])
def test_low_confidence_is_sufficient_for_a_run_with_a_lower_threshold(
    fixtures: Wire, threshold: float
) -> None:
    options = {"escalationThreshold": threshold}
    found, _ = run_and_log(fixtures, "conformance-agent-low-confidence", configurable=options)

    assert found["status"] == "completed"


def test_the_agent_pack_provenance_fixture(fixtures: Wire) -> None:
    found, log = run_and_log(fixtures, "conformance-agent-pack-provenance")

    assert found["agent"]["sourceManifestId"] == "core.conformance.agent-pack.installed-agent"
    assert only_event(log, "node.started")["payload"]["agent"] == found["agent"]


# Hand-off schemas


def test_a_task_that_fits_the_agent_s_schema_is_executed(fixtures: Wire) -> None:
    found, _ = run_and_log(fixtures, STRUCTURED, TASK)

    assert found["status"] == "completed"


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ({"text": "It rained."}, "handoff_task_schema_violation"),
        ({"scenario": "invalid-task"}, "handoff_task_schema_violation"),
        (TASK | {"scenario": "mock-return-violation"}, "handoff_return_schema_violation"),
    ],
    ids=["no fields", "older name", "return"],
)
def test_a_task_or_a_return_outside_the_agent_s_schemas_fails_the_node(
    fixtures: Wire, inputs: JsonObject, code: str
) -> None:
    found, log = run_and_log(fixtures, STRUCTURED, inputs)

    assert found["status"] == "failed"
    assert found["error"]["code"] == code
    assert only_event(log, "node.failed")["payload"]["error"]["code"] == code
    assert "node.completed" not in [event["type"] for event in log]


def test_older_values_of_the_scenario_are_accepted(fixtures: Wire) -> None:
    found, _ = run_and_log(fixtures, STRUCTURED, {"scenario": "valid-task"})

    assert found["status"] == "completed"


# Memory and messages


def test_the_agent_memory_roundtrip_fixture(fixtures: Wire) -> None:
    found, log = run_and_log(fixtures, "conformance-agent-memory-roundtrip")

    entry = found["variables"]["memoryReadback"]
    fixtures.recorder.check("memory-entry.schema.json", entry)
    written = only_event(log, "memory.written")["payload"]
    assert written["memoryId"] == entry["id"]
    assert written["memoryRef"] == "conformance/agent-memory-roundtrip"
    assert written["agentId"] == "core.conformance.memory-agent"
    assert "content" not in written


def test_the_agent_memory_redaction_fixture(fixtures: Wire) -> None:
    found, log = run_and_log(fixtures, "conformance-agent-memory-redaction")

    assert re.search(r"\[REDACTED:[^\]]+\]", found["variables"]["memoryReadback"]["content"])
    assert "conformance-byok-plaintext" not in json.dumps([found, log])


def test_the_agent_memory_ttl_fixture(fixtures: Wire) -> None:
    found, _ = run_and_log(fixtures, "conformance-agent-memory-ttl")

    listed = [entry["id"] for entry in found["variables"]["memoryList"]]
    assert found["variables"]["freshId"] in listed
    assert found["variables"]["expiredId"] not in listed


def test_the_agent_memory_cross_tenant_fixture(fixtures: Wire) -> None:
    found, _ = run_and_log(fixtures, "conformance-agent-memory-cross-tenant")

    variables = found["variables"]
    assert variables["crossTenantProbe"] == []
    assert variables["ownerEntryId"] in [entry["id"] for entry in variables["ownerProbe"]]


def test_the_message_reducer_fixture(fixtures: Wire) -> None:
    found, log = run_and_log(fixtures, "conformance-message-reducer")

    messages = found["channels"]["messages"]
    assert [message["messageId"] for message in messages] == ["id-1", "id-2"]
    assert messages[0]["content"] == "first"
    assert all({"messageId", "from", "content", "ts"} <= message.keys() for message in messages)
    assert len(events_of(log, "channel.written")) == 3


def test_the_plaintext_of_the_probe_is_nowhere_on_disk(host: ServedHost, acme: Wire) -> None:
    run_and_log(acme, "conformance-agent-memory-redaction")

    assert b"conformance-byok-plaintext" not in stored(host) + host.log().encode()
