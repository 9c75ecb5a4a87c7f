"""Language models as nodes see them: one request, one answer, whoever the provider is.

This is the port. The real one stands on pydantic-ai (`wopr.agents.providers`); tests put a
scripted one in its place: `running_host(settings, models=...)`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from wopr.engine.outcome import NodeFailure
from wopr.protocol.documents import UNSET, Closed, Json, JsonObject, Unset

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "error"]


class ToolCallPart(Closed, frozen=True, kw_only=True):
    """A tool call that a model asks for; arguments that are no JSON object stay text."""

    id: str
    name: str
    arguments: Json


class Message(Closed, frozen=True, kw_only=True):
    """One message of a conversation.

    `tool_calls` are an assistant's. A tool's message names the call that it answers. `raw` is the
    provider's own form of an assistant's message, which its next request may need; it is no part
    of the cache key.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    name: str | Unset = UNSET
    tool_call_id: str | Unset = UNSET
    tool_calls: list[ToolCallPart] = []
    raw: JsonObject | Unset = UNSET


class ToolSpec(Closed, frozen=True, kw_only=True):
    """A tool as a model is told of it."""

    name: str
    description: str
    parameters: JsonObject


class ModelRequest(Closed, frozen=True, kw_only=True):
    """Everything that decides a model's answer, and nothing else."""

    provider: str
    model: str
    messages: list[Message]
    tools: list[ToolSpec] = []
    # A JSON Schema that the answer must fit; without one the answer is text.
    response_schema: JsonObject | Unset = UNSET
    temperature: float | Unset = UNSET
    top_p: float | Unset = UNSET
    max_output_tokens: int | Unset = UNSET
    stop: list[str] = []
    seed: int | Unset = UNSET
    # Further options by the provider's own names.
    provider_options: JsonObject = {}


class ModelUsage(Closed, frozen=True, kw_only=True):
    """What an answer cost, as the provider counts it."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    # None where nobody knows the price.
    cost_usd: float | None = None


class ModelAnswer(Closed, frozen=True, kw_only=True):
    """What a model said: text, its reasoning where it shows any, and tool calls that it wants.

    With a response schema `text` is the JSON document, not yet checked.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallPart] = []
    finish_reason: FinishReason = "stop"
    usage: ModelUsage = ModelUsage()
    # The model that answered, as the provider names it.
    model: str = ""
    # Set when the model declined; the text of the refusal may be empty.
    refusal: str | Unset = UNSET
    raw: JsonObject | Unset = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How a request is made: for whom, with whose key, how long, and who hears it live."""

    tenant: str
    # The name of a credential of this tenant; empty for the host's own.
    credentials_ref: str = ""
    timeout_seconds: float = 120.0
    # Called with (kind, piece) as the answer comes in; kind is "text" or "reasoning".
    on_delta: Callable[[Literal["text", "reasoning"], str], Awaitable[None]] | None = None


class ModelFault(NodeFailure):
    """A request that got no answer. One worth another try may say when."""

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
    """Whoever answers requests."""

    async def ask(self, request: ModelRequest, asking: Asking) -> ModelAnswer:
        """Answer one request, once: no retries here. Raises `ModelFault`."""
        ...

    def capabilities(self, provider: str, model: str) -> frozenset[str] | None:
        """What a model can do (`structured-output`, `function-calling`, `reasoning`, ...).

        None when that is not known. Raises `ModelFault` for a model that may not be used here.
        """
        ...


def split_model(name: str) -> tuple[str, str]:
    """Read `provider:model`; the model may hold further colons."""
    provider, colon, model = name.partition(":")
    if not colon or not provider or not model:
        raise NodeFailure(
            f"a model is named provider:model, such as openai:gpt-4o, not {name!r}",
            code="validation_error",
            retryable=False,
        )
    return provider.lower(), model
