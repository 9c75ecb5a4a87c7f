"""The first request to a model, from config, inputs and manifest.

The same run always gets the same plan, so a replay can compare its requests with the recorded ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from wopr.agents.loop.config import AgentConfig, ChatConfig, Conversation, StructuredConfig
from wopr.agents.loop.context import AgentContext
from wopr.agents.models.port import Message, ModelRequest, ToolSpec, split_model
from wopr.agents.tools.tool import LOCAL, Tool
from wopr.engine.outcome import NodeFailure
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset
from wopr.protocol.manifests import AgentManifest
from wopr.security.untrusted import UNTRUSTED_RULE, wrap_untrusted

HAND_OVER: Final = "hand_over"
# Prefix of the agent ids of nodes without an agent.
UNNAMED: Final = "host:llm:"
_CONVERSATION: Final = ("prompt", "messages")
_INVALID_IN_TOOL_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_TOOL_NAME: Final = 64
# Scopes of tools that need no code of an app.
_SCOPES_WITHOUT_CODE: Final = ("mcp", "openwop")
_CONFIDENCE_PROMPT: Final = (
    "Say how sure you are in `confidence`, from 0 (guessing) to 1 (certain), and why in "
    "`reasoning`. An unsure answer is shown to a person before it counts; that is welcome."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPlan:
    """The data of the first request, and how to make the requests of the node."""

    agent_id: str
    provider: str
    model: str
    messages: tuple[Message, ...]
    config: ChatConfig
    # Tools by their names in the request.
    tools: Mapping[str, Tool] = field(default_factory=dict[str, Tool])
    refused_tools: tuple[str, ...] = ()
    schema: JsonObject | None = None
    asks_confidence: bool = False
    # Number of messages after the system prompt that come from the shared context.
    history: int = 0
    # Whether the node returns only the result, in the shape of the manifest's `returnSchema`.
    returns_result: bool = False

    @property
    def own_messages(self) -> tuple[Message, ...]:
        """The node's own messages, without the system prompt and the shared context."""
        return self.messages[1 + self.history :]

    def with_model(self, name: str) -> RequestPlan:
        """Return the same plan for another model."""
        provider, model = split_model(name)
        return replace(self, provider=provider, model=model)

    def request(self, further: tuple[Message, ...] = ()) -> ModelRequest:
        """Return the request with further messages at its end."""
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


def agent_of(ctx: AgentContext) -> str:
    """Return the id of the node's agent, or a name for a node without one."""
    return f"{UNNAMED}{ctx.node_id}" if ctx.agent is None else ctx.agent.agent_id


def request_plan(
    ctx: AgentContext, config: ChatConfig, inputs: JsonObject, agent_id: str = ""
) -> RequestPlan:
    """Plan the first request. Raises `NodeFailure` without a prompt."""
    agent_id = agent_id or agent_of(ctx)
    manifest = None if ctx.agent is None else ctx.llm.manifest(agent_id)
    config = _with_options(config, ctx.configurable)
    provider, model = split_model(_model_name(ctx, config))
    history = tuple(_history(ctx, agent_id))
    plan = RequestPlan(
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
    """Return the config with the run's options applied."""
    wanted: JsonObject = {
        "temperature": options.get("temperature"),
        "max_output_tokens": options.get("maxTokens"),
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    return msgspec.structs.replace(config, **given) if given else config


def _model_name(ctx: AgentContext, config: ChatConfig) -> str:
    """Return the model of the run's options, the node's config, or the host's default."""
    options = ctx.configurable
    own = ctx.llm.default_model if isinstance(config.model, Unset) else config.model
    if not own and "mockProvider" in options:
        # The script of the mock provider is the model.
        return "mock:mock"
    named = options.get("ai.model") or options.get("model")
    provider = options.get("ai.provider") or own.partition(":")[0]
    name = own if named is None else str(named) if ":" in str(named) else f"{provider}:{named}"
    if not name:
        raise NodeFailure(
            "No model is named. Set config.model or the host's default model.",
            code="validation_error",
            retryable=False,
        )
    return name


def _system(config: ChatConfig, manifest: AgentManifest | None) -> Message:
    own = "" if manifest is None else manifest.system_prompt or ""
    system = "\n\n".join(part for part in (own, config.system, UNTRUSTED_RULE) if part)
    return Message(role="system", content=system)


def _history(ctx: AgentContext, agent_id: str) -> Iterator[Message]:
    """Yield the shared context as the history of this node's model.

    The agent's own messages are assistant messages. Messages of other agents are passed as data,
    because they may repeat instructions from an untrusted source. All nodes without an agent count
    as one agent.
    """
    is_unnamed = agent_id.startswith(UNNAMED)
    for message in ctx.llm.history:
        if message.role == "user":
            yield Message(role="user", content=message.content)
        elif message.sender == agent_id or (is_unnamed and message.sender.startswith(UNNAMED)):
            yield Message(role="assistant", content=message.content)
        else:
            yield Message(
                role="user", content=wrap_untrusted(message.content, agent=message.sender)
            )


def _own_messages(ctx: AgentContext, config: ChatConfig, inputs: JsonObject) -> Iterator[Message]:
    task = "\n\n".join(_task(ctx, config, inputs))
    if task:
        yield Message(role="user", content=task)
    conversation = msgspec.convert(
        {name: inputs[name] for name in _CONVERSATION if name in inputs}, Conversation
    )
    for message in conversation.messages:
        yield Message(
            role=message.role, content=wrap_untrusted(message.content, origin=message.role)
        )
    if conversation.prompt:
        yield Message(role="user", content=wrap_untrusted(conversation.prompt, origin="user"))
    if not task and not conversation.messages and not conversation.prompt:
        raise NodeFailure(
            "There is no prompt. Set config.prompt, or the input prompt or messages.",
            code="validation_error",
            retryable=False,
        )


def _task(ctx: AgentContext, config: ChatConfig, inputs: JsonObject) -> Iterator[str]:
    """Yield the author's instruction, every input as data, and a reviewer's correction."""
    if config.prompt:
        yield config.prompt
    for name, value in inputs.items():
        if name not in _CONVERSATION:
            yield wrap_untrusted(value, input=name)
    if ctx.feedback is not None:
        yield wrap_untrusted(ctx.feedback, correction="reviewer")


def _agent_plan(
    ctx: AgentContext, config: AgentConfig, manifest: AgentManifest | None, plan: RequestPlan
) -> RequestPlan:
    tools, refused = _tools(ctx, config, plan.agent_id)
    return_schema = _return_schema(manifest)
    schema = return_schema if isinstance(config.schema, Unset) else config.schema
    has_threshold = manifest is not None and manifest.threshold is not None
    asks = has_threshold if isinstance(config.asks_confidence, Unset) else config.asks_confidence
    plan = replace(
        plan,
        tools=tools,
        refused_tools=refused,
        schema=schema,
        returns_result=isinstance(config.schema, Unset) and return_schema is not None,
    )
    return with_confidence(plan) if asks else plan


def _return_schema(manifest: AgentManifest | None) -> JsonObject | None:
    if manifest is None or isinstance(manifest.handoff, Unset):
        return None
    schema = manifest.handoff.return_schema
    return None if isinstance(schema, Unset) else schema


def with_confidence(plan: RequestPlan) -> RequestPlan:
    """Return the plan with a schema that includes the model's confidence."""
    answer = {"type": "string"} if plan.schema is None else dict(plan.schema)
    # References start at the root of a document, so the definitions stay there.
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
    system = msgspec.structs.replace(system, content=f"{system.content}\n\n{_CONFIDENCE_PROMPT}")
    return replace(plan, schema=schema, asks_confidence=True, messages=(system, *others))


def _tools(
    ctx: AgentContext, config: AgentConfig, agent_id: str
) -> tuple[dict[str, Tool], tuple[str, ...]]:
    """Return the offered tools, and the names of those that the agent may not use.

    An agent with a manifest may call only the tools of its allowlist.
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


def wanted_tools(ctx: AgentContext, config: AgentConfig, agent_id: str) -> list[str]:
    """Return the tools that the node names, allowed or not."""
    declared = [tool.name for tool in config.http_tools]
    if isinstance(config.tools, Unset):
        return sorted({*declared, *(ctx.llm.allowlist(agent_id) or ())})
    return list(dict.fromkeys([*config.tools, *declared]))


def needed_tools(config: AgentConfig, allowed: frozenset[str] | None) -> list[str]:
    """Return the tools whose code a process must have to execute the node.

    These are the tools that the node names, or else the tools of the scope `local` that the agent's
    manifest allows. Other entries of a manifest are permissions for tools that a host may lack.
    HTTP tools are in the config, and MCP tools are on servers.
    """
    declared = {tool.name for tool in config.http_tools}
    if isinstance(config.tools, Unset):
        named = sorted(name for name in allowed or () if _scope(name) == LOCAL)
    else:
        named = [name for name in config.tools if _scope(name) not in _SCOPES_WITHOUT_CODE]
    return [name for name in named if name not in declared and (allowed is None or name in allowed)]


def _scope(name: str) -> str:
    return name.partition(":")[0]


def _wire_name(name: str, taken: Mapping[str, Tool]) -> str:
    """Return a unique name that every provider accepts: the part after the scope."""
    base = _INVALID_IN_TOOL_NAME.sub("_", name.rpartition(":")[2])[:_LONGEST_TOOL_NAME] or "tool"
    candidate, number = base, 1
    while candidate in taken or candidate == HAND_OVER:
        number += 1
        candidate = f"{base[: _LONGEST_TOOL_NAME - 4]}_{number}"
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
