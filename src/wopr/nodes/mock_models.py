"""Models of a run that has a mock provider: the scripts of `core.ai.callPrompt`, as a `Models`."""

from __future__ import annotations

import anyio
import msgspec

from wopr.nodes.mock_providers import (
    ProviderError,
    StreamText,
    ToolCalls,
    Usage,
    UsageOnly,
    script,
)
from wopr.nodes.models import (
    Asking,
    ModelAnswer,
    ModelFault,
    ModelRequest,
    ModelUsage,
    ToolCallPart,
)
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.runs import MockProvider


class MockModels:
    """Answers every request by the run's script."""

    def __init__(self, wanted: Json) -> None:
        self._script = script(msgspec.convert(wanted, MockProvider))

    async def ask(self, request: ModelRequest, asking: Asking) -> ModelAnswer:
        """Say what the script says."""
        match self._script:
            case StreamText() as spoken:
                return await _speak(spoken, asking)
            case ToolCalls() as asked:
                return _ask_for_tools(asked)
            case ProviderError() as broken:
                await anyio.sleep(broken.fail_after_ms / 1000)
                raise ModelFault(broken.message, code=broken.code, retryable=broken.retryable)
            case UsageOnly() as counted:
                return ModelAnswer(model=counted.model, usage=_usage(counted.usage))

    def capabilities(self, provider: str, model: str) -> frozenset[str] | None:
        """Nothing is known of a script."""
        return None


async def _speak(spoken: StreamText, asking: Asking) -> ModelAnswer:
    for token in spoken.tokens:
        await anyio.sleep(spoken.delay_ms_per_token / 1000)
        if asking.on_delta is not None:
            await asking.on_delta("text", token)
    said = len(spoken.tokens)
    usage = Usage(completion_tokens=said) if isinstance(spoken.usage, Unset) else spoken.usage
    return ModelAnswer(
        text="".join(spoken.tokens),
        finish_reason=spoken.finish_reason,
        usage=_usage(usage),
        model=spoken.model,
    )


def _ask_for_tools(asked: ToolCalls) -> ModelAnswer:
    calls = [_call(call, place) for place, call in enumerate(asked.tool_calls)]
    return ModelAnswer(
        tool_calls=calls, finish_reason="tool_calls", usage=_usage(asked.usage), model=asked.model
    )


def _call(call: JsonObject, place: int) -> ToolCallPart:
    return ToolCallPart(
        id=str(call.get("id", f"call-{place}")),
        name=str(call.get("name", "")),
        arguments=call.get("arguments", {}),
    )


def _usage(usage: Usage) -> ModelUsage:
    return ModelUsage(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens)
