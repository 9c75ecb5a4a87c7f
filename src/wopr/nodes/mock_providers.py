"""Deterministic model providers for tests: the same config always gives the same words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from wopr.protocol.documents import UNSET, Document, JsonObject, NonEmpty, Unset
from wopr.protocol.errors import BadMockProvider, Refused
from wopr.protocol.runs import MockProvider

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
DelayMs = Annotated[int, msgspec.Meta(ge=0, le=5000)]
Tokens = Annotated[int, msgspec.Meta(ge=0)]


class Usage(Document, frozen=True, kw_only=True, omit_defaults=False):
    """Token counts of one call."""

    prompt_tokens: Tokens = 0
    completion_tokens: Tokens = 0
    total_tokens: Tokens = 0


class StreamText(Document, frozen=True, kw_only=True):
    """Say these tokens, one after the other."""

    tokens: Annotated[list[str], msgspec.Meta(min_length=1, max_length=10_000)] = msgspec.field(
        default_factory=lambda: ["mock", " response"]
    )
    delay_ms_per_token: DelayMs = 0
    finish_reason: FinishReason = "stop"
    usage: Usage | Unset = UNSET
    model: NonEmpty = "mock-stream-text-v1"


class ToolCalls(Document, frozen=True, kw_only=True):
    """Ask for these tools."""

    tool_calls: list[JsonObject]
    delay_ms_per_token: DelayMs = 0
    usage: Usage = Usage()
    model: NonEmpty = "mock-tool-calls-v1"


class ProviderError(Document, frozen=True, kw_only=True):
    """Fail like a provider does."""

    code: NonEmpty = "mock_provider_error"
    message: NonEmpty = "the mock provider failed as configured"
    retryable: bool = False
    fail_after_ms: DelayMs = 0


class UsageOnly(Document, frozen=True, kw_only=True):
    """Say nothing and count tokens."""

    usage: Usage
    model: NonEmpty = "mock-usage-only-v1"


Script = StreamText | ToolCalls | ProviderError | UsageOnly

CATALOGUE: Mapping[str, type[Any]] = {
    "stream-text": StreamText,
    "tool-calls": ToolCalls,
    "error": ProviderError,
    "usage-only": UsageOnly,
}


def script(provider: MockProvider) -> Script:
    """Read a mock provider's config, or refuse it naming the field."""
    kind = CATALOGUE.get(provider.id)
    if kind is None:
        raise BadMockProvider(
            f"configurable.mockProvider.id must be one of {', '.join(CATALOGUE)}, "
            f"not {provider.id!r}",
            field="configurable.mockProvider.id",
            supported=list(CATALOGUE),
        )
    try:
        read: Script = msgspec.convert(provider.config, kind)
    except msgspec.ValidationError as fault:
        raise Refused(
            f"configurable.mockProvider.config: {fault}", field="configurable.mockProvider.config"
        ) from fault
    return read
