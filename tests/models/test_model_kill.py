from __future__ import annotations

from tests.models.conftest import NewHost
from tests.models.model_runs import model_node, payloads, started
from tests.models.openai_server import OpenAiServer
from tests.models.turns import CallTools, Hang, Say
from tests.support.definitions import fresh
from tests.support.eventually import eventually
from wopr.protocol.documents import JsonObject


def test_after_a_kill_no_completed_model_or_tool_call_is_repeated(
    new_host: NewHost, server: OpenAiServer
) -> None:
    host = new_host()
    path = f"/{fresh('note')}"
    server.service.answers[path] = (200, "noted")
    tool: JsonObject = {
        "name": "desk:note",
        "description": "Take a note.",
        "method": "POST",
        "url": f"{server.url}{path}",
    }
    turns = [CallTools((("note", {"n": 1}),)), CallTools((("note", {"n": 2}),)), Hang()]
    model = server.script([*turns, Say("Done.")])
    run_id = started(host.wire, [model_node("agent", model, {"httpTools": [tool]})])
    eventually(lambda: server.request_count(model) == 3)

    host.kill()
    host.start()

    assert host.wire.finished(run_id)["outputs"]["ask"]["text"] == "Done."
    log = host.wire.log(run_id)
    notes = [request for request in server.service.requests if request["path"] == path]
    assert [request["body"] for request in notes] == ['{"n":1}', '{"n":2}']
    assert len({request["headers"]["idempotency-key"] for request in notes}) == 2
    # Two answers before the kill, the hanging one, and the last: none was requested again.
    assert server.request_count(model) == 4
    assert server.requests[model][3] == server.requests[model][2]
    assert len(payloads(log, "provider.usage")) == 3
    assert len(payloads(log, "agent.toolCalled")) == len(payloads(log, "agent.toolReturned")) == 2
    assert len(payloads(log, "agent.invocation.started")) == 1
    host.check()


def test_a_kill_during_a_tool_call_repeats_that_call_with_the_same_ids(
    new_host: NewHost, server: OpenAiServer
) -> None:
    host = new_host()
    slow = server.script([Hang()])
    tool: JsonObject = {
        "name": "desk:slow",
        "description": "Wait.",
        "method": "POST",
        # The scripted models are also a service that hangs first, and then responds.
        "url": f"{server.url}/v1/chat/completions",
    }
    model = server.script([CallTools((("slow", {"model": slow}),)), Say("Done.")])
    run_id = started(host.wire, [model_node("agent", model, {"httpTools": [tool]})])
    eventually(lambda: server.request_count(slow) == 1)
    host.kill()
    server.scripts[slow] = [Say("At last.")]

    host.start()

    assert host.wire.finished(run_id)["outputs"]["ask"]["text"] == "Done."
    log = host.wire.log(run_id)
    assert len(payloads(log, "agent.toolCalled")) == len(payloads(log, "agent.toolReturned")) == 1
    assert server.request_count(model) == 2
    host.check()
