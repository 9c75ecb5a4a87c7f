"""The config of nodes that use a language model, and its checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec

from wopr.agents.models.port import COMMON_OPTIONS, is_provider_option
from wopr.agents.tools.http_tools import HttpTool, http_tool_faults
from wopr.protocol.agents import AgentId
from wopr.protocol.documents import (
    UNSET,
    Closed,
    JsonObject,
    NonEmpty,
    Unset,
    is_object,
    objects_in,
)
from wopr.protocol.json_schema.validation import schema_faults

# The default limit of model calls of one agent node.
DEFAULT_CALLS: Final = 20

ModelName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z][A-Za-z0-9_-]*:.+$",
        description="a provider and its model, such as openai:gpt-4o",
    ),
]
AgentSharing = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(isolated|shared|shared:[^\s].{0,127})$",
        description="isolated, shared or shared:<group>",
    ),
]
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Millis = Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]


class Budget(Closed, frozen=True, kw_only=True):
    """The budget of one node."""

    max_tokens: _Count | Unset = UNSET
    max_cost_usd: Annotated[float, msgspec.Meta(ge=0)] | Unset = UNSET
    max_calls: Annotated[int, msgspec.Meta(ge=1, le=1000)] = DEFAULT_CALLS
    max_tool_calls: Annotated[int, msgspec.Meta(ge=0)] | Unset = UNSET


class ChatConfig(Closed, frozen=True, kw_only=True):
    """The model, its instructions and its limits.

    `system` and `prompt` are written by the author and trusted. Inputs of a run are not trusted.
    `requires` names capabilities of the model. A model without them is replaced by
    `fallbackModel`, or the node fails.
    """

    model: ModelName | Unset = UNSET
    system: str = ""
    prompt: str = ""
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | Unset = UNSET
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | Unset = UNSET
    max_output_tokens: _Count | Unset = UNSET
    stop: list[NonEmpty] = []
    seed: int | Unset = UNSET
    provider_options: JsonObject = {}
    stream: bool = True
    timeout_ms: _Millis = 120_000
    max_retries: Annotated[int, msgspec.Meta(ge=0, le=10)] = 3
    # The conversation that the model gets: that of the node, of the run, or of a group.
    agent_sharing: AgentSharing = "isolated"
    requires: list[NonEmpty] = []
    fallback_model: ModelName | Unset = UNSET
    budget: Budget = Budget()

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Yield the unknown options."""
        yield from option_faults(config)


def option_faults(config: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield the unknown options."""
    options = config.get("providerOptions")
    for name in options if is_object(options) else ():
        if not is_provider_option(name):
            known = ", ".join(sorted(COMMON_OPTIONS))
            expected = f"one of {known}, or a name that starts with openai_, anthropic_ or google_"
            yield f"providerOptions.{name}", f"is not an option of a provider: use {expected}"


class StructuredConfig(ChatConfig, frozen=True, kw_only=True):
    """A chat whose answer is JSON that fits a schema."""

    schema: JsonObject

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Yield the faults of the schema and the options."""
        yield from option_faults(config)
        yield from _schema_faults(config)


class AgentConfig(ChatConfig, frozen=True, kw_only=True):
    """An agent that may call tools, hand over to another agent, and report its confidence.

    Without `tools` it has all tools that its manifest allows. With `asksConfidence` the model must
    report its confidence. The default is true if the agent's manifest has a threshold.
    """

    schema: JsonObject | Unset = UNSET
    tools: list[NonEmpty] | Unset = UNSET
    http_tools: list[HttpTool] = []
    # Agents that it may hand over to, each with the condition for the handoff.
    handoffs: dict[AgentId, str] = {}
    asks_confidence: bool | Unset = UNSET
    tool_timeout_ms: _Millis = 60_000
    # Calls of unknown tools or with wrong arguments before the node fails.
    max_wrong_calls: Annotated[int, msgspec.Meta(ge=0, le=100)] = 3

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Yield the faults of the schema, the options and the declared tools."""
        yield from option_faults(config)
        yield from _schema_faults(config)
        seen: set[str] = set()
        for index, tool in enumerate(objects_in(config, "httpTools")):
            path = f"httpTools.{index}"
            yield from http_tool_faults(path, tool)
            name = tool.get("name")
            if isinstance(name, str) and name in seen:
                yield f"{path}.name", f"two tools have the name {name}"
            seen |= {name} if isinstance(name, str) else set()


def _schema_faults(config: JsonObject) -> Iterator[tuple[str, str]]:
    schema = config.get("schema")
    if is_object(schema):
        for fault in schema_faults("schema", schema):
            yield fault.path, fault.message


class ChatMessage(Closed, frozen=True, kw_only=True):
    """A message of a conversation in a run's inputs. It cannot have the role `system`."""

    role: Literal["user", "assistant"]
    content: str


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """The two inputs that are the conversation. All other inputs are data."""

    prompt: str = ""
    messages: list[ChatMessage] = []
