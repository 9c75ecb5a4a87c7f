"""The context of a node. The package `runs` implements it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import httpx

from wopr.agents.loop.context import AgentContext
from wopr.agents.tools.tool import Transport
from wopr.engine.state import ChainLink
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.interrupts import is_vendor_kind
from wopr.protocol.runs import TERMINAL, RunError, RunStatus

# The purpose of the interrupt of a ratification, in its key.
RATIFICATION = "ratification"
# The agent id of tool calls without an agent.
SYSTEM_AGENT = "core.system"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildView:
    """A child run, as the node of its parent sees it."""

    run_id: str
    workflow_id: str
    status: RunStatus
    variables: JsonObject
    error: RunError | None

    @property
    def has_ended(self) -> bool:
        """Return whether the child has ended."""
        return self.status in TERMINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceFloor:
    """The confidence threshold of supervisors, and the interrupt below it."""

    threshold: float = 0.5
    interrupt_kind: str = "approval"
    escalation_kind: Literal["clarify", "escalate"] = "escalate"
    waiting_status: RunStatus = "waiting-approval"
    # Whether events have the vendor kind as their `kind`, although their schemas exclude it.
    is_literal: bool = False

    @property
    def event_kind(self) -> str:
        """The kind in the events of the interrupt."""
        is_hidden = is_vendor_kind(self.interrupt_kind) and not self.is_literal
        return "custom" if is_hidden else self.interrupt_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """A tool call for authorisation and for the log.

    A call without an agent belongs to the host. `required_scopes` are required of the key that
    started the run. The log has the hash of the arguments.
    """

    tool_name: str
    arguments: Json
    transport: Transport
    required_scopes: tuple[str, ...] = ()
    agent_id: str = SYSTEM_AGENT


class NodeMemory(Protocol):
    """Long-term memory, within the run's tenant."""

    async def put(
        self,
        memory_ref: str,
        content: str,
        *,
        tags: Sequence[str] = (),
        expires_at: int | None = None,
    ) -> JsonObject:
        """Store an entry. Secrets are redacted before it is written."""
        ...

    async def list(self, memory_ref: str) -> Sequence[JsonObject]:
        """Return the entries that this run may see, newest first."""
        ...


class NodeContext(AgentContext, Protocol):
    """The context of a node: its run, and what the node can do.

    Emitted events and writes are appended together with the node's outcome, or earlier at
    `flush`. A node that is called again after a restart, a sleep or the end of a child gets the
    same `attempt` and `started_at`.

    Example:
        >>> from dataclasses import dataclass
        >>> from wopr import NodeContext, node
        >>> @dataclass
        ... class Order:
        ...     order_id: str
        >>> @node("acme.charge")
        ... async def charge(ctx: NodeContext, config: dict[str, object], inputs: Order) -> Order:
        ...     "Charge an order."
        ...
        ...     async def pay() -> object:
        ...         key = {"Idempotency-Key": ctx.invocation_id("pay")}
        ...         response = await ctx.http.post("https://pay.example/charges", headers=key)
        ...         return response.json()
        ...
        ...     await ctx.once("pay", pay)
        ...     ctx.log("info", "order charged", orderId=inputs.order_id)
        ...     return inputs
    """

    workflow_id: str
    # The iteration of the loop that this node heads, from 0.
    iteration: int
    # When the node started, and the current time, in milliseconds since the epoch.
    started_at: int
    now: int
    # How many `output.chunk` events this execution has on the log already.
    chunks: int
    children: tuple[ChildView, ...]
    run_orchestrator: str | None
    # The workflow of the newest worker that a dispatch node of this run started, or None.
    last_worker: str | None
    # The supervisor's decisions so far, with the events that recorded them.
    decisions: tuple[tuple[str, JsonObject], ...]
    # The outputs of the dispatch node that completed last.
    last_dispatch: JsonObject | None
    # The `core.workflowChain.event` events of this node.
    chain: tuple[ChainLink, ...]
    floor: ConfidenceFloor
    # Whether the workflow belongs to the conformance suite.
    is_conformance: bool
    memory: NodeMemory

    @property
    def http(self) -> httpx.AsyncClient:
        """An HTTP client that does not connect to private addresses."""
        ...

    @property
    def variables(self) -> Mapping[str, Json]:
        """The run's variables, including those that this node has set."""
        ...

    @property
    def scope(self) -> Mapping[str, Json]:
        """The values that an expression of this node can read."""
        ...

    def set_variable(self, name: str, value: Json) -> None:
        """Set a variable of the run.

        Args:
            name: The variable.
            value: The new value.

        Raises:
            NodeFailure: The name is that of a channel, or the value is too large.
        """
        ...

    def read_channel(self, name: str) -> Json:
        """Read a channel.

        Args:
            name: The channel.

        Returns:
            The reduced value, or `UNSET`.

        Raises:
            NodeFailure: The node may not read the channel.
        """
        ...

    def write_channel(self, name: str, value: Json, *, reducer: str = "") -> None:
        """Write to a channel.

        Args:
            name: The channel.
            value: The value to add.
            reducer: The reducer of a channel that is not declared.

        Raises:
            NodeFailure: The node may not write to the channel, or the value does not fit.
        """
        ...

    def version(self, change_id: str, minimum: int, maximum: int) -> int:
        """Pin a version of a change for this run. The first call pins `maximum`.

        Args:
            change_id: The change.
            minimum: The oldest version that this code supports.
            maximum: The newest version that this code supports.

        Returns:
            The pinned version, also in a replay.

        Raises:
            NodeFailure: The pinned version is not between `minimum` and `maximum`.
        """
        ...

    def add_artifact(self, artifact_type: str, content: Json, *, summary: str = "") -> str:
        """Store a document with the run.

        Args:
            artifact_type: The type of the artifact.
            content: The document.
            summary: A summary for people.

        Returns:
            The id of the artifact.

        Raises:
            NodeFailure: The document is too large.
        """
        ...

    def interrupt_key(self, purpose: str = "") -> str:
        """Make the key of an interrupt of this node and iteration, the same after every restart.

        Args:
            purpose: Distinguishes several interrupts of one node.

        Returns:
            The key.
        """
        ...

    def record_tool_call(
        self, agent_id: str, tool_name: str, arguments: Json, returned: JsonObject
    ) -> bool:
        """Record a tool call and its result on the log.

        Args:
            agent_id: The agent.
            tool_name: The tool.
            arguments: The arguments.
            returned: The result: `outcome`, or `error: {code, message}`.

        Returns:
            False if the call was not allowed.
        """
        ...

    def announce_tool_call(
        self, agent_id: str, tool_name: str, call_id: str, arguments: Json
    ) -> None:
        """Record the start of a tool call of a framework, unless the log has it as open.

        Args:
            agent_id: The agent.
            tool_name: The tool.
            call_id: The id of the call.
            arguments: The arguments.
        """
        ...

    def record_tool_return(
        self, agent_id: str, tool_name: str, call_id: str, returned: JsonObject
    ) -> None:
        """Record the result of a tool call of a framework.

        Args:
            agent_id: The agent.
            tool_name: The tool.
            call_id: The id of the call.
            returned: The result: `outcome`, or `error: {code, message}`.
        """
        ...

    async def call_tool(
        self, use: ToolUse, effect: Callable[[], Awaitable[Json]], shown: Callable[[Json], Json]
    ) -> Json:
        """Call a tool, and record the call and its result on the log.

        Args:
            use: The call.
            effect: Makes the call.
            shown: Returns the part of the result that the log may contain.

        Returns:
            The result.

        Raises:
            NodeFailure: The call is not allowed, or the rate limit is reached.
        """
        ...

    async def entry_agent(self, workflow_id: str) -> str | None:
        """Find the agent of a workflow's first node.

        Args:
            workflow_id: The workflow.

        Returns:
            The agent's id, or None.
        """
        ...

    async def spawn(
        self, workflow_id: str, inputs: JsonObject, *, causation_id: str = "", flush: bool = True
    ) -> str:
        """Start a child run in the same transaction as its `node.dispatched` event.

        Args:
            workflow_id: The workflow of the child run.
            inputs: The inputs.
            causation_id: The event that caused it.
            flush: Whether to append at once.

        Returns:
            The id of the child run.

        Raises:
            NodeFailure: The workflow does not exist, or a limit does not allow the child run.
        """
        ...

    def invocation_id(self, provider_key: str) -> str:
        """Make the idempotency key of an effect.

        The key is the same for every attempt and after every restart.

        Args:
            provider_key: Distinguishes several effects of one node.

        Returns:
            The key.
        """
        ...
