"""Anthropic and Google through their real clients: the same events as from any other provider."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from httpx2 import Response

from tests.models.provider_wire import (
    IN_TOKENS,
    OUT_TOKENS,
    Answers,
    anthropic_call,
    anthropic_text,
    google,
    provider_models,
)
from wopr import Agent, Event, RunFailed, Workflow, tool
from wopr.protocol.documents import JsonObject
from wopr.testing import memory_host

pytestmark = pytest.mark.anyio
CLAUDE = "anthropic:claude-sonnet-5-5"
GEMINI = "google:gemini-2.5-flash"


@tool
async def weigh(thing: str) -> str:
    """Weigh a thing."""
    return f"{thing}: 5 kg"


def flow_of(model: str, **config: object) -> Workflow[JsonObject, JsonObject]:
    agent = Agent("acme.scales.clerk", model=model, tools=[weigh])
    flow = Workflow("scales")
    flow.agent("ask", agent, prompt="How heavy is the parcel?", config=dict(config))
    return flow


async def told(
    flow: Workflow[JsonObject, JsonObject], answers: Answers
) -> tuple[JsonObject, list[Event]]:
    """The node's outputs and the log; the error's code in place of outputs that are not there."""
    async with provider_models(answers) as models, memory_host(flow, models=models) as host:
        run = await host.start(flow)
        try:
            outputs: JsonObject = (await run.result())["ask"]
        except RunFailed as failure:
            outputs = {"code": failure.code}
        return outputs, await run.log()


def payloads(log: Sequence[Event], kind: str) -> list[JsonObject]:
    return [event.payload for event in log if event.type == kind]


@pytest.mark.parametrize(
    ("model", "first", "then"),
    [
        (CLAUDE, anthropic_call("weigh", {"thing": "parcel"}), anthropic_text("It is 5 kg.")),
        (
            GEMINI,
            google({"functionCall": {"name": "weigh", "args": {"thing": "parcel"}}}),
            google({"text": "It is "}, {"text": "5 kg."}),
        ),
    ],
    ids=["anthropic", "google"],
)
async def test_a_streamed_tool_call_and_answer_are_on_the_log_with_their_cost(
    model: str, first: Response, then: Response
) -> None:
    answers = Answers(first, then)

    outputs, log = await told(flow_of(model), answers)

    provider, _, name = model.partition(":")
    [called], [returned] = payloads(log, "agent.toolCalled"), payloads(log, "agent.toolReturned")
    assert outputs["text"] == "It is 5 kg."
    assert (called["toolName"], called["inputs"]) == ("local:weigh", {"thing": "parcel"})
    assert returned["outcome"] == "parcel: 5 kg"
    for usage in payloads(log, "provider.usage"):
        assert (usage["provider"], usage["model"]) == (provider, name)
        assert (usage["inputTokens"], usage["outputTokens"]) == (IN_TOKENS, OUT_TOKENS)
        assert usage["costEstimateUsd"] > 0
    chunks = [each["chunk"] for each in payloads(log, "output.chunk")]
    assert "".join(chunks) == "It is 5 kg."
    assert "parcel: 5 kg" in str(answers.body(1))


@pytest.mark.parametrize(
    ("model", "overloaded"),
    [
        (CLAUDE, {"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}}),
        (GEMINI, {"error": {"code": 429, "message": "slow", "status": "RESOURCE_EXHAUSTED"}}),
    ],
    ids=["anthropic", "google"],
)
async def test_a_provider_that_has_too_much_to_do_is_unavailable(
    model: str, overloaded: JsonObject
) -> None:
    answers = Answers(Response(429, json=overloaded))

    outputs, log = await told(flow_of(model, maxRetries=0), answers)

    assert outputs["code"] == "model_unavailable"
    assert len(answers.requests) == 1
    assert payloads(log, "provider.usage") == []


async def test_a_refusal_fails_the_node_as_one() -> None:
    answers = Answers(anthropic_text("", stop="refusal"))

    outputs, log = await told(flow_of(CLAUDE), answers)

    assert outputs["code"] == "envelope_refused_by_provider"
    [refusal] = payloads(log, "envelope.refusal")
    assert refusal["provider"] == "anthropic"


@pytest.mark.parametrize(
    ("model", "cut"),
    [
        (CLAUDE, anthropic_text("It is", stop="max_tokens")),
        (GEMINI, google({"text": "It is"}, stop="MAX_TOKENS")),
    ],
    ids=["anthropic", "google"],
)
async def test_an_answer_that_was_cut_short_says_so(model: str, cut: Response) -> None:
    outputs, log = await told(flow_of(model), Answers(cut))

    [truncated] = payloads(log, "envelope.truncated")
    assert outputs["text"] == "It is"
    assert truncated["stopReason"] == "length"
