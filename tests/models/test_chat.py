from __future__ import annotations

import pytest

from tests.models.conftest import Servers
from tests.models.model_runs import (
    OUTCOMES,
    error_of,
    model_node,
    only_payload,
    outputs_of,
    payloads,
    run_node,
    started,
    types,
)
from tests.models.model_server import ModelServer
from tests.models.openai_server import OpenAiServer
from tests.models.turns import BreakOff, Fail, FailLate, Garble, GarbleLate, Hang, Refuse, Say, Turn
from tests.support.client import Wire
from tests.support.definitions import workflow
from tests.support.eventually import eventually

# The form of an unregistered key, cut where a stream cuts it.
CANARY = ("The key is AKIA", "IOSFODNN", "7EXAMPLE, keep it.")


def test_a_chat_streams_its_text_and_returns_it(acme: Wire, any_server: ModelServer) -> None:
    turn = Say("Hello there.", pieces=("Hel", "lo ", "there."), reasoning="They greet me.")

    _, log = run_node(acme, any_server, [turn])

    assert outputs_of(log)["text"] == "Hello there."
    assert "".join(chunk["chunk"] for chunk in payloads(log, "output.chunk")) == "Hello there."
    assert [chunk["isLast"] for chunk in payloads(log, "output.chunk")][-1] is True
    assert only_payload(log, "agent.reasoned")["reasoning"] == "They greet me."


def test_reasoning_is_streamed_in_pieces_before_it_is_complete(
    acme: Wire, any_server: ModelServer
) -> None:
    _, log = run_node(acme, any_server, [Say("Yes.", reasoning="I think so.")])

    deltas = payloads(log, "agent.reasoning.delta")
    assert "".join(delta["delta"] for delta in deltas) == "I think so."
    assert [delta["sequence"] for delta in deltas] == list(range(len(deltas)))
    assert types(log).index("agent.reasoning.delta") < types(log).index("agent.reasoned")


def test_every_answer_has_one_usage_event_before_its_node_ends(
    acme: Wire, any_server: ModelServer
) -> None:
    model, log = run_node(acme, any_server, [Say("Hello.", tokens=(12, 3))])

    usage = only_payload(log, "provider.usage")
    assert (usage["provider"], usage["model"]) == (any_server.provider, model)
    assert (usage["inputTokens"], usage["outputTokens"], usage["totalTokens"]) == (12, 3, 15)
    assert types(log).index("provider.usage") < types(log).index("node.completed")


@pytest.mark.parametrize("provider", ["anthropic", "google"])
def test_the_price_of_an_answer_is_reported_where_it_is_known(
    acme: Wire, servers: Servers, provider: str
) -> None:
    _, log = run_node(acme, servers[provider], [Say("Hello.", tokens=(1000, 10))])

    price = only_payload(log, "provider.usage")["costEstimateUsd"]
    assert 0 < price < 1


def test_a_host_without_streaming_sends_the_text_at_once(
    acme: Wire, any_server: ModelServer
) -> None:
    # Few enough that Anthropic's client does not stream by itself.
    config = {"stream": False, "maxOutputTokens": 99}

    model, log = run_node(acme, any_server, [Say("Hello.")], config=config)

    assert only_payload(log, "output.chunk")["chunk"] == "Hello."
    assert not any_server.requests[model][0].get("stream")


def test_a_secret_split_across_pieces_reaches_no_reader(
    acme: Wire, any_server: ModelServer
) -> None:
    _, log = run_node(
        acme, any_server, [Say("".join(CANARY), pieces=CANARY, reasoning="".join(CANARY))]
    )

    assert "IOSFODNN" not in str(log)
    assert "REDACTED" in outputs_of(log)["text"]


def test_a_refusal_fails_the_node_and_its_text_is_not_in_the_error(
    acme: Wire, any_server: ModelServer
) -> None:
    model, log = run_node(acme, any_server, [Refuse("I will not.")])

    refusal = only_payload(log, "envelope.refusal")
    assert refusal["provider"] == any_server.provider
    assert refusal.get("refusalText") == ("I will not." if any_server.explains_refusals else None)
    assert error_of(log) == "envelope_refused_by_provider"
    assert "I will not" not in str(payloads(log, "run.failed"))
    assert any_server.request_count(model) == 1


def test_a_truncated_answer_is_reported_as_such(acme: Wire, any_server: ModelServer) -> None:
    _, log = run_node(acme, any_server, [Say("Half a sen", finish="length")])

    cut = only_payload(log, "envelope.truncated")
    assert (cut["stopReason"], cut["partialPayloadAvailable"]) == ("length", True)
    assert outputs_of(log)["finishReason"] == "length"


@pytest.mark.parametrize(
    "fault",
    [
        Fail(429, retry_after="0"),
        Fail(500),
        Fail(503),
        Garble(),
        GarbleLate("Hal"),
        FailLate("Hal"),
        BreakOff("Hal"),
    ],
    ids=["429", "500", "503", "garbled", "garbled-late", "failed-late", "broken-off"],
)
def test_a_provider_that_fails_once_gets_a_second_request(
    acme: Wire, any_server: ModelServer, fault: Turn
) -> None:
    model, log = run_node(acme, any_server, [fault, Say("Hello.")])

    assert outputs_of(log)["text"] == "Hello."
    assert any_server.request_count(model) == 2
    assert len(payloads(log, "provider.usage")) == 1


def test_a_provider_s_retry_after_is_respected(acme: Wire, any_server: ModelServer) -> None:
    _, log = run_node(acme, any_server, [Fail(429, retry_after="1"), Say("Hello.")])

    [line] = [p for p in payloads(log, "log.appended") if p["level"] == "warn"]
    assert line["message"].endswith("next attempt in 1 s")


def test_a_long_retry_after_fails_the_node(acme: Wire, any_server: ModelServer) -> None:
    model, log = run_node(acme, any_server, [Fail(429, retry_after="3600")])

    assert error_of(log) == "model_unavailable"
    assert any_server.request_count(model) == 1


def test_a_provider_that_keeps_failing_fails_the_node(acme: Wire, any_server: ModelServer) -> None:
    model, log = run_node(acme, any_server, [Fail(500), Fail(500)], config={"maxRetries": 1})

    assert error_of(log) == "model_unavailable"
    assert any_server.request_count(model) == 2


def test_a_provider_that_never_answers_times_out(acme: Wire, any_server: ModelServer) -> None:
    config = {"timeoutMs": 1000, "maxRetries": 1}

    model, log = run_node(acme, any_server, [Hang(), Hang()], config=config)

    assert error_of(log) == "model_timeout"
    eventually(lambda: any_server.request_count(model) == 2)


def test_a_rejected_request_is_not_repeated(acme: Wire, any_server: ModelServer) -> None:
    model, log = run_node(acme, any_server, [Fail(400, message="you said: Do your task.")])

    assert error_of(log) == "model_rejected"
    assert any_server.request_count(model) == 1
    assert "you said" not in str(log)


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (401, "the key is missing or wrong; it comes from {provider}_API_KEY"),
        (404, "there is no such model"),
    ],
)
def test_a_rejection_explains_the_likely_cause_without_the_provider_s_text(
    acme: Wire, any_server: ModelServer, status: int, told: str
) -> None:
    model, log = run_node(acme, any_server, [Fail(status, message="you said: Do your task.")])

    message = only_payload(log, "run.failed")["error"]["message"]
    assert told.format(provider=any_server.provider.upper()) in message
    assert model in message
    assert "you said" not in str(log)


def test_an_unconfigured_provider_is_refused(acme: Wire, server: OpenAiServer) -> None:
    question = model_node("chat", "gpt-4o", provider="elsewhere")

    response = acme.post("/v1/workflows", workflow([question]))

    assert response.status_code == 400
    assert response.json()["details"]["field"] == "nodes.0.config.model"
    assert "there is no model provider 'elsewhere'" in response.json()["message"]


def test_a_run_s_option_cannot_name_an_unconfigured_provider(
    acme: Wire, server: OpenAiServer
) -> None:
    model = server.script([])
    options = {"configurable": {"model": "elsewhere:gpt-4o"}}

    log = acme.events_until(started(acme, [model_node("chat", model)], **options), *OUTCOMES)

    assert error_of(log) == "provider_policy_denied"
    assert only_payload(log, "run.failed")["error"]["details"]["reason"] == "provider_disabled"


def test_a_host_without_its_key_says_that_one_is_needed(acme: Wire, server: OpenAiServer) -> None:
    _, log = run_node(acme, server, [], config={"model": "openai:gpt-4o"})

    assert error_of(log) == "credential_required"
    assert "Set OPENAI_API_KEY, or name" in only_payload(log, "run.failed")["error"]["message"]


def test_the_options_of_a_run_choose_another_model(acme: Wire, server: OpenAiServer) -> None:
    other = server.script([Say("It is me.")])
    own = server.script([])
    options = {"model": other, "temperature": 0.5, "maxTokens": 99}

    run_id = started(acme, [model_node("chat", own)], configurable=options)
    acme.events_until(run_id, *OUTCOMES)

    request = server.requests[other][0]
    assert (request["temperature"], request["max_completion_tokens"]) == (0.5, 99)
    assert server.request_count(own) == 0


def test_sensitive_outputs_are_neither_streamed_nor_stored_in_plain_text(
    acme: Wire, server: OpenAiServer
) -> None:
    turn = Say("a very private sentence", reasoning="a very private thought")

    _, log = run_node(acme, server, [turn], outputSensitivity={"text": True})

    assert "very private" not in str(log)
    assert types(log)[-1] == "run.completed"
