"""The mock provider: deterministic model answers for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import anyio
import msgspec

from wopr.agents.models.port import (
    ModelAnswer,
    ModelFault,
    ModelRequest,
    ModelUsage,
    RequestOptions,
    ToolCallPart,
)
from wopr.protocol.documents import UNSET, Document, Json, JsonObject, NonEmpty, Unset
from wopr.protocol.errors import BadMockProvider, Refused
from wopr.protocol.runs import MockProvider

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
DelayMs = Annotated[int, msgspec.Meta(ge=0, le=5000)]
Tokens = Annotated[int, msgspec.Meta(ge=0)]


class MockUsage(Document, frozen=True, kw_only=True, omit_defaults=False):
    """Token counts of one call."""

    prompt_tokens: Tokens = 0
    completion_tokens: Tokens = 0
    total_tokens: Tokens = 0


class MockText(Document, frozen=True, kw_only=True):
    """A streamed answer of these tokens."""

    tokens: Annotated[list[str], msgspec.Meta(min_length=1, max_length=10_000)] = msgspec.field(
        default_factory=lambda: ["mock", " response"]
    )
    delay_ms_per_token: DelayMs = 0
    finish_reason: FinishReason = "stop"
    usage: MockUsage | Unset = UNSET
    model: NonEmpty = "mock-stream-text-v1"


class MockToolCalls(Document, frozen=True, kw_only=True):
    """An answer with these tool calls."""

    tool_calls: list[JsonObject]
    delay_ms_per_token: DelayMs = 0
    usage: MockUsage = MockUsage()
    model: NonEmpty = "mock-tool-calls-v1"


class MockError(Document, frozen=True, kw_only=True):
    """A failure of the provider."""

    code: NonEmpty = "mock_provider_error"
    message: NonEmpty = "The mock provider failed as configured."
    retryable: bool = False
    fail_after_ms: DelayMs = 0


class MockUsageOnly(Document, frozen=True, kw_only=True):
    """An empty answer with this usage."""

    usage: MockUsage
    model: NonEmpty = "mock-usage-only-v1"


MockScript = MockText | MockToolCalls | MockError | MockUsageOnly

SCRIPT_TYPES: Mapping[str, type[Any]] = {
    "stream-text": MockText,
    "tool-calls": MockToolCalls,
    "error": MockError,
    "usage-only": MockUsageOnly,
}


def read_script(provider: MockProvider) -> MockScript:
    """Read a mock provider's config. Raises `Refused` with the field."""
    kind = SCRIPT_TYPES.get(provider.id)
    if kind is None:
        raise BadMockProvider(
            f"configurable.mockProvider.id must be one of {', '.join(SCRIPT_TYPES)}, "
            f"not {provider.id!r}",
            field="configurable.mockProvider.id",
            supported=list(SCRIPT_TYPES),
        )
    try:
        read: MockScript = msgspec.convert(provider.config, kind)
    except msgspec.ValidationError as fault:
        raise Refused(
            f"configurable.mockProvider.config: {fault}", field="configurable.mockProvider.config"
        ) from fault
    return read


class MockModels:
    """`Models` that answer every request with the run's script."""

    def __init__(self, wanted: Json) -> None:
        self._script = read_script(msgspec.convert(wanted, MockProvider))

    async def ask(self, request: ModelRequest, options: RequestOptions) -> ModelAnswer:
        """Answer with the script."""
        match self._script:
            case MockText() as text:
                return await _streamed_text(text, options)
            case MockToolCalls() as calls:
                return _tool_calls(calls)
            case MockError() as error:
                await anyio.sleep(error.fail_after_ms / 1000)
                raise ModelFault(error.message, code=error.code, retryable=error.retryable)
            case MockUsageOnly() as silent:
                return ModelAnswer(model=silent.model, usage=_usage(silent.usage))

    def capabilities(self, provider: str, model: str) -> frozenset[str] | None:
        """Return None: a script has no known capabilities."""
        return None


async def _streamed_text(script: MockText, options: RequestOptions) -> ModelAnswer:
    for token in script.tokens:
        await anyio.sleep(script.delay_ms_per_token / 1000)
        if options.on_delta is not None:
            await options.on_delta("text", token)
    usage = script.usage
    if isinstance(usage, Unset):
        usage = MockUsage(completion_tokens=len(script.tokens))
    return ModelAnswer(
        text="".join(script.tokens),
        finish_reason=script.finish_reason,
        usage=_usage(usage),
        model=script.model,
    )


def _tool_calls(script: MockToolCalls) -> ModelAnswer:
    calls = [_call(call, place) for place, call in enumerate(script.tool_calls)]
    return ModelAnswer(
        tool_calls=calls, finish_reason="tool_calls", usage=_usage(script.usage), model=script.model
    )


def _call(call: JsonObject, place: int) -> ToolCallPart:
    return ToolCallPart(
        id=str(call.get("id", f"call-{place}")),
        name=str(call.get("name", "")),
        arguments=call.get("arguments", {}),
    )


def _usage(usage: MockUsage) -> ModelUsage:
    return ModelUsage(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens)
