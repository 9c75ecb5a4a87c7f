"""The agent and memory workflows, as their tables say.

Every test runs twice: with the project's own definitions and with the published ones.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.wire.agent_definitions import agents_of, every, only, ran, waiting
from tests.wire.at_rest import stored
from tests.wire.client import Wire
from tests.wire.host import ServedHost
from wopr.protocol.documents import JsonObject

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


def test_every_fixture_that_behaves_is_advertised(fixtures: Wire) -> None:
    assert set(fixtures.document("/.well-known/openwop")["fixtures"]) >= FIXTURES


def test_a_fixture_for_a_capability_that_is_missing_is_not_seeded(fixtures: Wire) -> None:
    listed = fixtures.document("/.well-known/openwop")["fixtures"]

    assert "conformance-agent-channel-dispatch" not in listed
    assert fixtures.get("/v1/workflows/conformance-agent-channel-dispatch").status_code == 404


# Agents


def test_agent_identity(fixtures: Wire) -> None:
    found, log = ran(fixtures, "conformance-agent-identity")

    assert found["status"] == "completed"
    assert found["agent"]["agentId"] == "core.conformance.identity-agent"
    assert agents_of(log) == []


def test_agent_reasoning(fixtures: Wire) -> None:
    found, log = ran(fixtures, "conformance-agent-reasoning")

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


def test_agent_reasoning_switched_off_loses_only_its_reasoning(fixtures: Wire) -> None:
    _, full = ran(fixtures, "conformance-agent-reasoning")
    options = {"reasoningVerbosity": "off"}
    _, quiet = ran(fixtures, "conformance-agent-reasoning", configurable=options)

    types = [event["type"] for event in full]
    types.remove("agent.reasoned")
    assert [event["type"] for event in quiet] == types


def test_agent_reasoning_streaming(fixtures: Wire) -> None:
    _, log = ran(fixtures, "conformance-agent-reasoning-streaming")

    *deltas, closing = agents_of(log)
    chunks = [
        "Let me think about this. ",
        "First, the user is asking a question. ",
        "Therefore, I should respond clearly.",
    ]
    assert [event["payload"]["delta"] for event in deltas] == chunks
    assert [event["payload"]["sequence"] for event in deltas] == [0, 1, 2]
    assert closing["payload"]["reasoning"] == "".join(chunks)
    assert {event["payload"]["agentId"] for event in agents_of(log)} == {
        "core.conformance.streaming-reasoner"
    }


def test_agent_low_confidence(fixtures: Wire) -> None:
    run_id = waiting(fixtures, "conformance-agent-low-confidence")

    suspended = only(fixtures.log(run_id), "node.suspended")["payload"]

    assert fixtures.snapshot(run_id)["status"] == "waiting-approval"
    assert suspended["reason"] == "low-confidence"
    assert suspended["agentId"] == "core.conformance.low-conf-decider"
    assert (suspended["threshold"], suspended["observed"]) == (0.7, 0.5)


@pytest.mark.parametrize("threshold", [0.3, 0.5])
def test_agent_low_confidence_is_enough_for_a_run_that_asks_for_less(
    fixtures: Wire, threshold: float
) -> None:
    options = {"escalationThreshold": threshold}
    found, _ = ran(fixtures, "conformance-agent-low-confidence", configurable=options)

    assert found["status"] == "completed"


def test_agent_pack_provenance(fixtures: Wire) -> None:
    found, log = ran(fixtures, "conformance-agent-pack-provenance")

    assert found["agent"]["sourceManifestId"] == "core.conformance.agent-pack.installed-agent"
    assert only(log, "node.started")["payload"]["agent"] == found["agent"]


# Hand-off schemas


def test_a_task_that_the_agent_takes_is_worked_on(fixtures: Wire) -> None:
    found, _ = ran(fixtures, STRUCTURED, TASK)

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
    found, log = ran(fixtures, STRUCTURED, inputs)

    assert found["status"] == "failed"
    assert found["error"]["code"] == code
    assert only(log, "node.failed")["payload"]["error"]["code"] == code
    assert "node.completed" not in [event["type"] for event in log]


def test_the_older_values_of_the_scenario_are_tolerated(fixtures: Wire) -> None:
    found, _ = ran(fixtures, STRUCTURED, {"scenario": "valid-task"})

    assert found["status"] == "completed"


# Memory and messages


def test_agent_memory_roundtrip(fixtures: Wire) -> None:
    found, log = ran(fixtures, "conformance-agent-memory-roundtrip")

    entry = found["variables"]["memoryReadback"]
    fixtures.recorder.check("memory-entry.schema.json", entry)
    written = only(log, "memory.written")["payload"]
    assert written["memoryId"] == entry["id"]
    assert written["memoryRef"] == "conformance/agent-memory-roundtrip"
    assert written["agentId"] == "core.conformance.memory-agent"
    assert "content" not in written


def test_agent_memory_redaction(fixtures: Wire) -> None:
    found, log = ran(fixtures, "conformance-agent-memory-redaction")

    assert re.search(r"\[REDACTED:[^\]]+\]", found["variables"]["memoryReadback"]["content"])
    assert "conformance-byok-plaintext" not in json.dumps([found, log])


def test_agent_memory_ttl(fixtures: Wire) -> None:
    found, _ = ran(fixtures, "conformance-agent-memory-ttl")

    listed = [entry["id"] for entry in found["variables"]["memoryList"]]
    assert found["variables"]["freshId"] in listed
    assert found["variables"]["expiredId"] not in listed


def test_agent_memory_cross_tenant(fixtures: Wire) -> None:
    found, _ = ran(fixtures, "conformance-agent-memory-cross-tenant")

    variables = found["variables"]
    assert variables["crossTenantProbe"] == []
    assert variables["ownerEntryId"] in [entry["id"] for entry in variables["ownerProbe"]]


def test_message_reducer(fixtures: Wire) -> None:
    found, log = ran(fixtures, "conformance-message-reducer")

    messages = found["channels"]["messages"]
    assert [message["messageId"] for message in messages] == ["id-1", "id-2"]
    assert messages[0]["content"] == "first"
    assert all({"messageId", "from", "content", "ts"} <= message.keys() for message in messages)
    assert len(every(log, "channel.written")) == 3


def test_the_plaintext_of_the_probe_is_nowhere_on_disk(host: ServedHost, acme: Wire) -> None:
    ran(acme, "conformance-agent-memory-redaction")

    assert b"conformance-byok-plaintext" not in stored(host) + host.log().encode()
