from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.support.definitions import node
from tests.support.in_process import TENANT, Bench
from tests.support.recorder import Recorder
from wopr.agents.tools.permissions import args_hash
from wopr.engine.outcome import NodeFailure
from wopr.nodes.builtin import builtin_registry
from wopr.process.settings import Settings
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.events import RunEvent
from wopr.runs.append import Guard
from wopr.runs.interrupts.approvals import Resolver
from wopr.services.discovery.document import capabilities

pytestmark = pytest.mark.anyio

WHO = "host:speaker"
EVENTS: dict[str, JsonObject] = {
    "agent.reasoned": {"agentId": WHO, "reasoning": "hm"},
    "agent.reasoning.delta": {"agentId": WHO, "delta": "h", "sequence": 0},
    "agent.toolCalled": {"agentId": WHO, "toolName": "t", "callId": "c"},
    "agent.toolReturned": {"agentId": WHO, "toolName": "t", "callId": "c", "outcome": 1},
    "agent.handoff": {"fromAgentId": WHO, "toAgentId": "host:other"},
    "agent.decided": {"agentId": WHO, "decision": 1},
}
REASONING = {"agent.reasoned", "agent.reasoning.delta"}
TOOLS = {"agent.toolCalled", "agent.toolReturned"}
GRANTED: dict[str, set[str]] = {
    "acme.speak": set(),
    "wopr.speak": set(),
    "core.speak": set(),
    "vendor.acme.speak": set(EVENTS),
    "core.llm.speak": REASONING | TOOLS | {"agent.decided"},
    "openwop.llm.speak": REASONING | TOOLS | {"agent.decided"},
    "openwop.mcp.speak": TOOLS,
}


async def run_emitting(ours: Bench, type_id: str, *emit: tuple[str, Json], **config: Json) -> str:
    """Run a workflow whose only node emits these events, and return the run's id."""
    speaker = node("speaker", type_id, config={"emit": list(emit), **config})
    return await ours.create(await ours.register([speaker]))


async def emitted(ours: Bench, run_id: str) -> list[RunEvent]:
    log = await ours.log(run_id)
    for event in log:
        Recorder().event(msgspec.to_builtins(event))
    return [event for event in log if event.type.startswith("agent.")]


# Authorised emitters


@pytest.mark.parametrize("event_type", EVENTS)
@pytest.mark.parametrize("type_id", GRANTED)
async def test_a_node_type_emits_only_the_agent_events_granted_to_it(
    ours: Bench, type_id: str, event_type: str
) -> None:
    run_id = await run_emitting(ours, type_id, (event_type, EVENTS[event_type]))

    is_granted = event_type in GRANTED[type_id]
    assert [event.type for event in await emitted(ours, run_id)] == [event_type] * is_granted
    assert (await ours.row(run_id)).status == ("completed" if is_granted else "failed")


async def test_a_refused_event_fails_the_node_with_type_and_event_named(ours: Bench) -> None:
    run_id = await run_emitting(ours, "acme.speak", ("agent.decided", EVENTS["agent.decided"]))

    failed = next(e for e in await ours.log(run_id) if e.type == "node.failed")

    assert failed.payload["error"] == {
        "code": "validation_error",
        "message": "a node of type acme.speak may not emit agent.decided",
        "retryable": False,
    }


@pytest.mark.parametrize("type_id", ["core.identity", "core.noop", "core.flow.noop"])
@pytest.mark.parametrize("event_type", EVENTS)
def test_types_that_only_pass_values_on_may_not_emit_agent_events(
    type_id: str, event_type: str
) -> None:
    with pytest.raises(NodeFailure, match="may not emit"):
        everything().check(type_id, event_type, EVENTS[event_type])


@pytest.mark.parametrize(
    "event_type", ["run.completed", "node.completed", "interrupt.resolved", "cap.breached"]
)
async def test_no_node_emits_events_reserved_for_the_host(ours: Bench, event_type: str) -> None:
    run_id = await run_emitting(ours, "vendor.acme.speak", (event_type, {}))

    assert (await ours.row(run_id)).status == "failed"
    assert event_type not in await ours.types(run_id)


# Payloads


@pytest.mark.parametrize(
    ("event_type", "payload"),
    [
        ("agent.decided", {"decision": 1}),
        ("agent.decided", {"agentId": WHO}),
        ("agent.decided", {"agentId": WHO, "decision": 1, "confidence": 1.5}),
        ("agent.decided", {"agentId": WHO, "decision": 1, "confidence": float("nan")}),
        ("agent.reasoned", {"agentId": "ab", "reasoning": "x"}),
        ("agent.handoff", {"from": WHO, "to": WHO}),
        ("agent.toolReturned", EVENTS["agent.toolReturned"] | {"error": {"code": "e"}}),
    ],
)
async def test_an_invalid_payload_fails_the_node_and_is_not_logged(
    ours: Bench, event_type: str, payload: JsonObject
) -> None:
    run_id = await run_emitting(ours, "vendor.acme.speak", (event_type, payload))

    assert await emitted(ours, run_id) == []
    failed = next(e for e in await ours.log(run_id) if e.type == "node.failed")
    assert failed.payload["error"]["code"] == "validation_error"
    assert event_type in failed.payload["error"]["message"]


# Events that are not advertised


def everything() -> Guard:
    """Return an emission guard with the discovery document of a conformance host."""
    return Guard(discovery())


def discovery(**changes: Json) -> JsonObject:
    registry = builtin_registry(with_conformance=True)
    found: JsonObject = msgspec.to_builtins(capabilities(Settings(), registry, [], ""))
    return found | changes


@pytest.mark.parametrize("event_type", EVENTS)
@pytest.mark.parametrize("agents", [None, {}, {"supported": False}, {"supported": "yes"}])
def test_a_host_without_agent_support_emits_no_agent_events(event_type: str, agents: Json) -> None:
    guard = Guard(discovery(agents=agents))

    assert not guard.advertises(event_type)
    with pytest.raises(NodeFailure, match="does not advertise"):
        guard.check("vendor.acme.speak", event_type, EVENTS[event_type])


@pytest.mark.parametrize(
    ("flag", "silenced"),
    [
        ("reasoningEvents", REASONING),
        ("toolEvents", TOOLS),
        ("handoffEvents", {"agent.handoff"}),
        ("decisionEvents", {"agent.decided"}),
    ],
)
def test_events_of_a_disabled_family_are_dropped_and_others_are_emitted(
    flag: str, silenced: set[str]
) -> None:
    agents = discovery()["agents"]

    off = Guard(discovery(agents=agents | {flag: False}))
    unsaid = Guard(discovery(agents={k: v for k, v in agents.items() if k != flag}))

    assert {name for name in EVENTS if not off.advertises(name)} == silenced
    assert all(unsaid.advertises(name) for name in EVENTS)


def test_deltas_need_advertised_streaming() -> None:
    agents = discovery()["agents"]
    reasoning = agents["reasoning"] | {"streaming": False}

    guard = Guard(discovery(agents=agents | {"reasoning": reasoning}))

    assert not guard.advertises("agent.reasoning.delta")
    assert guard.advertises("agent.reasoned")


async def test_a_host_without_streaming_emits_reasoning_in_one_piece(ours: Bench) -> None:
    services = ours.host.advancer.services
    ours.host.advancer.executor.services = replace(services, streams_reasoning=False)
    thoughts = {"mockReasoning": {"summary": "s", "streamChunks": ["one ", "two"]}}
    thinker = node("speaker", "core.conformance.mock-agent", config=thoughts)
    run_id = await ours.create(await ours.register([thinker], id="conformance-unstreamed"))

    (closing,) = await emitted(ours, run_id)

    assert closing.type == "agent.reasoned"
    assert closing.payload["reasoning"] == "one two"


@pytest.mark.parametrize(
    ("event_type", "family"),
    [
        ("runOrchestrator.decided", "agents"),
        ("core.workflowChain.event", "multiAgent"),
        ("core.workflowChain.confidence-escalated", "multiAgent"),
        ("conversation.opened", "conversationPrimitive"),
        ("memory.written", "memory"),
    ],
)
def test_an_event_needs_the_family_it_belongs_to(event_type: str, family: str) -> None:
    without = {key: value for key, value in discovery().items() if key != family}

    assert everything().advertises(event_type)
    assert not Guard(without).advertises(event_type)


# Held decisions


async def answered(ours: Bench, run_id: str, value: Json) -> None:
    by = Resolver(name="somebody", role="admin")
    await ours.host.commands.resolve_interrupt(TENANT, run_id, "speaker", value, by)


def unsure(confidence: float = 0.5, agent_id: str = WHO, decision: Json = "go") -> JsonObject:
    return {"agentId": agent_id, "decision": decision, "confidence": confidence}


async def test_a_node_s_unsure_decision_is_held(ours: Bench) -> None:
    run_id = await run_emitting(
        ours, "vendor.acme.speak", ("agent.decided", unsure()), outputs={"done": True}
    )

    assert (await ours.row(run_id)).status == "waiting-approval"
    await answered(ours, run_id, {"action": "accept"})
    completed = next(e for e in await ours.log(run_id) if e.type == "node.completed")
    assert completed.payload["outputs"] == {"done": True}


async def test_a_sure_decision_does_not_hide_an_unsure_one(ours: Bench) -> None:
    run_id = await run_emitting(
        ours,
        "vendor.acme.speak",
        ("agent.decided", unsure(0.2, decision="first")),
        ("agent.decided", unsure(1)),
    )

    suspended = next(e for e in await ours.log(run_id) if e.type == "node.suspended")
    assert suspended.payload["decision"] == "first"
    assert suspended.payload["observed"] == 0.2


async def test_a_decision_recorded_before_the_node_slept_is_held_at_its_end(
    ours: Bench,
) -> None:
    ponder = node("speaker", "vendor.acme.ponder", config={"decided": unsure()})
    run_id = await ours.create(await ours.register([ponder]))
    await ours.until_logged(run_id, "agent.decided")
    await ours.wake(run_id)
    await ours.until(run_id, "waiting-approval", "completed")

    assert (await ours.row(run_id)).status == "waiting-approval"
    await answered(ours, run_id, {"action": "accept"})
    assert (await ours.row(run_id)).status == "completed"
    assert (await ours.types(run_id)).count("node.suspended") == 1


# Redaction


PARTS = ["sk-ant-", "api03-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG"]


async def test_a_secret_in_reasoning_deltas_and_tool_calls_is_not_logged(ours: Bench) -> None:
    speaker = node("speaker", "vendor.acme.confess", config={"parts": PARTS})
    run_id = await ours.create(await ours.register([speaker]))

    log = await emitted(ours, run_id)

    told = "".join(e.payload["delta"] for e in log if e.type == "agent.reasoning.delta")
    called = next(event for event in log if event.type == "agent.toolCalled")
    assert "".join(PARTS) not in str(log)
    assert "REDACTED" in told
    assert "REDACTED" in called.payload["inputs"]["key"]
    assert called.payload["argsHash"] == args_hash(called.payload["inputs"])


# Tools of any node


async def fetched(ours: Bench, **config: Json) -> tuple[str, list[RunEvent]]:
    """Run a node that calls a tool, and return the status and the agent events."""
    fetch = node("speaker", "acme.fetch", config={"arguments": {"q": 1}, **config})
    run_id = await ours.create(await ours.register([fetch]))
    await ours.until(run_id, "completed", "failed")
    return (await ours.row(run_id)).status, await emitted(ours, run_id)


async def test_the_host_records_a_node_s_tool_call_for_it(ours: Bench) -> None:
    status, (before, after) = await fetched(ours)

    assert status == "completed"
    assert before.payload["agentId"] == before.payload["principal"] == "core.system"
    assert after.payload["outcome"] == "not shown"
    assert after.causation_id == before.event_id


async def test_a_run_without_a_principal_may_call_no_tool_that_needs_a_scope(
    ours: Bench,
) -> None:
    status, (_, after) = await fetched(ours, scopes=["runs:read"])

    assert status == "failed"
    assert after.payload["status"] == "forbidden"
