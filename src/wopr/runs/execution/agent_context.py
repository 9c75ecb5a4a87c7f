"""The context of a node that acts for an agent: models, tools, memory and confidence.

An `AgentContext` is made only for node types that may use it. Its parts are made at first use.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import anyio
import msgspec
import structlog

from wopr.agents.credentials import Credentials
from wopr.agents.loop.context import BudgetUsage, Caps, ContextMessage, LlmContext, TextStream
from wopr.agents.memory import AgentMemory, MemoryScope
from wopr.agents.models.port import Models
from wopr.agents.registry import AgentRegistry, InstalledAgent
from wopr.agents.tools.tool import Tool, ToolContext, ToolFault
from wopr.agents.tools.toolbox import Toolbox
from wopr.engine.channels import context_channel, group_of, messages_in
from wopr.engine.escalation import (
    confidence_threshold,
    is_low_confidence,
    reasoning_verbosity,
    truncate_text,
)
from wopr.engine.fold.agents import DISPATCH
from wopr.engine.outcome import NodeFailure, Suspended
from wopr.engine.state import ChainLink, RunState, time_shift
from wopr.nodes.context import (
    RATIFICATION,
    SYSTEM_AGENT,
    ConfidenceFloor,
    NodeMemory,
    ToolUse,
)
from wopr.protocol.documents import Json, JsonObject, Unset, is_object
from wopr.protocol.errors import WoprError
from wopr.protocol.events.agent import Verbosity
from wopr.protocol.manifests import AgentManifest
from wopr.protocol.resources.memory import is_memory_ref
from wopr.protocol.runs import RunBudget
from wopr.runs.active import ActiveRun
from wopr.runs.append import EventBatch, as_json
from wopr.runs.definitions.checks import CONFORMANCE_PREFIX
from wopr.runs.execution.context import ContextServices, ExecutionContext
from wopr.runs.execution.tool_calls import ToolCalls, ToolPolicy
from wopr.runs.interrupts.suspend import low_confidence_interrupt
from wopr.runs.quotas import Quotas
from wopr.security.digest import json_digest
from wopr.security.redact import StreamRedactor

log = structlog.get_logger("wopr.tools")
# A longer result is cut: a model reads it, and the log has it.
MAX_RESULT_BYTES: Final = 64 * 1024
# Number of digits of a decision's digest in the key of its interrupt.
_DIGITS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmServices:
    """Models, tools and credentials of a host, and the caps of every run."""

    models: Models | None = None
    # Counts the tokens of other models than `models`.
    quotas: Quotas | None = None
    toolbox: Toolbox = field(default_factory=Toolbox)
    credentials: Credentials | None = None
    default_model: str = ""
    caps: Caps = field(default_factory=Caps)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentServices:
    """What the nodes of agents need from the host."""

    agents: AgentRegistry
    memory: AgentMemory
    floor: ConfidenceFloor
    tools: ToolPolicy
    verbosity: Verbosity = "summary"
    token_limit: int = 512
    streams_reasoning: bool = True
    llm: LlmServices = field(default_factory=LlmServices)
    # Whether decisions below the threshold are only recorded. A setting of the operator.
    suppresses_escalation: bool = False

    def threshold(
        self,
        tenant: str,
        agent_id: str,
        configurable: JsonObject,
        version: str | None = None,
        at: int | None = None,
    ) -> float:
        """Return the confidence that an agent needs: the run's, its manifest's or the default."""
        return confidence_threshold(
            configurable, self.agents.threshold(tenant, agent_id, version, at)
        )

    def installed_agent(
        self, state: RunState, node_id: str, agent_id: str
    ) -> InstalledAgent | None:
        """Return the manifest of an agent as it was when the run started."""
        tenant, version = state.identity.tenant, _pinned_version(state, node_id, agent_id)
        return self.agents.find(tenant, agent_id, version, state.started_at)

    def allowlist(self, state: RunState, node_id: str, agent_id: str) -> frozenset[str] | None:
        """Return the tools that an agent may call; None when it has no manifest."""
        tenant, version = state.identity.tenant, _pinned_version(state, node_id, agent_id)
        return self.agents.allowlist(tenant, agent_id, version, state.started_at)

    def escalation(
        self,
        state: RunState,
        node_id: str,
        agent_id: str,
        confidence: Json,
        decision: Json,
        key: str,
    ) -> Suspended | None:
        """Return the suspension for a decision with low confidence; None if it is high enough.

        Only this method compares the confidence of an agent with its threshold. A node calls it
        through `AgentContext.low_confidence`, and the host calls it when any node ends, through
        `unratified_decision`.

        The confidence floor of supervisors is another rule, with a threshold of the host:
        `core.dispatch` applies it before it executes a decision, through
        `nodes.orchestrator.decisions.review`.
        """
        needed = self.threshold(
            state.identity.tenant,
            agent_id,
            state.configurable,
            _pinned_version(state, node_id, agent_id),
            state.started_at,
        )
        if not is_low_confidence(confidence, needed):
            return None
        return low_confidence_interrupt(agent_id, needed, confidence, decision, key)


def _pinned_version(state: RunState, node_id: str, agent_id: str) -> str | None:
    """Return the version of an agent that a node is pinned to."""
    pinned = state.graph.nodes[node_id].agent
    if (
        isinstance(pinned, Unset)
        or pinned.agent_id != agent_id
        or isinstance(pinned.version, Unset)
    ):
        return None
    return pinned.version


def unratified_decision(
    services: AgentServices, context: ExecutionContext, batch: EventBatch
) -> Suspended | None:
    """Return the suspension that a node's decisions need when the node ends, or None.

    The decisions are read from the log, so that no flush, sleep or restart loses one.
    Where the operator suppresses escalation, the decision is recorded instead.
    """
    for decided in batch.state.nodes[context.node_id].agent_decisions:
        key = _ratification_key(context, decided["decision"])
        suspension = services.escalation(
            context.state,
            context.node_id,
            decided["agentId"],
            decided["confidence"],
            decided["decision"],
            key,
        )
        if suspension is None or not isinstance(context.answer(key), Unset):
            continue
        if not services.suppresses_escalation:
            return suspension
        payload: JsonObject = {
            "kind": "confidence-escalation-suppressed",
            "limit": suspension.data["threshold"],
            "observed": decided["confidence"],
            "nodeId": context.node_id,
        }
        batch.add("cap.breached", payload, node_id=context.node_id)
    return None


def _ratification_key(context: ExecutionContext, shown: Json) -> str:
    """Return a key from the part of a decision that is on the log, which a person ratifies."""
    digest = json_digest(shown).hex()[:_DIGITS]
    return context.interrupt_key(f"{RATIFICATION}-{digest}")


class AgentContext(ExecutionContext):
    """The context of a node that may act for an agent."""

    def __init__(
        self,
        shared: ContextServices,
        services: AgentServices,
        run: ActiveRun,
        node_id: str,
        state: RunState,
        *,
        now: int,
    ) -> None:
        super().__init__(shared, run, node_id, state, now=now)
        self._services = services
        self.floor = services.floor

    @cached_property
    def run_orchestrator(self) -> str | None:
        """The agent that orchestrates the run."""
        orchestrator = self.state.run_orchestrator
        return None if orchestrator is None else orchestrator.agent_id

    @cached_property
    def last_worker(self) -> str | None:
        """The workflow of the newest worker that a dispatch node of this run started."""
        return self.state.last_worker or None

    @cached_property
    def decisions(self) -> tuple[tuple[str, JsonObject], ...]:
        """The supervisor's decisions so far, with the events that recorded them."""
        return tuple((made.event_id, made.decision) for made in self.state.decisions)

    @cached_property
    def last_dispatch(self) -> JsonObject | None:
        """The outputs of the dispatch node that completed last."""
        done = [
            (node.ended_at, node.outputs)
            for node_id, node in self.state.nodes.items()
            if node.outputs is not None and self.state.graph.nodes[node_id].type_id == DISPATCH
        ]
        return max(done, key=lambda each: each[0])[1] if done else None

    @cached_property
    def chain(self) -> tuple[ChainLink, ...]:
        """The `core.workflowChain.event` events of this node."""
        return self._node.chain

    @cached_property
    def is_conformance(self) -> bool:
        """Return whether the workflow belongs to the conformance suite."""
        return self.workflow_id.startswith(CONFORMANCE_PREFIX)

    @cached_property
    def verbosity(self) -> str:
        """The amount of reasoning on the log of the run."""
        return reasoning_verbosity(self.state.configurable, self._services.verbosity)

    @cached_property
    def memory(self) -> NodeMemory:
        """Long-term memory."""
        return MemoryAccess(self._services.memory, self)

    @cached_property
    def tool_calls(self) -> ToolCalls:
        """The tool calls of this execution."""
        return ToolCalls(self, self._run, self._services.tools, self.allowlist)

    @cached_property
    def llm(self) -> LlmContext:
        """Models, tools and budget."""
        return ModelAccess(self, self._run, self._services)

    def installed_agent(self, agent_id: str) -> InstalledAgent | None:
        """Return the manifest of an agent as it was when the run started."""
        return self._services.installed_agent(self.state, self.node_id, agent_id)

    def allowlist(self, agent_id: str) -> frozenset[str] | None:
        """Return the tools that an agent may call; None when it has no manifest."""
        return self._services.allowlist(self.state, self.node_id, agent_id)

    def ratification_key(self, decision: Json) -> str:
        """Return the key of the interrupt in which a person ratifies this decision."""
        shown = self._run.sensitive.mask_decision(self.state, self.node_id, as_json(decision))
        return _ratification_key(self, self.redactor.json(shown))

    def low_confidence(
        self, agent_id: str, confidence: float, decision: Json, key: str
    ) -> Suspended | None:
        """Return the suspension for a decision with low confidence; None if it is high enough."""
        if self._services.suppresses_escalation:
            return None
        return self._services.escalation(
            self.state, self.node_id, agent_id, confidence, decision, key
        )

    def reason(
        self, agent_id: str, text: str, *, deltas: Sequence[str] = (), **extra: Json
    ) -> None:
        """Append an agent's reasoning, as far as the run's verbosity allows."""
        if self.verbosity == "off":
            return
        full_text = "".join(deltas) or text
        shown = self.redactor.text(full_text)
        # A secret may span two deltas, so a text with a secret becomes one delta.
        pieces = list(deltas) if shown == full_text else [shown] if deltas else []
        if self._services.streams_reasoning:
            for sequence, piece in enumerate(pieces):
                delta: JsonObject = {"agentId": agent_id, "delta": piece, "sequence": sequence}
                self.emit("agent.reasoning.delta", delta | {"verbosity": self.verbosity})
        if self.verbosity == "summary":
            shown = truncate_text(shown, self._services.token_limit)
        payload: JsonObject = {"agentId": agent_id, "reasoning": shown, **extra}
        self.emit("agent.reasoned", payload | {"verbosity": self.verbosity})

    def record_tool_call(
        self, agent_id: str, tool_name: str, arguments: Json, returned: JsonObject
    ) -> bool:
        """Append a tool call and its return; False when the call was not allowed."""
        return self.tool_calls.record(agent_id, tool_name, arguments, returned)

    def announce_tool_call(
        self, agent_id: str, tool_name: str, call_id: str, arguments: Json
    ) -> None:
        """Append a tool call of a framework, unless it is on the log without its return."""
        use = ToolUse(
            tool_name=tool_name, arguments=arguments, transport="native", agent_id=agent_id
        )
        self.tool_calls.append_call(use, call_id, shows_content=not self.llm.is_private)

    def record_tool_return(
        self, agent_id: str, tool_name: str, call_id: str, returned: JsonObject
    ) -> None:
        """Append the return of a framework's tool call: `outcome` or `error: {code, message}`."""
        base: JsonObject = {"agentId": agent_id, "toolName": tool_name, "callId": call_id}
        outcome = (
            {"outcome": truncated_result(returned["outcome"])} if "outcome" in returned else {}
        )
        self.tool_calls.append_return(
            base, returned | outcome, shows_content=not self.llm.is_private
        )

    async def call_tool(
        self, use: ToolUse, effect: Callable[[], Awaitable[Json]], shown: Callable[[Json], Json]
    ) -> Json:
        """Call a tool if it is allowed, with the call and its return on the log."""
        return await self.tool_calls.call_for_host(use, effect, shown)

    async def entry_agent(self, workflow_id: str) -> str | None:
        """Return the agent that the first node of a workflow is pinned to."""
        try:
            compiled = await self._journal.library.newest(self.tenant, workflow_id)
        except WoprError:
            return None
        graph = compiled.graph
        for node in graph.nodes.values():
            if not graph.incoming[node.id] and not isinstance(node.agent, Unset):
                return node.agent.agent_id
        return None


class ModelAccess:
    """Models, tools and budget as one execution of a node may use them."""

    def __init__(self, context: AgentContext, run: ActiveRun, services: AgentServices) -> None:
        self._context = context
        self._run = run
        self._services = services.llm
        self.models = services.llm.models
        self.default_model = services.llm.default_model
        self.caps = within_budget(services.llm.caps, context.configurable)
        node = run.compiled.graph.nodes[context.node_id]
        self.is_private = context.is_private
        self._channel = context_channel(node.config)
        self.credentials_ref = _credentials_ref(node.credentials_ref, context.configurable)
        is_summary = context.verbosity == "summary"
        self.reasoning_bytes = services.token_limit * 4 if is_summary else None

    @property
    def logged_calls(self) -> int:
        """Number of model calls of this visit that are on the log."""
        return self._run.state.nodes[self._context.node_id].model_calls

    @property
    def invocation_id(self) -> str:
        """The invocation of this execution on the log."""
        return self._run.state.nodes[self._context.node_id].invocation_id

    @property
    def has_decided(self) -> bool:
        """Return whether this execution has a decision on the log from before an interrupt."""
        return bool(self._run.state.nodes[self._context.node_id].agent_decisions)

    @property
    def spent(self) -> BudgetUsage:
        """Use of models and tools by the run, from its log."""
        state = self._run.state
        usage = state.usage or {}
        tokens = usage.get("tokens", {})
        return BudgetUsage(
            tokens=tokens.get("input", 0) + tokens.get("output", 0),
            cost_usd=usage.get("usd", 0.0),
            calls=state.model_calls,
            tool_calls=state.tool_calls,
        )

    async def check_model_tokens(self) -> None:
        """Raise `ModelFault` when the tenant has used its model tokens of this day."""
        if self._services.quotas is not None:
            await self._services.quotas.check_model_tokens(self._context.tenant)

    async def add_model_tokens(self, tokens: int) -> None:
        """Count tokens of a model call that the host did not make."""
        if self._services.quotas is not None:
            await self._services.quotas.add_model_tokens(self._context.tenant, tokens)

    @property
    def history(self) -> Sequence[ContextMessage]:
        """The messages in the node's shared context before this execution started, in order."""
        messages = messages_in(self._context.state.channels, self._channel)
        before = self._context.state.nodes[self._context.node_id].context_messages
        return [*_valid_messages(messages[:before])]

    def share(self, messages: Sequence[ContextMessage]) -> None:
        """Add messages to the node's shared context, each once."""
        context = self._context
        if self._channel is None:
            return
        stored = messages_in(self._run.state.channels, self._channel)
        known = {message["messageId"] for message in stored if is_object(message)}
        group = group_of(self._channel)
        for place, message in enumerate(messages):
            # Without the run id, so that a replay has the same message ids.
            message_id = f"{context.node_id}:{context.visit}:{place}"
            record: JsonObject = {"messageId": message_id, **msgspec.to_builtins(message)}
            record |= {"groupId": group} if group else {}
            if message_id not in known:
                context.write_channel(
                    self._channel, record | {"ts": context.now}, reducer="message"
                )

    def manifest(self, agent_id: str) -> AgentManifest | None:
        """Return an agent's manifest as it was when the run started."""
        found = self._context.installed_agent(agent_id)
        return None if found is None else found.manifest

    def allowlist(self, agent_id: str) -> frozenset[str] | None:
        """Return the tools that an agent may call; None when it has no manifest."""
        return self._context.allowlist(agent_id)

    def find_tool(self, name: str) -> Tool | None:
        """Return a tool of the host's toolbox."""
        return self._services.toolbox.find(self._context.tenant, name)

    def knows_tool(self, name: str) -> bool:
        """Return whether the toolbox has loaded the source of the tool."""
        return self._services.toolbox.knows(self._context.tenant, name)

    async def prepare_tools(self, names: Collection[str]) -> None:
        """Load the tools that come from other servers."""
        await self._services.toolbox.prepare(self._context.tenant, names, self.secret)

    def advertises(self, event_type: str) -> bool:
        """Return whether this host may put events of this type on a log."""
        return self._context.advertises(event_type)

    async def redact(self, value: Json) -> Json:
        """Return the value without secrets."""
        return await self._context.redact(value)

    def text_stream(self) -> TextStream:
        """Return a new stream that redacts secrets and masks sensitive text, also across chunks."""
        return _ChainedStreams(StreamRedactor(self._context.redactor), self._run.sensitive.stream())

    async def secret(self, ref: str, *, host: str = "", provider: str = "") -> str:
        """Return a credential of the tenant."""
        if self._services.credentials is None:
            raise ToolFault(f"there is no credential {ref}", code="credential_not_found")
        try:
            return await self._services.credentials.resolve(
                self._context.tenant, ref, host=host, provider=provider
            )
        except NodeFailure as failure:
            raise ToolFault(failure.error.message, code=failure.error.code) from failure

    async def use_tool(
        self, agent_id: str, tool: Tool, arguments: JsonObject, timeout_ms: int
    ) -> JsonObject:
        """Call a tool for a model, once, with the call and its return on the log."""

        async def effect(call_id: str, invocation_id: str) -> Json:
            context = self._tool_context(agent_id, call_id, invocation_id)
            return await call_tool(tool, arguments, context, timeout_ms / 1000)

        use = ToolUse(
            tool_name=tool.name,
            arguments=arguments,
            transport=tool.transport,
            required_scopes=tool.required_scopes,
            agent_id=agent_id,
        )
        return await self._context.tool_calls.call_for_model(
            use, effect, shows_content=not self.is_private
        )

    async def perform_tool(self, tool: Tool, arguments: JsonObject, timeout_ms: int) -> Json:
        """Call a tool for a node of the host itself."""
        invocation_id = self._context.invocation_id(f"tool:{tool.name}")
        context = self._tool_context(SYSTEM_AGENT, invocation_id, invocation_id)
        return await call_tool(tool, arguments, context, timeout_ms / 1000)

    def _tool_context(self, agent_id: str, call_id: str, invocation_id: str) -> ToolContext:
        context = self._context
        return ToolContext(
            tenant=context.tenant,
            run_id=context.run_id,
            node_id=context.node_id,
            agent_id=agent_id,
            call_id=call_id,
            invocation_id=invocation_id,
            http=context.http,
            secret=self.secret,
            traceparent=context.state.traceparent,
        )


def _valid_messages(messages: Sequence[Json]) -> Iterator[ContextMessage]:
    """Yield the valid messages. A user's node may have written others."""
    for message in messages:
        try:
            yield msgspec.convert(message, ContextMessage)
        except msgspec.ValidationError:
            continue


class _ChainedStreams:
    """Two filters of a text stream: secrets first, then the sensitive values of the run."""

    def __init__(self, first: TextStream, then: TextStream | None) -> None:
        self._first = first
        self._then = then

    def feed(self, chunk: str) -> str:
        """Add a chunk and return the text that may be shown."""
        text = self._first.feed(chunk)
        return text if self._then is None else self._then.feed(text)

    def close(self) -> str:
        """Return the remaining text."""
        rest = self._first.close()
        return rest if self._then is None else self._then.feed(rest) + self._then.close()


async def call_tool(
    tool: Tool, arguments: JsonObject, context: ToolContext, seconds: float
) -> Json:
    """Call a tool. Every exception becomes a `ToolFault`, which the model gets."""
    try:
        with anyio.fail_after(seconds or None):
            return truncated_result(await tool.call(arguments, context))
    except ToolFault:
        raise
    except TimeoutError as late:
        raise ToolFault(f"no result within {seconds:g} s", code="tool_timeout") from late
    except WoprError as error:
        raise ToolFault(error.message, code=error.code) from error
    except Exception as error:  # the outer edge of a tool's own code
        # Without the message, which may have sensitive values. The log of the run has it masked.
        kind = type(error).__name__
        log.warning(
            "tool raised",
            run_id=context.run_id,
            tool=tool.name,
            error=kind,
            at=_traceback_lines(error),
        )
        raise ToolFault(f"{type(error).__name__}: {error}") from error


def _traceback_lines(error: Exception) -> str:
    """Return the innermost lines of an exception's traceback."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)


def truncated_result(result: Json) -> Json:
    """Return a tool's result as JSON, cut to a length that a model can read."""
    try:
        body = msgspec.json.encode(result)
    except (TypeError, ValueError, msgspec.MsgspecError) as fault:
        raise ToolFault(f"the result is not JSON: {fault}") from fault
    if len(body) <= MAX_RESULT_BYTES:
        return msgspec.json.decode(body)
    shown = body[:MAX_RESULT_BYTES].decode("utf-8", "ignore")
    return f"{shown}… (cut: {len(body)} bytes)"


def within_budget(caps: Caps, configurable: Mapping[str, Json]) -> Caps:
    """Return the host's caps, lowered by the budget of the run. A run cannot raise them."""
    try:
        wanted = msgspec.convert(configurable.get("budget", {}), RunBudget)
    except msgspec.ValidationError:
        # Options are checked when a run is created. An imported log may have others.
        wanted = RunBudget()
    return Caps(
        tokens=_least(caps.tokens, wanted.max_tokens),
        cost_usd=_least(caps.cost_usd, wanted.max_cost_usd),
        calls=caps.calls,
        tool_calls=_least(caps.tool_calls, wanted.max_tool_calls),
    )


def _least(limit: float | None, wanted: float | Unset) -> Json:
    if isinstance(wanted, Unset):
        return limit
    return wanted if limit is None else min(limit, wanted)


def _credentials_ref(own: str | Unset, configurable: Mapping[str, Json]) -> str:
    """Return the name of the credential: the run's option, else the node's."""
    wanted: Json = configurable.get("ai.credentialRef")
    if isinstance(wanted, str):
        return wanted
    return "" if isinstance(own, Unset) else own


class MemoryAccess:
    """Long-term memory of one execution of a node; every write leaves an event without content."""

    def __init__(self, memory: AgentMemory, context: ExecutionContext) -> None:
        self._memory = memory
        self._context = context
        self._writes = 0

    async def put(
        self,
        memory_ref: str,
        content: str,
        *,
        tags: Sequence[str] = (),
        expires_at: int | None = None,
    ) -> JsonObject:
        """Store an entry. Its id is derived, so that a repeated call writes it once."""
        context = self._context
        memory_id = f"{context.node_id}-{context.visit}-{self._writes}-{context.run_id}"
        self._writes += 1
        entry = await self._memory.put(
            self._scope(memory_ref),
            memory_id,
            content,
            redactor=context.redactor,
            tags=tags,
            expires_at=expires_at,
        )
        payload: JsonObject = {"memoryRef": memory_ref, "memoryId": memory_id}
        if tags:
            payload["tags"] = entry.tags
        if context.agent is not None:
            payload["agentId"] = context.agent.agent_id
        context.emit("memory.written", payload | {"nodeId": context.node_id})
        shown: Json = msgspec.to_builtins(entry)
        return dict(shown)

    async def list(self, memory_ref: str) -> Sequence[JsonObject]:
        """Return entries, newest first; empty for an invalid memory reference."""
        if not is_memory_ref(memory_ref):
            return []
        entries = await self._memory.list(self._scope(memory_ref))
        return [msgspec.to_builtins(entry) for entry in entries]

    def _scope(self, memory_ref: str) -> MemoryScope:
        state = self._context.state
        return MemoryScope(
            tenant=self._context.tenant,
            memory_ref=memory_ref,
            run_id=self._context.run_id,
            # A branch sees the memory of its source, so the time shift is subtracted.
            run_started_at=state.started_at - time_shift(state.identity, 0),
        )
