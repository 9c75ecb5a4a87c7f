"""The models, tools and budget of one node's call: the runtime's side of `LlmContext`."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import msgspec
import structlog

from wopr.agents.credentials import Credentials
from wopr.agents.toolbox import Tool, Toolbox, ToolContext, ToolFault
from wopr.engine.contexts import context_channel, group_of, messages_in
from wopr.engine.expression_tokens import is_object
from wopr.engine.outcome import NodeFailure
from wopr.nodes.context import SYSTEM_AGENT, ToolUse
from wopr.nodes.llm_context import Caps, ContextMessage, Spent, TextStream
from wopr.nodes.models import Models
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.errors import WoprError
from wopr.protocol.manifests import AgentManifest
from wopr.protocol.runs import RunBudget
from wopr.runtime.active import ActiveRun
from wopr.runtime.quotas import Quotas
from wopr.security.redact import StreamRedactor

if TYPE_CHECKING:
    from wopr.runtime.agent_call import AgentCall, AgentServices

log = structlog.get_logger("wopr.tools")
# A result that is longer is cut: a model reads it, and the record keeps it.
LARGEST_RESULT_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmServices:
    """What a host has for its agents: models, tools, credentials, and caps of every run."""

    models: Models | None = None
    # Counts the tokens of models that are not among `models`.
    quotas: Quotas | None = None
    toolbox: Toolbox = field(default_factory=Toolbox)
    credentials: Credentials | None = None
    default_model: str = ""
    caps: Caps = field(default_factory=Caps)


class RunLlm:
    """Models, tools and budget as one node's call may use them."""

    def __init__(self, call: AgentCall, run: ActiveRun, services: AgentServices) -> None:
        self._call = call
        self._run = run
        self._services = services.llm
        self.models = services.llm.models
        self.default_model = services.llm.default_model
        self.caps = lowered(services.llm.caps, call.configurable)
        node = run.compiled.graph.nodes[call.node_id]
        self.is_private = call.is_private
        self._channel = context_channel(node.config)
        self.credentials_ref = _credentials_ref(node.credentials_ref, call.configurable)
        is_summary = call.verbosity == "summary"
        self.reasoning_bytes = services.token_limit * 4 if is_summary else None

    @property
    def logged_calls(self) -> int:
        """How many model calls of this visit are on the log already."""
        return self._run.state.nodes[self._call.node_id].model_calls

    @property
    def invocation_id(self) -> str:
        """The live invocation that this execution has on the log."""
        return self._run.state.nodes[self._call.node_id].invocation_id

    @property
    def has_decided(self) -> bool:
        """Whether this execution has a decision on the log already, made before a wait."""
        return bool(self._run.state.nodes[self._call.node_id].decided)

    @property
    def spent(self) -> Spent:
        """What the run has on its log as used."""
        state = self._run.state
        usage = state.usage or {}
        tokens = usage.get("tokens", {})
        return Spent(
            tokens=tokens.get("input", 0) + tokens.get("output", 0),
            cost_usd=usage.get("usd", 0.0),
            calls=state.model_calls,
            tool_calls=state.tool_calls,
        )

    async def check_model_tokens(self) -> None:
        """Raise `ModelFault` when the tenant has used its model tokens of this day."""
        if self._services.quotas is not None:
            await self._services.quotas.check_model_tokens(self._call.tenant)

    async def add_model_tokens(self, tokens: int) -> None:
        """Count tokens of a model that the host did not ask itself."""
        if self._services.quotas is not None:
            await self._services.quotas.add_model_tokens(self._call.tenant, tokens)

    @property
    def history(self) -> Sequence[ContextMessage]:
        """What was said in the node's shared context before this execution started, in order."""
        said = messages_in(self._call.state.channels, self._channel)
        return [*_readable(said[: self._call.state.nodes[self._call.node_id].heard])]

    def share(self, messages: Sequence[ContextMessage]) -> None:
        """Add messages to the node's shared context, each once."""
        call = self._call
        if self._channel is None:
            return
        held = messages_in(self._run.state.channels, self._channel)
        known = {message["messageId"] for message in held if is_object(message)}
        group = group_of(self._channel)
        for place, message in enumerate(messages):
            # Without the run's id: a replay names its messages alike.
            message_id = f"{call.node_id}:{call.visit}:{place}"
            record: JsonObject = {"messageId": message_id, **msgspec.to_builtins(message)}
            record |= {"groupId": group} if group else {}
            if message_id not in known:
                call.write_channel(self._channel, record | {"ts": call.now}, reducer="message")

    def manifest(self, agent_id: str) -> AgentManifest | None:
        """An agent's manifest as it was when the run started."""
        found = self._call.installed(agent_id)
        return None if found is None else found.manifest

    def allowlist(self, agent_id: str) -> frozenset[str] | None:
        """The tools that an agent may call; None when it has no manifest."""
        return self._call.tools(agent_id)

    def find_tool(self, name: str) -> Tool | None:
        """A tool of the host's toolbox."""
        return self._services.toolbox.find(self._call.tenant, name)

    def knows_tool(self, name: str) -> bool:
        """Whether the toolbox can tell what the tool is, or that there is none."""
        return self._services.toolbox.knows(self._call.tenant, name)

    async def prepare_tools(self, names: Collection[str]) -> None:
        """Get to know those tools that are had from elsewhere."""
        await self._services.toolbox.prepare(self._call.tenant, names, self.secret)

    def advertises(self, event_type: str) -> bool:
        """Whether this host may put events of this type on a log."""
        return self._call.advertises(event_type)

    async def redact(self, value: Json) -> Json:
        """The value without secrets."""
        return await self._call.redacted(value)

    def text_stream(self) -> TextStream:
        """A fresh stream; what the run hides is hidden too, however it is cut into pieces."""
        return _Streams(StreamRedactor(self._call.redactor), self._run.vault.stream())

    async def secret(self, ref: str, *, host: str = "", provider: str = "") -> str:
        """The value of a credential of this run's tenant."""
        if self._services.credentials is None:
            raise ToolFault(f"there is no credential {ref}", code="credential_not_found")
        try:
            return await self._services.credentials.resolve(
                self._call.tenant, ref, host=host, provider=provider
            )
        except NodeFailure as failure:
            raise ToolFault(failure.error.message, code=failure.error.code) from failure

    async def use_tool(
        self, agent_id: str, tool: Tool, arguments: JsonObject, timeout_ms: int
    ) -> JsonObject:
        """Call a tool for a model, once, with the call and its return on the log."""

        async def effect(call_id: str, invocation_id: str) -> Json:
            context = self._context(agent_id, call_id, invocation_id)
            return await call_tool(tool, arguments, context, timeout_ms / 1000)

        use = ToolUse(
            tool_name=tool.name,
            arguments=arguments,
            transport=tool.transport,
            required_scopes=tool.required_scopes,
            agent_id=agent_id,
        )
        return await self._call.tool_calls.use(use, effect, shows=not self.is_private)

    async def perform_tool(self, tool: Tool, arguments: JsonObject, timeout_ms: int) -> Json:
        """Have a tool do its work for a node of the host's own."""
        invocation_id = self._call.invocation_id(f"tool:{tool.name}")
        context = self._context(SYSTEM_AGENT, invocation_id, invocation_id)
        return await call_tool(tool, arguments, context, timeout_ms / 1000)

    def _context(self, agent_id: str, call_id: str, invocation_id: str) -> ToolContext:
        call = self._call
        return ToolContext(
            tenant=call.tenant,
            run_id=call.run_id,
            node_id=call.node_id,
            agent_id=agent_id,
            call_id=call_id,
            invocation_id=invocation_id,
            http=call.http,
            secret=self.secret,
            traceparent=call.state.traceparent,
        )


def _readable(said: Sequence[Json]) -> Iterator[ContextMessage]:
    """The messages that can be read; a node of a user's own may have written others."""
    for message in said:
        try:
            yield msgspec.convert(message, ContextMessage)
        except msgspec.ValidationError:
            continue


class _Streams:
    """Two redactions one after the other: what nobody may see, then what this run hides."""

    def __init__(self, first: TextStream, then: TextStream | None) -> None:
        self._first = first
        self._then = then

    def feed(self, chunk: str) -> str:
        """Take the next piece and return what may be shown by now."""
        text = self._first.feed(chunk)
        return text if self._then is None else self._then.feed(text)

    def close(self) -> str:
        """Return what was held back."""
        rest = self._first.close()
        return rest if self._then is None else self._then.feed(rest) + self._then.close()


async def call_tool(
    tool: Tool, arguments: JsonObject, context: ToolContext, seconds: float
) -> Json:
    """Call a tool; whatever it raises becomes a fault that the model is told of."""
    try:
        with anyio.fail_after(seconds or None):
            return cut(await tool.call(arguments, context))
    except ToolFault:
        raise
    except TimeoutError as late:
        raise ToolFault(f"no result within {seconds:g} s", code="tool_timeout") from late
    except WoprError as error:
        raise ToolFault(error.message, code=error.code) from error
    except Exception as error:  # the outer edge of a tool's own code
        # Not what it said: that may hold what the run hides, and is on the run's log without it.
        kind = type(error).__name__
        log.warning("tool raised", run_id=context.run_id, tool=tool.name, error=kind, at=_at(error))
        raise ToolFault(f"{type(error).__name__}: {error}") from error


def _at(error: Exception) -> str:
    """The last lines that an exception came through."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)


def cut(result: Json) -> Json:
    """A tool's result as it is kept: as JSON, and no longer than a model can read."""
    try:
        body = msgspec.json.encode(result)
    except (TypeError, ValueError, msgspec.MsgspecError) as fault:
        raise ToolFault(f"the result is not JSON: {fault}") from fault
    if len(body) <= LARGEST_RESULT_BYTES:
        return msgspec.json.decode(body)
    shown = body[:LARGEST_RESULT_BYTES].decode("utf-8", "ignore")
    return f"{shown}… (cut: {len(body)} bytes)"


def lowered(caps: Caps, configurable: Mapping[str, Json]) -> Caps:
    """The host's caps, lowered by the run's own budget; a run can never raise them."""
    try:
        wanted = msgspec.convert(configurable.get("budget", {}), RunBudget)
    except msgspec.ValidationError:
        # Options are checked when a run is created; a log from elsewhere may hold others.
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
    """Which credential: the run's option before the node's own."""
    wanted: Json = configurable.get("ai.credentialRef")
    if isinstance(wanted, str):
        return wanted
    return "" if isinstance(own, Unset) else own
