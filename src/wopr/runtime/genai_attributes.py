"""OpenTelemetry's names for what agents do, and the attributes of each kind of span.

Names come from a fixed list. What models and tools were told and said is among them only where
content is wanted, and then as the log has it: redacted, and without what is sealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from wopr.fleet.bridge_facts import number, object_of, text, tool_of
from wopr.fleet.lines import compact
from wopr.protocol.documents import Json, JsonObject

Value: TypeAlias = str | int | float | bool | Sequence[str]
Attributes: TypeAlias = dict[str, Value]

OPERATION: Final = "gen_ai.operation.name"
EVALUATION: Final = "gen_ai.evaluation.result"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ERROR_TYPE: Final = "error.type"
OUTPUT: Final = "gen_ai.output.messages"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"
# Providers that the conventions call otherwise than this host does.
_PROVIDERS: Final = {"google": "gcp.gen_ai"}
LONGEST_CONTENT: Final = 8192


def agent_attributes(agent_id: str, payload: JsonObject) -> Attributes:
    """An agent's invocation, by the event that shows it first."""
    agent = object_of(payload.get("agent"))
    return _filled(
        {
            OPERATION: "invoke_agent",
            "gen_ai.agent.id": agent_id,
            "gen_ai.agent.name": text(agent, "name") or agent_id,
            "gen_ai.agent.version": text(payload, "resolvedAgentVersion") or text(agent, "version"),
            "gen_ai.provider.name": provider_name(text(payload, "resolvedProvider")),
            "gen_ai.request.model": text(payload, "resolvedModel"),
        }
    )


def chat_attributes(usage: JsonObject, requested: str | None) -> Attributes:
    """A request to a model, by what it used; the costs' names are a closed list too."""
    provider, model = text(usage, "provider"), text(usage, "model")
    used, said = number(usage, "inputTokens"), number(usage, "outputTokens")
    usd = number(usage, "costEstimateUsd")
    return _filled(
        {
            OPERATION: "chat",
            "gen_ai.provider.name": provider_name(provider),
            "gen_ai.request.model": requested or model,
            "gen_ai.response.model": model,
            INPUT_TOKENS: used,
            OUTPUT_TOKENS: said,
            "gen_ai.usage.cache_read.input_tokens": number(usage, "cacheReadTokens"),
            "gen_ai.usage.cache_creation.input_tokens": number(usage, "cacheWriteTokens"),
            "openwop.cost.provider": provider,
            "openwop.cost.tokens.input": used,
            "openwop.cost.tokens.output": said,
            "openwop.cost.tokens.total": number(usage, "totalTokens"),
            "openwop.cost.usd": usd,
            "openwop.cost.currency": text(usage, "currency"),
            "openwop.cost.estimated": None if usd is None else True,
        }
    )


def tool_attributes(called: JsonObject) -> Attributes:
    """A tool call, by the event that announces it."""
    return _filled(
        {
            OPERATION: "execute_tool",
            "gen_ai.tool.name": tool_of(called) or "unknown",
            "gen_ai.tool.call.id": text(called, "callId"),
            "gen_ai.tool.type": "function",
        }
    )


def verdict_attributes(name: str, label: str, score: float | None = None) -> Attributes:
    """How something was judged; what was said about it stays here."""
    return _filled(
        {
            "gen_ai.evaluation.name": name,
            "gen_ai.evaluation.score.label": label,
            "gen_ai.evaluation.score.value": score,
        }
    )


def said_by_assistant(content: str) -> str:
    """An answer in the form that messages have."""
    part = {"type": "text", "content": content[:LONGEST_CONTENT]}
    return compact([{"role": "assistant", "parts": [part]}])


def shown(value: Json) -> str:
    """A value as text, cut."""
    return (value if isinstance(value, str) else compact(value))[:LONGEST_CONTENT]


def provider_name(provider: str | None) -> str | None:
    """A provider as the conventions call it."""
    return None if provider is None else _PROVIDERS.get(provider, provider)


def _filled(attributes: dict[str, Value | None]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}
