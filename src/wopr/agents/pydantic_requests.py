"""A request in pydantic-ai's words: the conversation, the tools, the form of the answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, cast

from pydantic_ai import messages as said
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from wopr.nodes.llm_config import is_provider_option
from wopr.nodes.models import Asking, Message, ModelRequest
from wopr.protocol.documents import UNSET, JsonObject, Unset

# The tool by which a model without JSON output gives its answer.
OUTPUT_TOOL: Final = "final_answer"
_NOT_TAKEN: Final = "This answer was not taken."


def history_of(messages: Sequence[Message]) -> list[said.ModelMessage]:
    """The conversation as the library wants it; what a model said goes back as it came."""
    history: list[said.ModelMessage] = []
    for message in messages:
        if message.role == "assistant":
            history.append(_assistant(message))
            continue
        last = history[-1] if history else None
        if isinstance(last, said.ModelRequest):
            history[-1] = dataclasses.replace(last, parts=[*last.parts, _part(message)])
        else:
            answered = [] if last is None else _output_returns(last)
            history.append(said.ModelRequest(parts=[*answered, _part(message)]))
    return history


def _output_returns(response: said.ModelResponse) -> list[said.ModelRequestPart]:
    """What answers the calls by which a model gave its answer: providers want none left open."""
    return [
        said.ToolReturnPart(
            tool_name=OUTPUT_TOOL, content=_NOT_TAKEN, tool_call_id=part.tool_call_id
        )
        for part in response.parts
        if isinstance(part, said.ToolCallPart) and part.tool_name == OUTPUT_TOOL
    ]


def _part(message: Message) -> said.ModelRequestPart:
    if message.role == "system":
        return said.SystemPromptPart(content=message.content)
    if message.role == "user":
        return said.UserPromptPart(content=message.content)
    return said.ToolReturnPart(
        tool_name=str(message.name),
        content=message.content,
        tool_call_id=str(message.tool_call_id),
    )


def _assistant(message: Message) -> said.ModelResponse:
    if not isinstance(message.raw, Unset):
        [response] = said.ModelMessagesTypeAdapter.validate_python([message.raw])
        if isinstance(response, said.ModelResponse):
            return response
    parts: list[said.ModelResponsePart] = []
    if message.content:
        parts.append(said.TextPart(content=message.content))
    for call in message.tool_calls:
        parts.append(
            said.ToolCallPart(tool_name=call.name, args=call.arguments, tool_call_id=call.id)
        )
    return said.ModelResponse(parts=parts)


def parameters_of(model: Model, request: ModelRequest) -> ModelRequestParameters:
    """The tools, and the form of the answer that suits the model."""
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
    # The one provider whose older models cannot do both at once.
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
    """The tool by which a model without JSON output gives its answer."""
    wrapped = {"type": "object", "properties": {"response": schema}, "required": ["response"]}
    return ToolDefinition(
        name=OUTPUT_TOOL,
        description="Give your final answer.",
        parameters_json_schema=schema if is_object else wrapped,
        outer_typed_dict_key=None if is_object else "response",
        kind="output",
    )


def settings_of(request: ModelRequest, asking: Asking) -> ModelSettings:
    """How the model answers, and how long it may take."""
    wanted: JsonObject = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "max_tokens": request.max_output_tokens,
        "seed": request.seed,
        "stop_sequences": request.stop or UNSET,
    }
    given = {name: value for name, value in wanted.items() if not isinstance(value, Unset)}
    # Retries are the host's, which records them.
    own: JsonObject = {"timeout": asking.timeout_seconds, "max_retries": 0}
    options = {n: value for n, value in request.provider_options.items() if is_provider_option(n)}
    return cast("ModelSettings", options | given | own)
