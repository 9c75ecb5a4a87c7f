"""What a model is asked first: put together from config, inputs and manifest, and nothing else.

The same run always plans alike, so that a replay can tell whether it would ask the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from wopr.engine.outcome import NodeFailure
from wopr.nodes.context import NodeContext
from wopr.nodes.llm_config import AgentConfig, ChatConfig, Conversation, StructuredConfig
from wopr.nodes.models import Message, ModelRequest, ToolSpec, split_model
from wopr.nodes.tools import LOCAL, Tool
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset
from wopr.protocol.manifests import AgentManifest
from wopr.security.untrusted import RULE, untrusted

HAND_OVER: Final = "hand_over"
# How the names of nodes without an agent begin.
UNNAMED: Final = "host:llm:"
_CONVERSATION: Final = ("prompt", "messages")
_NO_TOOL_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_TOOL_NAME: Final = 64
# Scopes of tools that are no code of an app.
_NO_CODE: Final = ("mcp", "openwop")
_SURE: Final = (
    "Say how sure you are in `confidence`, from 0 (guessing) to 1 (certain), and why in "
    "`reasoning`. An unsure answer is shown to a person before it counts; that is welcome."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that is settled before a model is asked."""

    agent_id: str
    provider: str
    model: str
    messages: tuple[Message, ...]
    config: ChatConfig
    # Tools by the name that the model knows them by.
    tools: Mapping[str, Tool] = field(default_factory=dict[str, Tool])
    refused_tools: tuple[str, ...] = ()
    schema: JsonObject | None = None
    asks_confidence: bool = False
    # How many of the messages, after the system prompt, are the shared context's.
    history: int = 0
    # The result is all that the node returns: the agent's manifest says what that is.
    returns_result: bool = False

    @property
    def asked(self) -> tuple[Message, ...]:
        """The node's own messages: what it asks beyond its system prompt and its context."""
        return self.messages[1 + self.history :]

    def with_model(self, name: str) -> Plan:
        """The same plan for another model."""
        provider, model = split_model(name)
        return replace(self, provider=provider, model=model)

    def request(self, further: tuple[Message, ...] = ()) -> ModelRequest:
        """The request after what has been said since."""
        config = self.config
        return ModelRequest(
            provider=self.provider,
            model=self.model,
            messages=[*self.messages, *further],
            tools=[*self._tool_specs()],
            response_schema=UNSET if self.schema is None else self.schema,
            temperature=config.temperature,
            top_p=config.top_p,
            max_output_tokens=config.max_output_tokens,
            stop=config.stop,
            seed=config.seed,
            provider_options=config.provider_options,
        )

    def _tool_specs(self) -> Iterator[ToolSpec]:
        for name, tool in self.tools.items():
            yield ToolSpec(name=name, description=tool.description, parameters=tool.parameters)
        handoffs = self.config.handoffs if isinstance(self.config, AgentConfig) else {}
        if handoffs:
            yield _hand_over_spec(handoffs)


def agent_of(ctx: NodeContext) -> str:
    """Who speaks in this node: its pin, or a name of the host's own."""
    return f"{UNNAMED}{ctx.node_id}" if ctx.agent is None else ctx.agent.agent_id


def plan_of(ctx: NodeContext, config: ChatConfig, inputs: JsonObject, agent_id: str = "") -> Plan:
    """Plan what to ask; raises `NodeFailure` for what cannot be asked."""
    agent_id = agent_id or agent_of(ctx)
    manifest = None if ctx.agent is None else ctx.llm.manifest(agent_id)
    config = _with_options(config, ctx.configurable)
    provider, model = split_model(_model_name(ctx, config))
    history = tuple(_history(ctx, agent_id))
    plan = Plan(
        agent_id=agent_id,
        provider=provider,
        model=model,
        messages=(_system(config, manifest), *history, *_own_messages(ctx, config, inputs)),
        history=len(history),
        config=config,
    )
    if isinstance(config, StructuredConfig):
        return replace(plan, schema=config.schema)
    return _agent_plan(ctx, config, manifest, plan) if isinstance(config, AgentConfig) else plan


def _with_options(config: ChatConfig, options: Mapping[str, Json]) -> ChatConfig:
    """The config with what the run's options say instead."""
    wanted: JsonObject = {
        "temperature": options.get("temperature"),
        "max_output_tokens": options.get("maxTokens"),
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    return msgspec.structs.replace(config, **given) if given else config


def _model_name(ctx: NodeContext, config: ChatConfig) -> str:
    """Which model: the run's option, the node's config, or the host's default."""
    options = ctx.configurable
    own = ctx.llm.default_model if isinstance(config.model, Unset) else config.model
    if not own and "mockProvider" in options:
        # Its script is the model.
        return "mock:mock"
    named = options.get("ai.model") or options.get("model")
    provider = options.get("ai.provider") or own.partition(":")[0]
    name = own if named is None else str(named) if ":" in str(named) else f"{provider}:{named}"
    if not name:
        raise NodeFailure(
            "no model is named: give config.model, or set the host's default model",
            code="validation_error",
            retryable=False,
        )
    return name


def _system(config: ChatConfig, manifest: AgentManifest | None) -> Message:
    own = (
        ""
        if manifest is None or isinstance(manifest.system_prompt, Unset)
        else (manifest.system_prompt)
    )
    system = "\n\n".join(part for part in (own, config.system, RULE) if part)
    return Message(role="system", content=system)


def _history(ctx: NodeContext, agent_id: str) -> Iterator[Message]:
    """The shared context as the history of this node's model.

    The agent's own messages stay assistant messages. Messages of another agent are passed as data:
    they may repeat instructions from an untrusted source. Nodes without an agent count as one agent.
    """
    is_unnamed = agent_id.startswith(UNNAMED)
    for said in ctx.llm.history:
        if said.role == "user":
            yield Message(role="user", content=said.content)
        elif said.sender == agent_id or (is_unnamed and said.sender.startswith(UNNAMED)):
            yield Message(role="assistant", content=said.content)
        else:
            yield Message(role="user", content=untrusted(said.content, agent=said.sender))


def _own_messages(ctx: NodeContext, config: ChatConfig, inputs: JsonObject) -> Iterator[Message]:
    task = "\n\n".join(_task(ctx, config, inputs))
    if task:
        yield Message(role="user", content=task)
    said = msgspec.convert(
        {name: inputs[name] for name in _CONVERSATION if name in inputs}, Conversation
    )
    for message in said.messages:
        yield Message(role=message.role, content=untrusted(message.content, origin=message.role))
    if said.prompt:
        yield Message(role="user", content=untrusted(said.prompt, origin="user"))
    if not task and not said.messages and not said.prompt:
        raise NodeFailure(
            "there is nothing to ask: give config.prompt, or the input prompt or messages",
            code="validation_error",
            retryable=False,
        )


def _task(ctx: NodeContext, config: ChatConfig, inputs: JsonObject) -> Iterator[str]:
    """The author's instruction, then every input as data, then what a reviewer wants changed."""
    if config.prompt:
        yield config.prompt
    for name, value in inputs.items():
        if name not in _CONVERSATION:
            yield untrusted(value, input=name)
    if ctx.feedback is not None:
        yield untrusted(ctx.feedback, correction="reviewer")


def _agent_plan(
    ctx: NodeContext, config: AgentConfig, manifest: AgentManifest | None, plan: Plan
) -> Plan:
    tools, refused = _tools(ctx, config, plan.agent_id)
    promised = _return_schema(manifest)
    schema = promised if isinstance(config.schema, Unset) else config.schema
    has_threshold = manifest is not None and manifest.threshold is not None
    asks = has_threshold if isinstance(config.asks_confidence, Unset) else config.asks_confidence
    plan = replace(
        plan,
        tools=tools,
        refused_tools=refused,
        schema=schema,
        returns_result=isinstance(config.schema, Unset) and promised is not None,
    )
    return asking_confidence(plan) if asks else plan


def _return_schema(manifest: AgentManifest | None) -> JsonObject | None:
    if manifest is None or isinstance(manifest.handoff, Unset):
        return None
    promised = manifest.handoff.return_schema
    return None if isinstance(promised, Unset) else promised


def asking_confidence(plan: Plan) -> Plan:
    """The plan with an answer that also says how sure the model is."""
    answer = {"type": "string"} if plan.schema is None else dict(plan.schema)
    # References count from the root of a document, so its definitions stay there.
    definitions = {name: answer.pop(name) for name in ("$defs",) if name in answer}
    schema: JsonObject = definitions | {
        "type": "object",
        "properties": {
            "answer": answer,
            "confidence": {"type": "number", "minimum": 0, "maximum": 1},
            "reasoning": {"type": "string"},
        },
        "required": ["answer", "confidence", "reasoning"],
        "additionalProperties": False,
    }
    system, *others = plan.messages
    system = msgspec.structs.replace(system, content=f"{system.content}\n\n{_SURE}")
    return replace(plan, schema=schema, asks_confidence=True, messages=(system, *others))


def _tools(
    ctx: NodeContext, config: AgentConfig, agent_id: str
) -> tuple[dict[str, Tool], tuple[str, ...]]:
    """The tools that are offered, and the names of those that the agent may not have.

    An agent that has a manifest calls what its allowlist names, whatever the node wants.
    """
    allowed = ctx.llm.allowlist(agent_id)
    declared: dict[str, Tool] = {tool.name: tool for tool in config.http_tools}
    offered: dict[str, Tool] = {}
    refused: list[str] = []
    for name in wanted_tools(ctx, config, agent_id):
        tool = declared.get(name) or ctx.llm.find_tool(name)
        if tool is None or (allowed is not None and name not in allowed):
            refused.append(name)
        else:
            offered[_wire_name(name, offered)] = tool
    return offered, tuple(refused)


def wanted_tools(ctx: NodeContext, config: AgentConfig, agent_id: str) -> list[str]:
    """The tools that the node wants its agent to have, whether it may have them or not."""
    declared = [tool.name for tool in config.http_tools]
    if isinstance(config.tools, Unset):
        return sorted({*declared, *(ctx.llm.allowlist(agent_id) or ())})
    return list(dict.fromkeys([*config.tools, *declared]))


def needed_tools(config: AgentConfig, allowed: frozenset[str] | None) -> list[str]:
    """The tools without which a process must not execute the node, because an app has their code.

    These are the tools that the node names, and otherwise those of the scope `local` that the
    agent's manifest allows. Other entries of a manifest are permissions: a host need not have them.
    HTTP tools are in the config, and MCP tools have servers.
    """
    declared = {tool.name for tool in config.http_tools}
    if isinstance(config.tools, Unset):
        named = sorted(name for name in allowed or () if _scope(name) == LOCAL)
    else:
        named = [name for name in config.tools if _scope(name) not in _NO_CODE]
    return [name for name in named if name not in declared and (allowed is None or name in allowed)]


def _scope(name: str) -> str:
    return name.partition(":")[0]


def _wire_name(name: str, taken: Mapping[str, Tool]) -> str:
    """A name that every provider takes: what is behind the scope, and unlike the others."""
    own = _NO_TOOL_NAME.sub("_", name.rpartition(":")[2])[:_LONGEST_TOOL_NAME] or "tool"
    candidate, place = own, 1
    while candidate in taken or candidate == HAND_OVER:
        place += 1
        candidate = f"{own[: _LONGEST_TOOL_NAME - 4]}_{place}"
    return candidate


def _hand_over_spec(handoffs: Mapping[str, str]) -> ToolSpec:
    choices = "\n".join(f"- {agent_id}: {when}" for agent_id, when in handoffs.items())
    return ToolSpec(
        name=HAND_OVER,
        description=f"Hand the task over to another agent, and stop working on it.\n{choices}",
        parameters={
            "type": "object",
            "properties": {
                "toAgentId": {"type": "string", "enum": list(handoffs)},
                "reason": {"type": "string"},
            },
            "required": ["toAgentId", "reason"],
            "additionalProperties": False,
        },
    )
