"""One request to a model through pydantic-ai, and its answer in this host's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from pydantic_ai import messages as said
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import (
    AgentRunError,
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelQuotaExceededError,
    ModelRequestRejectedError,
    UserError,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from wopr.agents.providers import key_names
from wopr.agents.pydantic_requests import OUTPUT_TOOL, history_of, parameters_of, settings_of
from wopr.engine.expression_tokens import is_object
from wopr.nodes.models import (
    Asking,
    FinishReason,
    ModelAnswer,
    ModelFault,
    ModelRequest,
    ModelUsage,
    ToolCallPart,
)
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset

_ABILITIES: Final = {
    "supports_tools": "function-calling",
    "supports_json_schema_output": "structured-output",
    "supports_thinking": "reasoning",
    "supports_image_input": "vision-input",
    "supports_audio_input": "audio-input",
    "supports_image_output": "image-output",
}
_FINISHED: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_call": "tool_calls",
    "error": "error",
}
# What a status mostly means, for the provider's own words are kept from the log.
_HINTS: Final = {
    401: ": the key is missing or wrong; it comes from {key}",
    403: ": the key may not do this; it comes from {key}",
    404: ": there is no such model, or no such address",
    429: ": too many requests, or no credit left",
}
_HISTORY: Final = said.ModelMessagesTypeAdapter


def abilities(model: Model) -> frozenset[str]:
    """What a model's profile says that it can do."""
    profile: Any = model.profile
    return frozenset(name for flag, name in _ABILITIES.items() if profile.get(flag))


async def send(model: Model, request: ModelRequest, asking: Asking) -> ModelAnswer:
    """Send a request and translate what comes back. Raises `ModelFault`."""
    history = history_of(request.messages)
    parameters = parameters_of(model, request)
    settings = settings_of(request, asking)
    try:
        if asking.on_delta is None:
            answer = await model_request(
                model, history, model_settings=settings, model_request_parameters=parameters
            )
        else:
            answer = await _streamed(model, history, settings, parameters, asking)
    except ContentFilterError:
        return ModelAnswer(finish_reason="content_filter", refusal="", model=request.model)
    except (AgentRunError, UserError) as error:
        raise _fault(request, asking, error) from error
    return _answer(answer, request)


async def _streamed(
    model: Model,
    history: Sequence[said.ModelMessage],
    settings: ModelSettings,
    parameters: ModelRequestParameters,
    asking: Asking,
) -> said.ModelResponse:
    async with model_request_stream(
        model, history, model_settings=settings, model_request_parameters=parameters
    ) as stream:
        async for event in stream:
            kind, piece = _delta(event)
            if piece and asking.on_delta is not None:
                await asking.on_delta(kind, piece)
        return stream.get()


def _delta(event: object) -> tuple[Literal["text", "reasoning"], str]:
    match event:
        case said.PartStartEvent(part=said.TextPart(content=piece)):
            return "text", piece
        case said.PartDeltaEvent(delta=said.TextPartDelta(content_delta=piece)):
            return "text", piece
        case said.PartStartEvent(part=said.ThinkingPart(content=piece)):
            return "reasoning", piece
        case said.PartDeltaEvent(delta=said.ThinkingPartDelta(content_delta=piece)):
            return "reasoning", piece or ""
        case _:
            return "text", ""


def _answer(response: said.ModelResponse, request: ModelRequest) -> ModelAnswer:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCallPart] = []
    for part in response.parts:
        match part:
            case said.TextPart(content=text):
                texts.append(text)
            case said.ThinkingPart(content=text):
                thoughts.append(text)
            case said.ToolCallPart(tool_name=name) if name == OUTPUT_TOOL:
                texts.append(_final(part, request))
            case said.ToolCallPart():
                calls.append(
                    ToolCallPart(
                        id=part.tool_call_id, name=part.tool_name, arguments=_arguments(part.args)
                    )
                )
            case _:
                pass
    return ModelAnswer(
        text="".join(texts),
        reasoning="".join(thoughts),
        tool_calls=calls,
        finish_reason=_FINISHED.get(response.finish_reason or "stop", "stop"),
        usage=usage_of(response),
        model=response.model_name or request.model,
        refusal=_refusal(response),
        raw=_raw(response),
    )


def _final(part: said.ToolCallPart, request: ModelRequest) -> str:
    """The answer that came by the output tool, as JSON text."""
    arguments = _arguments(part.args)
    schema = request.response_schema
    is_wrapped = not isinstance(schema, Unset) and schema.get("type") != "object"
    if is_wrapped and is_object(arguments):
        arguments = arguments.get("response")
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def _arguments(given: Json) -> Json:
    """Arguments as JSON; text that is none stays text, for whoever checks the call."""
    if given is None or given == "":
        return {}
    if not isinstance(given, str):
        return given
    try:
        return msgspec.json.decode(given)
    except msgspec.DecodeError:
        return given


def _refusal(response: said.ModelResponse) -> str | Unset:
    details = response.provider_details or {}
    if "refusal" in details:
        return str(details["refusal"])
    return "" if response.finish_reason == "content_filter" else UNSET


def usage_of(response: said.ModelResponse) -> ModelUsage:
    """What an answer cost, as the provider counts it."""
    usage = response.usage
    return ModelUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cost_usd=_cost(response),
    )


def _cost(response: said.ModelResponse) -> float | None:
    """What the answer costs, where the price list knows the model."""
    if not response.usage.input_tokens and not response.usage.output_tokens:
        return None
    try:
        return float(response.cost().total_price)
    except (LookupError, ValueError, AssertionError):
        return None


def _raw(response: said.ModelResponse) -> JsonObject:
    [raw] = _HISTORY.dump_python([response], mode="json")
    kept: JsonObject = raw
    # The address of somebody's own server is nobody else's business.
    return {name: value for name, value in kept.items() if name != "provider_url"}


def _fault(request: ModelRequest, asking: Asking, error: Exception) -> ModelFault:
    """What went wrong, without the provider's words, which may hold the prompt or a key."""
    name = request.provider
    told = _told(request, asking, getattr(error, "status_code", None))
    match error:
        case ModelConnectionError():
            return ModelFault(f"{name}: the connection failed", code="model_unavailable")
        case ModelQuotaExceededError():
            return ModelFault(f"{name}: the quota is used up", retryable=False)
        case ModelRequestRejectedError():
            message = f"{name} rejected the request for {request.model}{told}"
            return ModelFault(message, code="model_rejected", retryable=False)
        case ModelAPIError():
            message = f"{name} failed{told}"
            return ModelFault(message, code="model_unavailable", retry_after=error.retry_after)
        case UserError():
            return ModelFault(f"{name}: the request cannot be made", retryable=False)
        case _:
            return ModelFault(f"{name} gave an answer that cannot be read")


def _told(request: ModelRequest, asking: Asking, status: int | None) -> str:
    """A status, and what it mostly means."""
    if status is None:
        return ""
    ref = asking.credentials_ref
    key = f"credential {ref}" if ref else " or ".join(key_names(request.provider))
    return f" with {status}{_HINTS.get(status, '').format(key=key)}"
