"""The port of language models: one request and one answer, for every provider.

`wopr.agents.models.providers` implements it with pydantic-ai. Tests use a scripted implementation:
`running_host(settings, models=...)`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from wopr.engine.outcome import NodeFailure
from wopr.protocol.documents import (
    UNSET,
    Closed,
    Json,
    JsonObject,
    Unset,
)

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "error"]


class ToolCallPart(Closed, frozen=True, kw_only=True):
    """A tool call that a model asks for. Arguments that are not JSON stay text."""

    id: str
    name: str
    arguments: Json


class Message(Closed, frozen=True, kw_only=True):
    """One message of a conversation.

    `tool_calls` belong to an assistant's message. A tool's message names its call. `raw` is an
    assistant's message in the format of the provider, for the next request. It is not part of the
    request key.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    name: str | Unset = UNSET
    tool_call_id: str | Unset = UNSET
    tool_calls: list[ToolCallPart] = []
    raw: JsonObject | Unset = UNSET


class ToolSpec(Closed, frozen=True, kw_only=True):
    """The description of a tool for a model."""

    name: str
    description: str
    parameters: JsonObject


class ModelRequest(Closed, frozen=True, kw_only=True):
    """Everything that determines a model's answer.

    Attributes:
        provider: The provider, such as `openai`.
        model: The provider's name of the model.
        messages: The conversation.
        tools: The tools that the model may call.
        response_schema: The JSON Schema of the answer; without it, the answer is text.
        temperature: The temperature, if it is set.
        top_p: The nucleus sampling probability, if it is set.
        max_output_tokens: The maximum number of tokens of the answer, if it is set.
        stop: Texts that end the answer.
        seed: The seed, if it is set.
        provider_options: Further options, by the provider's names.

    Example:
        >>> from wopr.testing import ModelRequest, scripted
        >>> def repeat(request: ModelRequest) -> str:
        ...     return f"You wrote: {request.messages[-1].content}"
        >>> models = scripted(repeat)
    """

    provider: str
    model: str
    messages: list[Message]
    tools: list[ToolSpec] = []
    response_schema: JsonObject | Unset = UNSET
    temperature: float | Unset = UNSET
    top_p: float | Unset = UNSET
    max_output_tokens: int | Unset = UNSET
    stop: list[str] = []
    seed: int | Unset = UNSET
    provider_options: JsonObject = {}


class ModelUsage(Closed, frozen=True, kw_only=True):
    """Usage of one request, as the provider counts it."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    # None if the price is not known.
    cost_usd: float | None = None


class ModelAnswer(Closed, frozen=True, kw_only=True):
    """A model's answer: text, reasoning and tool calls.

    With a response schema `text` is a JSON document that is not checked yet.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallPart] = []
    finish_reason: FinishReason = "stop"
    usage: ModelUsage = ModelUsage()
    # The provider's name of the model that answered.
    model: str = ""
    # Set if the model refused. The text may be empty.
    refusal: str | Unset = UNSET
    raw: JsonObject | Unset = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """Options of a request: tenant, credential, time limit and streaming."""

    tenant: str
    # The name of a credential of this tenant; empty for the host's key.
    credentials_ref: str = ""
    timeout_seconds: float = 120.0
    # Called with each piece of a streamed answer.
    on_delta: Callable[[Literal["text", "reasoning"], str], Awaitable[None]] | None = None


class ModelFault(NodeFailure):
    """Raise it in a model provider when a request fails.

    Args:
        message: What went wrong.
        code: The error code of the node.
        retryable: Whether another attempt may succeed.
        retry_after: Seconds to wait before the next attempt.
        details: Further facts, as JSON.

    Example:
        >>> from wopr.testing import ModelFault, scripted
        >>> models = scripted(ModelFault("the provider is overloaded", retry_after=1.0), "Hello")
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "model_error",
        retryable: bool = True,
        retry_after: float | None = None,
        details: JsonObject | None = None,
    ) -> None:
        super().__init__(message, code=code, retryable=retryable, details=details)
        self.retry_after = retry_after


class Models(Protocol):
    """A source of answers to model requests."""

    async def ask(self, request: ModelRequest, options: RequestOptions) -> ModelAnswer:
        """Answer one request without retries. Raises `ModelFault`."""
        ...

    def capabilities(self, provider: str, model: str) -> frozenset[str] | None:
        """Return capabilities such as `structured-output`, `function-calling` and `reasoning`.

        None if they are not known. Raises `ModelFault` for a model that may not be used.
        """
        ...


def split_model(name: str) -> tuple[str, str]:
    """Split `provider:model`. The model may contain further colons."""
    provider, colon, model = name.partition(":")
    if not colon or not provider or not model:
        raise NodeFailure(
            f"{name!r} is not a model: expected provider:model, such as openai:gpt-4o",
            code="validation_error",
            retryable=False,
        )
    return provider.lower(), model


# Options that are not fields of a request and that several providers have.
COMMON_OPTIONS: Final = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "parallel_tool_calls",
        "presence_penalty",
        "service_tier",
        "thinking",
        "top_k",
    }
)


_PROVIDER_OPTION: Final = re.compile(r"(?:openai|anthropic|google)_[a-z0-9_]+")


def is_provider_option(name: str) -> bool:
    """Return whether a workflow may set this option of a provider.

    Other options could change the model or the conversation that the host has checked.
    """
    return name in COMMON_OPTIONS or _PROVIDER_OPTION.fullmatch(name) is not None
