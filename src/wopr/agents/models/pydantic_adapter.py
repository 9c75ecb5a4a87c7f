"""Requests to a model through pydantic-ai, and the translation of the answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, Literal, cast

import msgspec
from pydantic_ai import messages as ai_messages
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
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from wopr.agents.models.port import (
    FinishReason,
    Message,
    ModelAnswer,
    ModelFault,
    ModelRequest,
    ModelUsage,
    RequestOptions,
    ToolCallPart,
    is_provider_option,
)
from wopr.agents.models.provider_settings import key_names
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, is_object

# The tool with which a model without JSON output returns its answer.
OUTPUT_TOOL: Final = "final_answer"
_REJECTED: Final = "This answer was not accepted."


def history_of(messages: Sequence[Message]) -> list[ai_messages.ModelMessage]:
    """Return the conversation in the types of the library. A model's messages are unchanged."""
    history: list[ai_messages.ModelMessage] = []
    for message in messages:
        if message.role == "assistant":
            history.append(_assistant(message))
            continue
        last = history[-1] if history else None
        if isinstance(last, ai_messages.ModelRequest):
            history[-1] = dataclasses.replace(last, parts=[*last.parts, _part(message)])
        else:
            answered = [] if last is None else _output_returns(last)
            history.append(ai_messages.ModelRequest(parts=[*answered, _part(message)]))
    return history


def _output_returns(response: ai_messages.ModelResponse) -> list[ai_messages.ModelRequestPart]:
    """Return a result for each call of the output tool, because providers require it."""
    return [
        ai_messages.ToolReturnPart(
            tool_name=OUTPUT_TOOL, content=_REJECTED, tool_call_id=part.tool_call_id
        )
        for part in response.parts
        if isinstance(part, ai_messages.ToolCallPart) and part.tool_name == OUTPUT_TOOL
    ]


def _part(message: Message) -> ai_messages.ModelRequestPart:
    if message.role == "system":
        return ai_messages.SystemPromptPart(content=message.content)
    if message.role == "user":
        return ai_messages.UserPromptPart(content=message.content)
    return ai_messages.ToolReturnPart(
        tool_name=str(message.name),
        content=message.content,
        tool_call_id=str(message.tool_call_id),
    )


def _assistant(message: Message) -> ai_messages.ModelResponse:
    if not isinstance(message.raw, Unset):
        [response] = ai_messages.ModelMessagesTypeAdapter.validate_python([message.raw])
        if isinstance(response, ai_messages.ModelResponse):
            return response
    parts: list[ai_messages.ModelResponsePart] = []
    if message.content:
        parts.append(ai_messages.TextPart(content=message.content))
    for call in message.tool_calls:
        parts.append(
            ai_messages.ToolCallPart(tool_name=call.name, args=call.arguments, tool_call_id=call.id)
        )
    return ai_messages.ModelResponse(parts=parts)


def parameters_of(model: Model, request: ModelRequest) -> ModelRequestParameters:
    """Return the tools, and the output mode that the model supports."""
    tools = [
        ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=tool.parameters,
        )
        for tool in request.tools
    ]
    schema = request.response_schema
    if isinstance(schema, Unset):
        return ModelRequestParameters(function_tools=tools)
    profile: Any = model.profile
    is_object = schema.get("type") == "object"
    # Older models of Google support either tools or JSON output, but not both in one request.
    is_combined = bool(tools) and request.provider == "google"
    may_combine = not is_combined or profile.get("google_supports_tool_combination", False)
    if profile.get("supports_json_schema_output") and is_object and may_combine:
        wanted = OutputObjectDefinition(json_schema=schema, name=OUTPUT_TOOL)
        return ModelRequestParameters(
            function_tools=tools, output_mode="native", output_object=wanted
        )
    return ModelRequestParameters(
        function_tools=tools,
        output_mode="tool",
        output_tools=[_output_tool(schema, is_object)],
        allow_text_output=False,
    )


def _output_tool(schema: JsonObject, is_object: bool) -> ToolDefinition:
    """Return the tool with which a model without JSON output returns its answer."""
    wrapped = {"type": "object", "properties": {"response": schema}, "required": ["response"]}
    return ToolDefinition(
        name=OUTPUT_TOOL,
        description="Give your final answer.",
        parameters_json_schema=schema if is_object else wrapped,
        outer_typed_dict_key=None if is_object else "response",
        kind="output",
    )


def settings_of(request: ModelRequest, options: RequestOptions) -> ModelSettings:
    """Return the options of the request, with the time limit."""
    wanted: JsonObject = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "max_tokens": request.max_output_tokens,
        "seed": request.seed,
        "stop_sequences": request.stop or UNSET,
    }
    given = {name: value for name, value in wanted.items() if not isinstance(value, Unset)}
    # The host makes the retries and records them.
    own: JsonObject = {"timeout": options.timeout_seconds, "max_retries": 0}
    extra = {n: value for n, value in request.provider_options.items() if is_provider_option(n)}
    return cast("ModelSettings", extra | given | own)


_CAPABILITIES: Final = {
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
# The usual reasons of a status. The provider's message is not logged.
_HINTS: Final = {
    401: ": the key is missing or wrong; it comes from {key}",
    403: ": the key has no permission; it comes from {key}",
    404: ": there is no such model, or no such address",
    429: ": too many requests, or no credit left",
}
_HISTORY: Final = ai_messages.ModelMessagesTypeAdapter


def capabilities_of(model: Model) -> frozenset[str]:
    """Return the capabilities in a model's profile."""
    profile: Any = model.profile
    return frozenset(name for flag, name in _CAPABILITIES.items() if profile.get(flag))


async def send(model: Model, request: ModelRequest, options: RequestOptions) -> ModelAnswer:
    """Send a request and translate the response. Raises `ModelFault`."""
    history = history_of(request.messages)
    parameters = parameters_of(model, request)
    settings = settings_of(request, options)
    try:
        if options.on_delta is None:
            answer = await model_request(
                model, history, model_settings=settings, model_request_parameters=parameters
            )
        else:
            answer = await _stream_response(model, history, settings, parameters, options)
    except ContentFilterError:
        return ModelAnswer(finish_reason="content_filter", refusal="", model=request.model)
    except (AgentRunError, UserError) as error:
        raise _fault(request, options, error) from error
    return _answer(answer, request)


async def _stream_response(
    model: Model,
    history: Sequence[ai_messages.ModelMessage],
    settings: ModelSettings,
    parameters: ModelRequestParameters,
    options: RequestOptions,
) -> ai_messages.ModelResponse:
    async with model_request_stream(
        model, history, model_settings=settings, model_request_parameters=parameters
    ) as stream:
        async for event in stream:
            kind, piece = _delta(event)
            if piece and options.on_delta is not None:
                await options.on_delta(kind, piece)
        return stream.get()


def _delta(event: object) -> tuple[Literal["text", "reasoning"], str]:
    match event:
        case ai_messages.PartStartEvent(part=ai_messages.TextPart(content=piece)):
            return "text", piece
        case ai_messages.PartDeltaEvent(delta=ai_messages.TextPartDelta(content_delta=piece)):
            return "text", piece
        case ai_messages.PartStartEvent(part=ai_messages.ThinkingPart(content=piece)):
            return "reasoning", piece
        case ai_messages.PartDeltaEvent(delta=ai_messages.ThinkingPartDelta(content_delta=piece)):
            return "reasoning", piece or ""
        case _:
            return "text", ""


def _answer(response: ai_messages.ModelResponse, request: ModelRequest) -> ModelAnswer:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCallPart] = []
    for part in response.parts:
        match part:
            case ai_messages.TextPart(content=text):
                texts.append(text)
            case ai_messages.ThinkingPart(content=text):
                reasoning.append(text)
            case ai_messages.ToolCallPart(tool_name=name) if name == OUTPUT_TOOL:
                texts.append(_output_text(part, request))
            case ai_messages.ToolCallPart():
                calls.append(
                    ToolCallPart(
                        id=part.tool_call_id, name=part.tool_name, arguments=_arguments(part.args)
                    )
                )
            case _:
                pass
    return ModelAnswer(
        text="".join(texts),
        reasoning="".join(reasoning),
        tool_calls=calls,
        finish_reason=_FINISHED.get(response.finish_reason or "stop", "stop"),
        usage=usage_of(response),
        model=response.model_name or request.model,
        refusal=_refusal(response),
        raw=_raw(response),
    )


def _output_text(part: ai_messages.ToolCallPart, request: ModelRequest) -> str:
    """Return the answer in a call of the output tool, as JSON text."""
    arguments = _arguments(part.args)
    schema = request.response_schema
    is_wrapped = not isinstance(schema, Unset) and schema.get("type") != "object"
    if is_wrapped and is_object(arguments):
        arguments = arguments.get("response")
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def _arguments(given: Json) -> Json:
    """Return the arguments as JSON.

    Text that is not JSON stays text and fails the check of the call.
    """
    if given is None or given == "":
        return {}
    if not isinstance(given, str):
        return given
    try:
        return msgspec.json.decode(given)
    except msgspec.DecodeError:
        return given


def _refusal(response: ai_messages.ModelResponse) -> str | Unset:
    details = response.provider_details or {}
    if "refusal" in details:
        return str(details["refusal"])
    return "" if response.finish_reason == "content_filter" else UNSET


def usage_of(response: ai_messages.ModelResponse) -> ModelUsage:
    """Return the usage of a response, as the provider counts it."""
    usage = response.usage
    return ModelUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cost_usd=_cost(response),
    )


def _cost(response: ai_messages.ModelResponse) -> float | None:
    """Return the cost of a response, or None if the price of the model is not known."""
    if not response.usage.input_tokens and not response.usage.output_tokens:
        return None
    try:
        return float(response.cost().total_price)
    except (LookupError, ValueError, AssertionError):
        return None


def _raw(response: ai_messages.ModelResponse) -> JsonObject:
    [raw] = _HISTORY.dump_python([response], mode="json")
    kept: JsonObject = raw
    # The address of the server is not recorded.
    return {name: value for name, value in kept.items() if name != "provider_url"}


def _fault(request: ModelRequest, options: RequestOptions, error: Exception) -> ModelFault:
    """Return the error without the provider's message, which may contain the prompt or a key."""
    name = request.provider
    hint = _hint(request, options, getattr(error, "status_code", None))
    match error:
        case ModelConnectionError():
            return ModelFault(f"{name}: the connection failed", code="model_unavailable")
        case ModelQuotaExceededError():
            return ModelFault(f"{name}: the quota is used up", retryable=False)
        case ModelRequestRejectedError():
            message = f"{name} rejected the request for {request.model}{hint}"
            return ModelFault(message, code="model_rejected", retryable=False)
        case ModelAPIError():
            message = f"{name} failed{hint}"
            return ModelFault(message, code="model_unavailable", retry_after=error.retry_after)
        case UserError():
            return ModelFault(f"{name}: the request cannot be made", retryable=False)
        case _:
            return ModelFault(f"{name} returned an invalid response")


def _hint(request: ModelRequest, options: RequestOptions, status: int | None) -> str:
    """Return the status and its usual reason as the end of a message."""
    if status is None:
        return ""
    ref = options.credentials_ref
    key = f"credential {ref}" if ref else " or ".join(key_names(request.provider))
    return f" with {status}{_HINTS.get(status, '').format(key=key)}"
