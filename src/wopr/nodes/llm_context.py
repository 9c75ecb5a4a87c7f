"""What a node that asks a language model gets from its run, beyond what every node gets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from wopr.nodes.models import Models
from wopr.nodes.tools import Tool
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.manifests import AgentManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What was used so far: tokens in and out, money, calls of models and of tools."""

    tokens: int = 0
    cost_usd: float = 0.0
    calls: int = 0
    tool_calls: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            tokens=self.tokens + other.tokens,
            cost_usd=self.cost_usd + other.cost_usd,
            calls=self.calls + other.calls,
            tool_calls=self.tool_calls + other.tool_calls,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """How much may be used; None is no limit."""

    tokens: int | None = None
    cost_usd: float | None = None
    calls: int | None = None
    tool_calls: int | None = None


class TextStream(Protocol):
    """Text on its way to the log, without its secrets, however they are cut into pieces."""

    def feed(self, chunk: str) -> str:
        """Take the next piece and return what may be shown by now."""
        ...

    def close(self) -> str:
        """Return what was held back."""
        ...


class ContextMessage(msgspec.Struct, frozen=True, kw_only=True, rename={"sender": "from"}):
    """A message of a shared context: a task, or what an agent answered."""

    sender: str
    role: str
    content: str


class LlmContext(Protocol):
    """A run's models, tools and budget, as one node may use them."""

    # None on a host without models.
    models: Models | None
    # The run's caps: the host's, lowered by the run's options.
    caps: Caps
    # Whether the node's outputs are marked sensitive, so that nothing it says is shown.
    is_private: bool
    # The credential that the node names, or its run; empty for the host's own.
    credentials_ref: str
    # The model of nodes that name none; empty where the operator has not said.
    default_model: str
    # How many bytes of reasoning may be told as it comes; None is no limit.
    reasoning_bytes: int | None

    @property
    def logged_calls(self) -> int:
        """How many model calls of this visit are on the log already."""
        ...

    @property
    def invocation_id(self) -> str:
        """The live invocation that this execution has on the log; empty before there is one."""
        ...

    @property
    def has_decided(self) -> bool:
        """Whether this execution has a decision on the log already, made before a wait."""
        ...

    @property
    def spent(self) -> Spent:
        """What the run has on its log as used."""
        ...

    async def check_model_tokens(self) -> None:
        """Raise `ModelFault` when the tenant has used its model tokens of this day.

        `models` check and count by themselves.
        """
        ...

    async def add_model_tokens(self, tokens: int) -> None:
        """Count tokens of a model that the host did not ask itself."""
        ...

    @property
    def history(self) -> Sequence[ContextMessage]:
        """What was said in the node's shared context before this execution started, in order."""
        ...

    def share(self, messages: Sequence[ContextMessage]) -> None:
        """Add messages to the node's shared context; a node with a context of its own adds none."""
        ...

    def manifest(self, agent_id: str) -> AgentManifest | None:
        """An agent's manifest as it was when the run started."""
        ...

    def allowlist(self, agent_id: str) -> frozenset[str] | None:
        """The tools that an agent may call; None when it has no manifest."""
        ...

    def find_tool(self, name: str) -> Tool | None:
        """A tool of the host's toolbox."""
        ...

    def knows_tool(self, name: str) -> bool:
        """Whether `find_tool` can tell; False for a tool whose source is yet to be asked."""
        ...

    async def prepare_tools(self, names: Collection[str]) -> None:
        """Get to know those tools that are had from elsewhere, so that `find_tool` has them.

        Raises `ToolFault` when their source cannot be asked and nothing is known of it.
        """
        ...

    async def perform_tool(self, tool: Tool, arguments: JsonObject, timeout_ms: int) -> Json:
        """Have a tool do its work for a node of the host's own, within `NodeContext.call_tool`.

        Raises `ToolFault`.
        """
        ...

    def advertises(self, event_type: str) -> bool:
        """Whether this host may put events of this type on a log."""
        ...

    async def redact(self, value: Json) -> Json:
        """The value without secrets."""
        ...

    def text_stream(self) -> TextStream:
        """A fresh stream for text that comes in pieces."""
        ...

    async def use_tool(
        self, agent_id: str, tool: Tool, arguments: JsonObject, timeout_ms: int
    ) -> JsonObject:
        """Call a tool for a model, once, with the call and its return on the log.

        The answer holds `outcome` or `error: {code, message}`: neither a tool that fails nor a
        call that is not allowed fails the node.
        """
        ...
