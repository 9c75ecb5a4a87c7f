"""The key of a model request. Requests with the same meaning have the same key.

The recipe is `openwop-semantic-request-v2`: the hash of the canonical form (RFC 8785) of the
request's meaning. Credential, time limit, run, tenant and streaming are not part of it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wopr.agents.models.port import Message, ModelRequest
from wopr.protocol.documents import JsonObject, Unset
from wopr.security.digest import canonical_digest

RECIPE: Final = "openwop-semantic-request-v2"
# The name of the recipe in discovery.
ADVERTISED_RECIPE: Final = "spec-rfc-0041"


def request_key(request: ModelRequest) -> str:
    """Return the key of a request: 64 lowercase hexadecimal digits."""
    return canonical_digest(semantic_request(request))


def semantic_request(request: ModelRequest) -> JsonObject:
    """Return the meaning of a request. Absent fields are omitted, never null."""
    found: JsonObject = {
        "recipe": RECIPE,
        "provider": request.provider.lower(),
        "model": request.model,
        "messages": [_message(message) for message in request.messages],
    }
    if request.tools:
        found["tools"] = [
            msgspec.to_builtins(tool)
            for tool in sorted(request.tools, key=lambda tool: tool.name.encode("utf-16-be"))
        ]
    if not isinstance(request.response_schema, Unset):
        found["responseFormat"] = {"type": "json", "schema": request.response_schema}
    return found | _options(request)


def _options(request: ModelRequest) -> JsonObject:
    given: JsonObject = {
        "temperature": request.temperature,
        "topP": request.top_p,
        "maxOutputTokens": request.max_output_tokens,
        "seed": request.seed,
    }
    options = {name: value for name, value in given.items() if not isinstance(value, Unset)}
    if request.stop:
        options["stop"] = request.stop
    if request.provider_options:
        options["providerOptions"] = {
            f"vendor.{request.provider.lower()}.{name}": value
            for name, value in request.provider_options.items()
        }
    return options


def _message(message: Message) -> JsonObject:
    found: JsonObject = {"role": message.role, "content": message.content}
    if message.tool_calls:
        # An assistant's tool calls are part of its message.
        calls = [{"type": "tool_call", **msgspec.to_builtins(call)} for call in message.tool_calls]
        said = [{"type": "text", "text": message.content}] if message.content else []
        found["content"] = [*said, *calls]
    if not isinstance(message.name, Unset):
        found["name"] = message.name
    if not isinstance(message.tool_call_id, Unset):
        found["toolCallId"] = message.tool_call_id
    return found
