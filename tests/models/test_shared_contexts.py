"""Agents in a shared context: the earlier messages that each model receives."""

from __future__ import annotations

import json

import pytest

from tests.models.conftest import NewHost
from tests.models.model_runs import OUTCOMES, model_node, payloads, started
from tests.models.openai_server import OpenAiServer
from tests.models.turns import Say
from tests.support.client import Wire
from tests.support.definitions import edge, node, workflow
from wopr.protocol.documents import Json, JsonObject

GATE = node("gate", "core.approvalGate", config={"title": "Go on?"})


def asking(
    server: OpenAiServer, node_id: str, answer: str, sharing: str | None, **fields: Json
) -> tuple[str, JsonObject]:
    """Return a chat node with one scripted answer, and the name of its model."""
    model = server.script([Say(answer)])
    config: JsonObject = {"prompt": f"Task of {node_id}."}
    if sharing is not None:
        config["agentSharing"] = sharing
    return model, model_node("chat", model, config | fields.pop("config", {}), id=node_id, **fields)


def received_messages(server: OpenAiServer, model: str, place: int = 0) -> list[tuple[str, str]]:
    """Return the messages of a model after its system prompt: role and text."""
    messages = server.requests[model][place]["messages"]
    return [(each["role"], each["content"]) for each in messages if each["role"] != "system"]


def ended(wire: Wire, nodes: list[JsonObject], **body: Json) -> list[JsonObject]:
    return wire.events_until(started(wire, nodes, **body), "run.completed", "run.failed")


@pytest.mark.parametrize("sharing", ["shared", "shared:team"])
def test_agents_in_a_shared_context_see_the_earlier_messages(
    acme: Wire, server: OpenAiServer, sharing: str
) -> None:
    _, first = asking(server, "first", "Blue.", sharing)
    model, second = asking(server, "second", "It calms.", sharing)

    ended(acme, [first, second])

    assert received_messages(server, model) == [
        ("user", "Task of first."),
        ("assistant", "Blue."),
        ("user", "Task of second."),
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [(None, None), ("isolated", "isolated"), ("shared", None), ("shared:a", "shared:b")],
    ids=["the default", "isolated", "only the first shares", "two groups"],
)
def test_agents_without_a_shared_context_see_no_messages(
    acme: Wire, server: OpenAiServer, one: str | None, other: str | None
) -> None:
    _, first = asking(server, "first", "Blue.", one)
    model, second = asking(server, "second", "Why?", other)

    ended(acme, [first, second])

    assert received_messages(server, model) == [("user", "Task of second.")]


def test_the_run_shows_the_conversation_in_order_with_its_group(
    acme: Wire, server: OpenAiServer
) -> None:
    pin = {"agent": {"agentId": "local.acme.team.ada"}}
    nodes = [asking(server, name, f"From {name}.", "shared:team", **pin)[1] for name in "ab"]

    run_id = started(acme, nodes)
    acme.events_until(run_id, "run.completed")
    found = acme.snapshot(run_id)

    said = found["channels"]["agentContext:team"]
    assert [(m["from"], m["role"], m["content"]) for m in said] == [
        ("user", "user", "Task of a."),
        ("local.acme.team.ada", "assistant", "From a."),
        ("user", "user", "Task of b."),
        ("local.acme.team.ada", "assistant", "From b."),
    ]
    assert {message["groupId"] for message in said} == {"team"}
    assert len({message["messageId"] for message in said}) == 4
    assert "agentContext:team" not in found["variables"]


def test_another_agent_s_text_reaches_a_model_as_data(acme: Wire, server: OpenAiServer) -> None:
    _, first = asking(server, "first", "Blue.", "shared", agent={"agentId": "local.acme.team.ada"})
    model, second = asking(
        server, "second", "Why?", "shared", agent={"agentId": "local.acme.team.bob"}
    )

    ended(acme, [first, second])

    role, text = received_messages(server, model)[1]
    assert role == "user"
    assert text.startswith('<UNTRUSTED agent="local.acme.team.ada">')
    assert "Blue." in text


def test_a_node_of_a_loop_sees_its_own_earlier_rounds(acme: Wire, server: OpenAiServer) -> None:
    model = server.script([Say("One."), Say("Two.")])
    config = {"prompt": "Count on.", "agentSharing": "shared"}
    loop = node("loop", "core.loop", config={"times": 2})
    count = model_node("chat", model, config, id="count")
    again = {"type": "expression", "expression": "!nodes.loop.done"}
    edges = [edge("loop", "count", condition=again), edge("count", "loop")]
    definition = workflow([loop, count], edges=edges)
    acme.register(definition)

    log = acme.events_until(acme.create(definition["id"]), "run.completed", "run.failed")

    assert log[-1]["type"] == "run.completed", log[-1]
    assert [text for _, text in received_messages(server, model, 1)] == [
        "Count on.",
        "One.",
        "Count on.",
    ]


def test_a_structured_answer_is_shared_as_the_final_document(
    acme: Wire, server: OpenAiServer
) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    model = server.script([Say('{"city": "Paris", "confidence": 0.2}')])
    first = model_node(
        "structured", model, {"schema": schema, "agentSharing": "shared"}, id="first"
    )
    after, second = asking(server, "second", "Yes.", "shared")
    run_id = started(acme, [first, second])
    acme.events_until(run_id, "node.suspended")

    decided = {"decision": {"city": "Rome"}}
    acme.post(f"/v1/runs/{run_id}/interrupts/first", {"resumeValue": decided})
    acme.events_until(run_id, "run.completed")

    assert json.loads(received_messages(server, after)[1][1]) == {"city": "Rome"}


def test_a_context_survives_a_restart_of_the_host(new_host: NewHost, server: OpenAiServer) -> None:
    host = new_host()
    _, first = asking(server, "first", "Blue.", "shared")
    model, second = asking(server, "second", "Why?", "shared")
    run_id = started(host.wire, [first, GATE, second])
    host.wire.events_until(run_id, "interrupt.requested")

    host.hang_up()
    host.restart()
    host.wire.post(f"/v1/runs/{run_id}/interrupts/gate", {"resumeValue": {"action": "accept"}})
    host.wire.events_until(run_id, "run.completed")

    assert received_messages(server, model)[:2] == [
        ("user", "Task of first."),
        ("assistant", "Blue."),
    ]


def test_a_branch_continues_with_a_copy_of_its_source_s_context(
    acme: Wire, server: OpenAiServer
) -> None:
    _, first = asking(server, "first", "Blue.", "shared")
    model = server.script([Say("Why?"), Say("Why not?")])
    second = model_node("chat", model, {"prompt": "Go on.", "agentSharing": "shared"}, id="second")
    run_id = started(acme, [first, second])
    acme.events_until(run_id, "run.completed")
    log = acme.log(run_id)
    start = next(
        e["sequence"] for e in log if e["type"] == "node.started" and e["nodeId"] == "second"
    )

    fork = acme.post(f"/v1/runs/{run_id}:fork", {"mode": "branch", "fromSeq": start}).json()
    acme.events_until(fork["runId"], "run.completed")

    assert received_messages(server, model, 1) == received_messages(server, model, 0)
    said = [
        [message["content"] for message in acme.snapshot(each)["channels"]["agentContext"]]
        for each in (run_id, fork["runId"])
    ]
    assert [texts[-1] for texts in said] == ["Why?", "Why not?"]


def test_a_replay_of_a_shared_context_calls_no_model_and_does_not_differ(
    acme: Wire, server: OpenAiServer
) -> None:
    nodes = [asking(server, name, f"From {name}.", "shared") for name in "abc"]
    run_id = started(acme, [each for _, each in nodes])
    acme.events_until(run_id, "run.completed")

    fork = acme.post(f"/v1/runs/{run_id}:fork", {"mode": "replay"}).json()["runId"]
    log = acme.events_until(fork, *OUTCOMES)

    assert payloads(log, "replay.diverged") == []
    assert acme.snapshot(fork)["channels"] == acme.snapshot(run_id)["channels"]
    assert [server.request_count(model) for model, _ in nodes] == [1, 1, 1]


def test_a_sensitive_answer_reaches_the_next_model_and_no_reader(
    acme: Wire, server: OpenAiServer
) -> None:
    _, first = asking(
        server, "first", "the-hidden-word", "shared", outputSensitivity={"text": True}
    )
    model, second = asking(server, "second", "Fine.", "shared")
    run_id = started(acme, [first, second])
    log = acme.events_until(run_id, "run.completed")

    assert "the-hidden-word" in json.dumps(received_messages(server, model))
    assert "the-hidden-word" not in json.dumps(log)
    assert "the-hidden-word" not in json.dumps(acme.snapshot(run_id))


@pytest.mark.parametrize("sharing", ["", "all", "shared:", "shared: ", "isolated:a", 1])
def test_an_unknown_kind_of_sharing_is_refused_with_its_place(acme: Wire, sharing: Json) -> None:
    bad = model_node("chat", "m", {"agentSharing": sharing})

    response = acme.post("/v1/workflows", workflow([bad]))

    assert response.status_code == 400
    (fault,) = response.json()["details"]["errors"]
    assert fault["path"] == "nodes.0.config.agentSharing"


def test_context_channels_are_written_by_agents_alone(acme: Wire) -> None:
    write = node("write", "core.channelWrite", config={"channelName": "agentContext", "value": 1})
    declared = {"agentContext:team": {"reducer": "message", "schemaVersion": 1}}

    response = acme.post("/v1/workflows", workflow([write], channels=declared))

    assert [fault["path"] for fault in response.json()["details"]["errors"]] == [
        "nodes.0.config.channelName",
        "channels.agentContext:team",
    ]
