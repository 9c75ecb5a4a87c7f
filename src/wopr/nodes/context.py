"""What a node may do while it runs. The runtime implements it; nodes see nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import httpx

from wopr.engine.outcome import Suspended
from wopr.engine.state import ChainLink
from wopr.nodes.llm_context import LlmContext
from wopr.nodes.tools import Transport
from wopr.protocol.agents import AgentRef
from wopr.protocol.checking import UserSchema, Violation
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.interrupts import is_vendor_kind
from wopr.protocol.runs import RunError, RunStatus

LogLevel = Literal["debug", "info", "warn", "error"]
# What a node's wait for a person to ratify its decision is called in its key.
RATIFICATION = "ratification"
# Who calls a tool when no agent does.
SYSTEM_AGENT = "core.system"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildView:
    """A child run as its parent's node sees it."""

    run_id: str
    workflow_id: str
    status: RunStatus
    variables: JsonObject
    error: RunError | None

    @property
    def has_ended(self) -> bool:
        """Whether the child's log is closed."""
        return self.status in ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceFloor:
    """How sure a supervisor must be, and how the host asks when it is not."""

    threshold: float = 0.5
    interrupt_kind: str = "approval"
    escalation_kind: Literal["clarify", "escalate"] = "escalate"
    waiting_status: RunStatus = "waiting-approval"
    # Whether events carry a vendor kind itself, although their schemas exclude it.
    is_literal: bool = False

    @property
    def event_kind(self) -> str:
        """The kind as the events of such a wait have it."""
        is_hidden = is_vendor_kind(self.interrupt_kind) and not self.is_literal
        return "custom" if is_hidden else self.interrupt_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """A call of something outside, as it is authorised and as the log shows it.

    What no agent caused is the host's own. `required_scopes` are what the key that started the
    run must hold. Arguments appear on the log as their hash.
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
        """Keep an entry; secrets in it are redacted before it is written."""
        ...

    async def list(self, memory_ref: str) -> Sequence[JsonObject]:
        """Entries, newest first, as this run may see them."""
        ...


class NodeContext(Protocol):
    """The node's side of the run.

    Whatever is emitted or written is appended together with the node's outcome, or earlier at
    `flush`. A node that is called again after a restart, a sleep or a child's end gets the same
    `attempt` and `started_at`, so it can tell what is left to do.
    """

    tenant: str
    run_id: str
    # The run id for names inside payloads: a replay repeats those of the run it replays.
    origin_run_id: str
    workflow_id: str
    node_id: str
    attempt: int
    # Which round of the loop that this node heads, from 0.
    iteration: int
    # How often the node had started before in this run, retries not counted.
    visit: int
    # When the node started and what time it is, in milliseconds since the epoch.
    started_at: int
    now: int
    # How many `output.chunk` events this execution has on the log already.
    chunks: int
    configurable: Mapping[str, Json]
    children: tuple[ChildView, ...]
    # The agent that this node is pinned to.
    agent: AgentRef | None
    run_orchestrator: str | None
    # The workflow of the newest worker that a dispatch node of this run started, or None.
    last_worker: str | None
    # The supervisor's decisions so far, with the events that recorded them.
    decisions: tuple[tuple[str, JsonObject], ...]
    # What came of the newest decision: the outputs of the dispatch node that carried it out.
    last_dispatch: JsonObject | None
    # What this node has recorded of handing work to its children.
    chain: tuple[ChainLink, ...]
    # What a reviewer wants changed, when the node does its work again.
    feedback: JsonObject | None
    verbosity: str
    floor: ConfidenceFloor
    # Whether the workflow is one of the conformance suite's.
    is_conformance: bool
    memory: NodeMemory
    llm: LlmContext

    @property
    def http(self) -> httpx.AsyncClient:
        """The client for requests to destinations that the tenant named."""
        ...

    @property
    def variables(self) -> Mapping[str, Json]:
        """The run's variables, with what this node has set."""
        ...

    @property
    def scope(self) -> Mapping[str, Json]:
        """What an expression of this node can see."""
        ...

    def emit(self, event_type: str, payload: JsonObject, *, causation_id: str = "") -> str:
        """Put an event on the run's log and return its id."""
        ...

    def set_variable(self, name: str, value: Json) -> None:
        """Change a variable of the run."""
        ...

    def read_channel(self, name: str) -> Json:
        """The folded value of a channel, or `UNSET`."""
        ...

    def write_channel(self, name: str, value: Json, *, reducer: str = "") -> None:
        """Write to a channel; the reducer of a declared channel is the declared one."""
        ...

    def log(self, level: LogLevel, message: str, **fields: Json) -> None:
        """Put a line on the run's log."""
        ...

    def version(self, change_id: str, minimum: int, maximum: int) -> int:
        """Pin a version for this run: the first call fixes `maximum`, replays repeat the pin."""
        ...

    def add_artifact(self, artifact_type: str, content: Json, *, summary: str = "") -> str:
        """Keep a document with the run and return its id."""
        ...

    def interrupt_key(self, purpose: str = "") -> str:
        """The key of this node's wait in this round; the same after every restart."""
        ...

    def answer(self, key: str) -> Json:
        """The recorded answer to the wait with this key, or `UNSET` while there is none."""
        ...

    def ratification_key(self, decision: Json) -> str:
        """The key of the wait for a person's word on this decision, and on no other."""
        ...

    def low_confidence(
        self, agent_id: str, confidence: float, decision: Json, key: str
    ) -> Suspended | None:
        """The wait for a person to ratify a decision, when the agent is not sure enough."""
        ...

    def reason(
        self, agent_id: str, text: str, *, deltas: Sequence[str] = (), **extra: Json
    ) -> None:
        """Put an agent's reasoning on the log, as much of it as the run's verbosity allows."""
        ...

    def record_tool_call(
        self, agent_id: str, tool_name: str, arguments: Json, returned: JsonObject
    ) -> bool:
        """Put a tool call and its return on the log; False when the call was not allowed."""
        ...

    def announce_tool_call(
        self, agent_id: str, tool_name: str, call_id: str, arguments: Json
    ) -> None:
        """Put a call on the log that a framework makes, unless it is there without its return."""
        ...

    def record_tool_return(
        self, agent_id: str, tool_name: str, call_id: str, returned: JsonObject
    ) -> None:
        """Put what came of such a call on the log: `outcome` or `error: {code, message}`."""
        ...

    async def call_tool(
        self, use: ToolUse, effect: Callable[[], Awaitable[Json]], shown: Callable[[Json], Json]
    ) -> Json:
        """Call a tool if it may be called, with the call and its return on the log.

        `shown` says how much of the result the log may have. A call that is not allowed or comes
        too soon fails the node, and is not made.
        """
        ...

    async def entry_agent(self, workflow_id: str) -> str | None:
        """The agent that a workflow's first node is pinned to."""
        ...

    async def violations(self, schema: UserSchema, value: Json) -> Sequence[Violation]:
        """Find what a value breaks of a user's schema; empty when it fits.

        A check that takes too long is stopped, and the violation says so.
        """
        ...

    async def flush(self) -> None:
        """Append what has been emitted so far, so that readers see it now."""
        ...

    async def spawn(
        self, workflow_id: str, inputs: JsonObject, *, causation_id: str = "", flush: bool = True
    ) -> str:
        """Start a child run in the same transaction as its `node.dispatched` event."""
        ...

    def invocation_id(self, provider_key: str) -> str:
        """The layer-2 id of an effect: the same for every attempt and after every restart."""
        ...

    async def once(self, provider_key: str, effect: Callable[[], Awaitable[Json]]) -> Json:
        """Perform an outside effect once per logical invocation and record what came of it."""
        ...
