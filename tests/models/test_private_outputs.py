"""Nodes with a model and sensitive outputs reveal nothing."""

from __future__ import annotations

import json

import pytest

from tests.models.conftest import NewHost
from tests.models.model_runs import OUTCOMES, model_node, only_payload, started
from tests.models.openai_server import OpenAiServer
from tests.models.turns import CallTools, Hang, Say, Turn
from tests.support.definitions import edge, fresh, node
from tests.support.eventually import eventually
from tests.support.stored_files import stored
from tests.support.surfaces import leaks, surfaces
from wopr.protocol.documents import JsonObject

CANARY = "the-heron-nests-under-the-weir"
INSTEAD = "it-is-the-otter-after-all"
FOUND = "what-the-tool-found-by-the-river"
RESULT: JsonObject = {
    "type": "object",
    "properties": {"word": {"type": "string"}, "confidence": {"type": "number"}},
    "required": ["word", "confidence"],
}


def said(confidence: float) -> Say:
    text = json.dumps({"word": CANARY, "confidence": confidence})
    return Say(text, reasoning=f"It must be {CANARY}.")


@pytest.fixture
def tool(server: OpenAiServer) -> JsonObject:
    path = f"/{fresh('river')}"
    server.service.answers[path] = (200, {"found": FOUND})
    return {"name": "river:look", "description": "Look.", "url": f"{server.url}{path}"}


LOOK = CallTools((("look", {"at": CANARY}),), text=f"I look for {CANARY}.")
KINDS = pytest.mark.parametrize(
    ("kind", "turns"), [("structured", ()), ("agent", ()), ("agent", (LOOK,))]
)


@KINDS
def test_a_sensitive_result_is_never_in_plain_text(
    new_host: NewHost, server: OpenAiServer, tool: JsonObject, kind: str, turns: tuple[Turn, ...]
) -> None:
    host = new_host("--log-format", "json", "--log-level", "debug")
    config = {"schema": RESULT} | ({"httpTools": [tool]} if turns else {})
    model = server.script([*turns, said(0.9)])
    marked = model_node(kind, model, config, outputSensitivity={"result": True})
    # Given by its length: a definition with the value itself would reveal it.
    right = f"size(nodes.ask.result.word) == {len(CANARY)}"
    check = node("check", "core.conditional", config={"expression": right})

    run_id = started(host.wire, [marked, check], definition={"edges": [edge("ask", "check")]})
    shown = host.wire.finished(run_id)

    assert shown["nodeStates"]["check"]["outputs"] == {"result": True}
    assert not leaks(surfaces(host.wire, run_id), CANARY, FOUND)
    assert not leaks(stored(host), CANARY, FOUND)
    host.stop()
    assert not leaks(stored(host), CANARY, FOUND)
    assert not leaks(host.log(), CANARY, FOUND)


@pytest.mark.parametrize("mode", ["mask", "omit", "hash"])
@pytest.mark.parametrize("kind", ["structured", "agent"])
def test_a_sensitive_decision_waits_for_a_person_without_being_shown(
    new_host: NewHost, server: OpenAiServer, kind: str, mode: str
) -> None:
    host = new_host()
    model = server.script([said(0.3)])
    marked = model_node(kind, model, {"schema": RESULT}, outputSensitivity={"result": True})
    masking = {"metadata": {"complianceConfig": {"maskingMode": mode}}}
    run_id = started(host.wire, [marked], definition=masking)
    log = host.wire.events_until(run_id, *OUTCOMES)
    inbox = host.wire.get("/v1/interrupts", params={"runId": run_id}).text

    host.wire.post(f"/v1/runs/{run_id}/interrupts/ask", {"resumeValue": {"action": "accept"}})
    ended = host.wire.finished(run_id)

    assert ended["status"] == "completed"
    assert only_payload(log, "agent.decided")["decision"] == "[REDACTED]"
    assert not leaks(inbox + surfaces(host.wire, run_id), CANARY)
    assert not leaks(stored(host), CANARY)


@pytest.mark.parametrize("is_wrapped", [True, False])
@pytest.mark.parametrize("kind", ["structured", "agent"])
def test_a_person_s_replacement_of_a_sensitive_decision_is_carried_out_and_not_shown(
    new_host: NewHost, server: OpenAiServer, kind: str, is_wrapped: bool
) -> None:
    host = new_host("--log-format", "json", "--log-level", "debug")
    model = server.script([said(0.3)])
    marked = model_node(kind, model, {"schema": RESULT}, outputSensitivity={"result": True})
    right = f"size(nodes.ask.result.word) == {len(INSTEAD)}"
    check = node("check", "core.conditional", config={"expression": right})
    run_id = started(host.wire, [marked, check], definition={"edges": [edge("ask", "check")]})
    host.wire.events_until(run_id, *OUTCOMES)
    decision: JsonObject = {"word": INSTEAD, "confidence": 1}
    value = {"decision": decision} if is_wrapped else decision

    host.wire.post(f"/v1/runs/{run_id}/interrupts/ask", {"resumeValue": value})
    ended = host.wire.finished(run_id)

    assert ended["nodeStates"]["check"]["outputs"] == {"result": True}
    resolved = only_payload(host.wire.log(run_id), "interrupt.resolved")["resumeValue"]
    assert resolved == ({"decision": "[REDACTED]"} if is_wrapped else "[REDACTED]")
    bundle = host.wire.get(f"/v1/runs/{run_id}/debug-bundle").text
    assert not leaks(bundle + surfaces(host.wire, run_id), INSTEAD, CANARY)
    host.stop()
    assert not leaks(stored(host), INSTEAD, CANARY)
    assert not leaks(host.log(), INSTEAD, CANARY)


def test_a_reviewer_s_text_at_a_sensitive_gate_reaches_the_model_even_after_a_kill(
    new_host: NewHost, server: OpenAiServer
) -> None:
    host = new_host()
    model = server.script([Say("A draft."), Hang(), Say("Better.")])
    config = {"title": "Fine?", "actions": ["accept", "refine"]}
    gate = node("gate", "core.approvalGate", config=config, outputSensitivity={"artifact": True})
    run_id = started(
        host.wire, [model_node("chat", model), gate], definition={"edges": [edge("ask", "gate")]}
    )
    host.wire.events_until(run_id, *OUTCOMES)
    refined = {"action": "refine", "refineFeedback": {"scope": "whole", "text": INSTEAD}}
    host.wire.post(f"/v1/runs/{run_id}/interrupts/gate", {"resumeValue": refined})
    eventually(lambda: server.request_count(model) == 2)

    host.kill()
    host.start()
    eventually(lambda: server.request_count(model) == 3)

    assert INSTEAD in server.prompt(model, 1)
    assert server.requests[model][2] == server.requests[model][1]
    assert not leaks(str(host.wire.log(run_id)), INSTEAD)
    assert not leaks(stored(host), INSTEAD)


def test_a_failed_tool_of_a_sensitive_node_shows_its_code_and_not_its_text(
    new_host: NewHost, server: OpenAiServer, tool: JsonObject
) -> None:
    host = new_host()
    tool |= {"url": f"{server.url}/nowhere"}
    config = {"schema": RESULT, "httpTools": [tool]}
    model = server.script([LOOK, said(0.9)])
    marked = model_node("agent", model, config, outputSensitivity={"result": True})

    run_id = started(host.wire, [marked])
    host.wire.finished(run_id)

    returned = only_payload(host.wire.log(run_id), "agent.toolReturned")
    assert returned["error"] == {"code": "http_error", "message": "[REDACTED]"}
    assert "answered 404" in server.prompt(model, 1)
    assert "answered 404" not in stored(host).decode(errors="replace")
