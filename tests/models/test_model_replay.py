from __future__ import annotations

import json

from tests.models.conftest import NewHost
from tests.models.model_runs import OUTCOMES, model_node, payloads, run_node, started
from tests.models.model_server import ModelServer
from tests.models.openai_server import OpenAiServer
from tests.models.turns import CallTools, Say
from tests.support.client import Wire
from tests.support.definitions import fresh, node
from wopr.protocol.documents import Json, JsonObject


def told(log: list[JsonObject]) -> list[tuple[str, Json]]:
    return [(event["type"], event["payload"]) for event in log]


def replayed(wire: Wire, run_id: str, **body: Json) -> str:
    answer = wire.post(f"/v1/runs/{run_id}:fork", {"mode": "replay"} | body)
    assert answer.status_code == 201, answer.text
    fork: str = answer.json()["runId"]
    wire.events_until(fork, *OUTCOMES)
    return fork


def worked(wire: Wire, any_server: ModelServer) -> tuple[str, str]:
    """Run an agent that uses a tool; return the model's name and the run's id."""
    path = f"/{fresh('orders')}"
    any_server.service.answers[path] = (200, {"orders": [1, 2]})
    tool = {"name": "shop:orders", "description": "Find orders.", "url": f"{any_server.url}{path}"}
    turns = [CallTools((("orders", {}),)), Say("Two.", reasoning="I counted.")]
    model, log = run_node(wire, any_server, turns, "agent", {"httpTools": [tool]})
    return model, str(log[0]["runId"])


def test_a_replay_gives_the_same_log_without_a_model_call(
    acme: Wire, any_server: ModelServer
) -> None:
    model, run_id = worked(acme, any_server)
    asked, served = any_server.request_count(model), len(any_server.service.requests)

    fork = replayed(acme, run_id)

    assert told(acme.log(fork)) == told(acme.log(run_id))
    assert any_server.request_count(model) == asked
    assert len(any_server.service.requests) == served


def test_a_replay_from_the_middle_of_the_loop_makes_no_model_call(
    acme: Wire, server: OpenAiServer
) -> None:
    model, run_id = worked(acme, server)
    types = acme.types(run_id)

    fork = replayed(acme, run_id, fromSeq=types.index("agent.toolReturned"))

    assert told(acme.log(fork)) == told(acme.log(run_id))
    assert server.request_count(model) == 2


def test_a_replay_works_on_a_host_that_has_no_models(
    new_host: NewHost, server: OpenAiServer
) -> None:
    host = new_host()
    model, run_id = worked(host.wire, server)
    before = told(host.wire.log(run_id))
    host.variables["WOPR_MODEL_SERVERS"] = ""
    host.hang_up()
    host.restart()

    fork = replayed(host.wire, run_id)

    assert told(host.wire.log(fork)) == before
    assert server.request_count(model) == 2


def test_a_branch_makes_new_requests_with_its_own_counters(
    acme: Wire, server: OpenAiServer
) -> None:
    model = server.script([Say("Once."), Say("Twice.")])
    run_id = started(acme, [model_node("chat", model)])
    acme.finished(run_id)

    answer = acme.post(f"/v1/runs/{run_id}:fork", {"mode": "branch", "fromSeq": 1})

    fork = answer.json()["runId"]
    assert acme.finished(fork)["outputs"]["ask"]["text"] == "Twice."
    assert len(payloads(acme.log(fork), "provider.usage")) == 1


def test_a_changed_prompt_is_reported_and_the_record_is_used(
    new_host: NewHost, server: OpenAiServer
) -> None:
    # The operator's settings are not part of the run. Here the model is one, and part of the
    # prompt.
    model, other = server.script([Say("Once.")]), server.script([Say("Never said.")])
    host = new_host(WOPR_DEFAULT_MODEL=f"local:{model}")
    question = node("ask", "openwop.llm.chat", config={"prompt": "Say something."})
    run_id = started(host.wire, [question])
    host.wire.finished(run_id)
    host.variables["WOPR_DEFAULT_MODEL"] = f"local:{other}"
    host.hang_up()
    host.restart()

    fork = replayed(host.wire, run_id)

    [diverged] = payloads(host.wire.log(fork), "replay.diverged")
    assert (diverged["divergenceKind"], diverged["divergencePoint"]) == ("output", "model-request")
    assert host.wire.snapshot(fork)["outputs"]["ask"]["text"] == "Once."
    assert server.request_count(other) == 0


def test_an_unsure_agent_s_answer_is_replayed_with_the_person_s(
    acme: Wire, server: OpenAiServer
) -> None:
    said = json.dumps({"answer": "refund", "confidence": 0.3, "reasoning": "A guess."})
    model, log = run_node(acme, server, [Say(said)], "agent", {"asksConfidence": True})
    run_id = str(log[0]["runId"])
    acme.post(f"/v1/runs/{run_id}/interrupts/ask", {"resumeValue": {"decision": "voucher"}})
    acme.finished(run_id)

    answer = acme.post(f"/v1/runs/{run_id}:fork", {"mode": "replay"})
    fork = answer.json()["runId"]

    assert acme.finished(fork)["outputs"]["ask"]["result"] == "voucher"
    assert told(acme.log(fork)) == told(acme.log(run_id))
    assert server.request_count(model) == 1
