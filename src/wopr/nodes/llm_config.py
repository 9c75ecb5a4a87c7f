"""The config of nodes that ask a language model, and what is wrong with one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec

from wopr.engine.expression_tokens import is_object
from wopr.nodes.http_tools import HttpTool, http_tool_faults
from wopr.nodes.registry import members_of
from wopr.protocol.agents import AgentId
from wopr.protocol.checking import schema_faults
from wopr.protocol.documents import UNSET, Closed, JsonObject, NonEmpty, Unset

# Model calls of one agent node: enough for any task, and no loop goes on for ever.
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
    """How much one node may use."""

    max_tokens: _Count | Unset = UNSET
    max_cost_usd: Annotated[float, msgspec.Meta(ge=0)] | Unset = UNSET
    max_calls: Annotated[int, msgspec.Meta(ge=1, le=1000)] = DEFAULT_CALLS
    max_tool_calls: Annotated[int, msgspec.Meta(ge=0)] | Unset = UNSET


class ChatConfig(Closed, frozen=True, kw_only=True):
    """Which model, what it is told, and within which limits.

    `system` and `prompt` are the author's own words, and trusted. What a run brings along comes
    as inputs, and is not. `requires` names what the model must be able to do; one that cannot is
    replaced by `fallbackModel`, or the node fails.
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
    # Whose conversation the model knows: the node's own, the run's, or that of a group.
    agent_sharing: AgentSharing = "isolated"
    requires: list[NonEmpty] = []
    fallback_model: ModelName | Unset = UNSET
    budget: Budget = Budget()

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Name every option that no provider takes."""
        yield from option_faults(config)


# What every provider may know beside the fields above.
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
_OWN_OPTION: Final = re.compile(r"(?:openai|anthropic|google)_[a-z0-9_]+")


def is_provider_option(name: str) -> bool:
    """Whether a workflow may set this option of a provider.

    Others would change the request itself, and with it the model or the conversation that the
    host has checked.
    """
    return name in COMMON_OPTIONS or _OWN_OPTION.fullmatch(name) is not None


def option_faults(config: JsonObject) -> Iterator[tuple[str, str]]:
    """Name every option that no provider takes."""
    options = config.get("providerOptions")
    for name in options if is_object(options) else ():
        if not is_provider_option(name):
            known = ", ".join(sorted(COMMON_OPTIONS))
            expected = f"one of {known}, or a name that begins with openai_, anthropic_ or google_"
            yield f"providerOptions.{name}", f"is no option of a provider: use {expected}"


class StructuredConfig(ChatConfig, frozen=True, kw_only=True):
    """A chat whose answer is JSON that fits a schema."""

    schema: JsonObject

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Name what is wrong with the schema and the options."""
        yield from option_faults(config)
        yield from _schema_faults(config)


class AgentConfig(ChatConfig, frozen=True, kw_only=True):
    """An agent at work: it may call tools, hand over to another agent, and say how sure it is.

    Without `tools` it has all that its manifest allows. With `asksConfidence` the model must say
    how sure it is; left out, it must where the agent's manifest has a threshold.
    """

    schema: JsonObject | Unset = UNSET
    tools: list[NonEmpty] | Unset = UNSET
    http_tools: list[HttpTool] = []
    # Agents that it may hand over to, and when it should.
    handoffs: dict[AgentId, str] = {}
    asks_confidence: bool | Unset = UNSET
    tool_timeout_ms: _Millis = 60_000
    # Calls of unknown tools or with wrong arguments before the node gives up.
    max_wrong_calls: Annotated[int, msgspec.Meta(ge=0, le=100)] = 3

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Name what is wrong with the schema, the options and every declared tool."""
        yield from option_faults(config)
        yield from _schema_faults(config)
        seen: set[str] = set()
        for index, tool in enumerate(members_of(config, "httpTools")):
            path = f"httpTools.{index}"
            yield from http_tool_faults(path, tool)
            name = tool.get("name")
            if isinstance(name, str) and name in seen:
                yield f"{path}.name", f"there are two tools named {name}"
            seen |= {name} if isinstance(name, str) else set()


def _schema_faults(config: JsonObject) -> Iterator[tuple[str, str]]:
    schema = config.get("schema")
    if is_object(schema):
        for fault in schema_faults("schema", schema):
            yield fault.path, fault.message


class ChatMessage(Closed, frozen=True, kw_only=True):
    """A message of a conversation that a run brings along; it cannot speak as the system."""

    role: Literal["user", "assistant"]
    content: str


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """The two inputs that are the conversation itself; all others are data."""

    prompt: str = ""
    messages: list[ChatMessage] = []
