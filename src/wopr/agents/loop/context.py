"""The context of a node that uses a language model. The package `runs` implements it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from wopr.agents.models.port import Models
from wopr.agents.tools.tool import Tool
from wopr.engine.outcome import Suspended
from wopr.protocol.agents import AgentRef
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.json_schema.validation import UserSchema, Violation
from wopr.protocol.manifests import AgentManifest

LogLevel = Literal["debug", "info", "warn", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUsage:
    """Usage so far: tokens, cost, model calls and tool calls."""

    tokens: int = 0
    cost_usd: float = 0.0
    calls: int = 0
    tool_calls: int = 0

    def __add__(self, other: BudgetUsage) -> BudgetUsage:
        return BudgetUsage(
            tokens=self.tokens + other.tokens,
            cost_usd=self.cost_usd + other.cost_usd,
            calls=self.calls + other.calls,
            tool_calls=self.tool_calls + other.tool_calls,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Limits of usage; None is no limit."""

    tokens: int | None = None
    cost_usd: float | None = None
    calls: int | None = None
    tool_calls: int | None = None


class TextStream(Protocol):
    """Redacts text that comes in pieces, also secrets that are split between pieces."""

    def feed(self, chunk: str) -> str:
        """Add the next piece and return the text that may be shown now."""
        ...

    def close(self) -> str:
        """Return the text that was held back."""
        ...


class ContextMessage(msgspec.Struct, frozen=True, kw_only=True, rename={"sender": "from"}):
    """A message of a shared context: a task or an agent's answer."""

    sender: str
    role: str
    content: str


class LlmContext(Protocol):
    """The models, the tools and the budget of one node."""

    # None on a host without models.
    models: Models | None
    # The run's caps: the host's, lowered by the run's options.
    caps: Caps
    # Whether the node's outputs are sensitive. Then the log contains no text of the node.
    is_private: bool
    # The credential that the node or its run names; empty for the host's key.
    credentials_ref: str
    # The model of nodes that name no model; empty if the operator has set none.
    default_model: str
    # The limit of streamed reasoning in bytes; None is no limit.
    reasoning_bytes: int | None

    @property
    def logged_calls(self) -> int:
        """The number of model calls of this visit that are on the log."""
        ...

    @property
    def invocation_id(self) -> str:
        """The id of the invocation that this execution has on the log; empty if there is none."""
        ...

    @property
    def has_decided(self) -> bool:
        """Return whether this execution has a decision on the log, made before a wait."""
        ...

    @property
    def spent(self) -> BudgetUsage:
        """The usage that is on the run's log."""
        ...

    async def check_model_tokens(self) -> None:
        """Raise `ModelFault` if the tenant has used up its model tokens of this day.

        `models` does this itself. Adapters that call a model themselves use this method.
        """
        ...

    async def add_model_tokens(self, tokens: int) -> None:
        """Count the tokens of a model call of an adapter."""
        ...

    @property
    def history(self) -> Sequence[ContextMessage]:
        """The messages of the node's shared context before this execution started, in order."""
        ...

    def share(self, messages: Sequence[ContextMessage]) -> None:
        """Add messages to the node's shared context. Does nothing for an isolated node."""
        ...

    def manifest(self, agent_id: str) -> AgentManifest | None:
        """Return an agent's manifest as it was when the run started, or None."""
        ...

    def allowlist(self, agent_id: str) -> frozenset[str] | None:
        """Return the tools that an agent may call; None if it has no manifest."""
        ...

    def find_tool(self, name: str) -> Tool | None:
        """Return a tool of the host's toolbox, or None."""
        ...

    def knows_tool(self, name: str) -> bool:
        """Return False if the server of the tool has not listed its tools yet."""
        ...

    async def prepare_tools(self, names: Collection[str]) -> None:
        """List the tools of MCP servers, so that `find_tool` has them.

        Raises `ToolFault` if a server cannot be reached and has no earlier listing.
        """
        ...

    async def perform_tool(self, tool: Tool, arguments: JsonObject, timeout_ms: int) -> Json:
        """Call a tool for a node without an agent, within `NodeContext.call_tool`.

        Raises `ToolFault`.
        """
        ...

    def advertises(self, event_type: str) -> bool:
        """Return whether this host advertises events of this type."""
        ...

    async def redact(self, value: Json) -> Json:
        """Return the value without secrets."""
        ...

    def text_stream(self) -> TextStream:
        """Return a new stream for text that comes in pieces."""
        ...

    async def use_tool(
        self, agent_id: str, tool: Tool, arguments: JsonObject, timeout_ms: int
    ) -> JsonObject:
        """Call a tool for a model once, and log the call and its result.

        The result has `outcome` or `error: {code, message}`. The node does not fail if the tool
        fails or the call is not allowed.
        """
        ...


class AgentContext(Protocol):
    """The part of a node's context that a model session uses."""

    tenant: str
    run_id: str
    # The run id to use in payloads: a replay uses the id of its source.
    origin_run_id: str
    node_id: str
    attempt: int
    # How often the node had started before in this run, without retries.
    visit: int
    configurable: Mapping[str, Json]
    # The agent that this node is pinned to.
    agent: AgentRef | None
    # The changes that a reviewer requested, if the node does its work again.
    feedback: JsonObject | None
    verbosity: str
    llm: LlmContext

    def emit(self, event_type: str, payload: JsonObject, *, causation_id: str = "") -> str:
        """Append an event to the run's log.

        Args:
            event_type: The type of the event. The node type must be allowed to emit it.
            payload: The payload as JSON.
            causation_id: The event that caused it. The default is the start of the node.

        Returns:
            The id of the event.

        Raises:
            NodeFailure: The payload, or all data of the run, is too large.
        """
        ...

    def log(self, level: LogLevel, message: str, **fields: Json) -> None:
        """Append a line of text to the run's log.

        Args:
            level: The level of the line.
            message: The text.
            **fields: More members of the line, as JSON.

        Raises:
            NodeFailure: The fields, or all data of the run, are too large.
        """
        ...

    def answer(self, key: str) -> Json:
        """Return the recorded answer to an interrupt.

        Args:
            key: The key of the interrupt, as `NodeContext.interrupt_key` returned it.

        Returns:
            The resume value, or `UNSET` without an answer.
        """
        ...

    def ratification_key(self, decision: Json) -> str:
        """Return the key of the interrupt in which a person ratifies exactly this decision.

        Args:
            decision: The decision.

        Returns:
            The key, for `answer` and `low_confidence`.
        """
        ...

    def low_confidence(
        self, agent_id: str, confidence: float, decision: Json, key: str
    ) -> Suspended | None:
        """Compare the confidence of a decision with the threshold of its agent.

        Args:
            agent_id: The agent that decided.
            confidence: The confidence, from 0 to 1.
            decision: The decision.
            key: The key of the interrupt, as `ratification_key` returned it.

        Returns:
            The suspension to ratify the decision, or None if the confidence is high enough.
        """
        ...

    def reason(
        self, agent_id: str, text: str, *, deltas: Sequence[str] = (), **extra: Json
    ) -> None:
        """Append an agent's reasoning to the log, as far as the run's verbosity allows.

        Args:
            agent_id: The agent.
            text: The reasoning.
            deltas: The pieces of the reasoning, if it was streamed.
            **extra: More members of the payload.

        Raises:
            NodeFailure: The reasoning, or all data of the run, is too large.
        """
        ...

    async def violations(self, schema: UserSchema, value: Json) -> Sequence[Violation]:
        """Check a value against a user's schema.

        A check that takes too long is stopped and reported as a violation.

        Args:
            schema: The schema.
            value: The value.

        Returns:
            The violations; empty if the value is valid.
        """
        ...

    async def flush(self) -> None:
        """Append the events emitted so far, so that readers see them now.

        Raises:
            NodeFailure: A limit does not allow a child run that the node started.
        """
        ...

    async def once(self, provider_key: str, effect: Callable[[], Awaitable[Json]]) -> Json:
        """Perform an external effect once per logical invocation and record its result.

        Args:
            provider_key: Distinguishes several effects of one node.
            effect: Performs the effect and returns its result as JSON.

        Returns:
            The result, or the recorded result after a restart.

        Raises:
            NodeFailure: The effect failed. A failure that is not retryable is recorded too.
        """
        ...
