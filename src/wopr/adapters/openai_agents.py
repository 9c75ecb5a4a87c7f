"""OpenAI Agents SDK: an agent as a node of a workflow.

    triage = on_record("acme.support.triage", agent)
    answer = flow.add("answer", triage, prompt=flow.inputs.text)

The run stores every turn. A restarted host continues with the next model call. A tool that needs
approval waits in the inbox.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import msgspec

from wopr.adapters.session import (
    FrameworkSession,
    FrameworkToolCall,
    ModelCall,
    not_installed_error,
    to_plain_json,
)
from wopr.adapters.steps import Done, HumanAnswer, HumanRequest, Paused, Running
from wopr.adapters.wrapper import WrappedAgent, agent_name, require_type
from wopr.agents.models.port import ModelUsage
from wopr.engine.interrupts import TOOL_CALL
from wopr.protocol.documents import Json, JsonObject, is_object
from wopr.protocol.manifests import ManifestModelClass

try:
    from agents import (
        Agent,
        ModelResponse,
        RunConfig,
        RunContextWrapper,
        RunHooks,
        Runner,
        RunResult,
        RunState,
        Tool,
        ToolApprovalItem,
        TResponseInputItem,
    )
    from agents.tool_context import ToolContext
except ModuleNotFoundError as missing:
    raise not_installed_error("the OpenAI Agents SDK", "openai-agents", missing) from missing

_DEFAULT_TURNS: Final = 10
_Agent = Agent[Any]
_Context = RunContextWrapper[Any]


def on_record(
    name: str,
    agent: _Agent,
    *,
    context: object = None,
    max_turns: int = _DEFAULT_TURNS,
    run_config: RunConfig | None = None,
    tracing: bool = False,
    threshold: float | None = None,
    description: str = "",
    model_class: ManifestModelClass = "general",
) -> WrappedAgent:
    """Wrap an agent and its handoffs, so that a workflow can run them durably.

    The input `prompt` of the node is a text or a list of the SDK's input items. More inputs are
    added to it as data. The outputs are `result`, `text` if the result is a text, and `agent`, the
    last agent. The log of the run has every model call, tool call and handoff.

    Args:
        name: The id of the agent and the node type, such as `acme.support.triage`.
        agent: The agent of the SDK.
        context: The SDK's run context.
        max_turns: The maximum number of model calls.
        run_config: The SDK's run config.
        tracing: Whether the SDK sends traces to OpenAI.
        threshold: The confidence that a decision needs, from 0 to 1. A decision whose
            `confidence` is below it waits in the inbox.
        description: A description for the inventory of agents.
        model_class: The class of work, such as `classification`.

    Returns:
        The node type and its agent, for `Workflow.add`.

    Raises:
        WorkflowError: `agent` is not an agent of the SDK.

    Example:
        >>> from agents import Agent
        >>> from wopr import Workflow
        >>> from wopr.adapters.openai_agents import on_record
        >>> triage = on_record("acme.support.triage", Agent(name="Triage"))
        >>> flow = Workflow("support")
        >>> _ = flow.add("triage", triage, prompt="Where is my parcel?") >> flow.end()
    """
    require_type(name, agent, Agent, "an Agent of the OpenAI Agents SDK")
    config = dataclasses.replace(run_config or RunConfig(), tracing_disabled=not tracing)
    return WrappedAgent(
        name,
        _Agents(agent, context, max_turns, config),
        threshold=threshold,
        description=description,
        model_class=model_class,
    )


class _Agents:
    """The adapter of one agent."""

    name = "openai-agents"

    def __init__(self, agent: _Agent, context: object, max_turns: int, config: RunConfig) -> None:
        self.about = f"The agent {agent.name} of the OpenAI Agents SDK"
        self.tools: Sequence[str] = [tool.name for tool in agent.tools]
        self._agent = agent
        self._context = context
        self._max_turns = max_turns
        self._config = config

    async def begin(self, session: FrameworkSession, inputs: JsonObject) -> Paused | Done:
        """Run the agent from its start."""
        return await self._run(session, self._agent, _prompt(inputs), 0)

    async def resume(
        self, session: FrameworkSession, state: Json, answers: Sequence[HumanAnswer] | None
    ) -> Paused | Done:
        """Continue with the next turn, or with tool calls that a person approved or rejected."""
        stored: JsonObject = state
        if answers is None:
            current = _agents_by_name(self._agent)[stored["agent"]]
            return await self._run(session, current, stored["input"], stored["turns"])
        waiting = await RunState[Any].from_json(
            self._agent, stored["run"], context_override=RunContextWrapper(self._context)
        )
        for item, answer in zip(waiting.get_interruptions(), answers, strict=True):
            if answer.is_granted:
                waiting.approve(item)
            else:
                waiting.reject(item, rejection_message=answer.feedback or None)
                await session.record_rejected_tool_call(
                    self._rejected_call(session, item), answer.feedback
                )
        return await self._run(session, self._agent, waiting, stored["turns"])

    def _rejected_call(
        self, session: FrameworkSession, item: ToolApprovalItem
    ) -> FrameworkToolCall:
        return FrameworkToolCall(
            agent_id=agent_id_of(session, self._agent, item.agent),
            name=item.tool_name or "tool",
            call_id=str(
                _call_member(item, "call_id") or _call_member(item, "id") or item.tool_name
            ),
            arguments=arguments_of(_call_member(item, "arguments") or "{}"),
        )

    async def _run(
        self,
        session: FrameworkSession,
        agent: _Agent,
        given: str | list[TResponseInputItem] | RunState[Any],
        turns: int,
    ) -> Paused | Done:
        # A resumed state contains its context and its count of turns.
        is_resumed = isinstance(given, RunState)
        hooks = AgentHooks(session, self._agent, turns, has_started=is_resumed)
        result = await Runner.run(
            agent,
            given,
            context=None if is_resumed else self._context,
            max_turns=self._max_turns if is_resumed else max(self._max_turns - turns, 1),
            hooks=hooks,
            run_config=self._config,
        )
        if result.interruptions:
            return await _paused_step(session, result, hooks.turns)
        who = agent_id_of(session, self._agent, result.last_agent)
        return Done(decision=to_plain_json(result.final_output), outputs={"agent": who})


def _prompt(inputs: JsonObject) -> str | list[TResponseInputItem]:
    """Return the input of the agent: the prompt, and the other inputs as data."""
    prompt: Json = inputs.get("prompt", "")
    others = {name: value for name, value in inputs.items() if name != "prompt"}
    data = msgspec.json.encode(others).decode() if others else ""
    if isinstance(prompt, str):
        return "\n\n".join(filter(None, (prompt, data)))
    items = cast("list[TResponseInputItem]", prompt)
    message = cast("TResponseInputItem", {"role": "user", "content": data})
    return [*items, message] if data else items


async def _paused_step(session: FrameworkSession, result: RunResult, turns: int) -> Paused:
    asks = [_approval(item) for item in result.interruptions]
    run: JsonObject = to_plain_json(result.to_state().to_json(context_serializer=lambda _: {}))
    stored: JsonObject = await session.ctx.llm.redact(run)
    if stored != run:
        stored = _without_fingerprints(stored)
    return Paused(state={"run": stored, "turns": turns}, asks=asks)


def _without_fingerprints(run: JsonObject) -> JsonObject:
    """Remove the fingerprints of finished calls from the state.

    The SDK compares them with the calls, and a redacted call has a different fingerprint.
    Fingerprints of waiting calls stay, because a call with redacted arguments is not the call that
    was approved.
    """
    context: JsonObject = run["context"]
    fingerprints: dict[str, JsonObject] = context["tool_invocations"]
    waiting = {name: each for name, each in fingerprints.items() if not each["completed"]}
    return run | {"context": context | {"tool_invocations": waiting}}


def _approval(item: ToolApprovalItem) -> HumanRequest:
    name = item.tool_name or "a tool"
    return HumanRequest(
        kind="approval",
        text=f"Call {name}?",
        artifact=arguments_of(_call_member(item, "arguments") or "{}"),
        artifact_type=TOOL_CALL,
        description=f"The agent {item.agent.name} wants to call {name}.",
    )


def _call_member(item: ToolApprovalItem, name: str) -> Any:
    """Return a member of the provider's call, which is an object or a dictionary."""
    raw: Any = item.raw_item
    return raw.get(name) if is_object(raw) else getattr(raw, name, None)


def _agents_by_name(root: _Agent) -> dict[str, _Agent]:
    """Return the agent and all agents that it can hand over to, by name."""
    found: dict[str, _Agent] = {}
    pending = [root]
    while pending:
        agent = pending.pop()
        if agent.name not in found:
            found[agent.name] = agent
            pending += _receivers(agent)
    return found


def _receivers(agent: _Agent) -> Iterator[_Agent]:
    for handoff in agent.handoffs:
        if isinstance(handoff, Agent):
            yield handoff
        else:
            # A `Handoff` object has only a private weak reference to its agent.
            reference: Any = getattr(handoff, "_agent_ref", None)
            receiver: object = None if reference is None else reference()
            if isinstance(receiver, Agent):
                yield receiver


class AgentHooks(RunHooks[Any]):
    """Records every turn, tool call and handoff on the run's log."""

    def __init__(
        self, session: FrameworkSession, root: _Agent, turns: int, *, has_started: bool
    ) -> None:
        self.turns = turns
        self._session = session
        self._root = root
        self._has_started = has_started

    def _id(self, agent: Any) -> str:
        return agent_id_of(self._session, self._root, agent)

    async def on_llm_start(
        self,
        context: _Context,
        agent: _Agent,
        system_prompt: str | None,
        input_items: list[TResponseInputItem],
    ) -> None:
        """Store the input of a turn, from which the turn can be started again."""
        await self._session.before_model_call()
        if self._has_started:
            items: Json = to_plain_json(input_items)
            state = {"agent": agent.name, "input": items, "turns": self.turns}
            await self._session.store(Running(state=state))
        self._has_started = True
        self.turns += 1

    async def on_llm_end(self, context: _Context, agent: _Agent, response: ModelResponse) -> None:
        """Record the usage of a model call."""
        used = response.usage
        cached = used.input_tokens_details.cached_tokens or 0
        usage = ModelUsage(
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cache_read_tokens=cached,
        )
        provider, model = _model(agent)
        call = ModelCall(
            provider=provider, model=model, usage=usage, reasoning=_reasoning(response)
        )
        await self._session.record_model_call(self._id(agent), call)

    async def on_handoff(self, context: _Context, from_agent: Any, to_agent: Any) -> None:
        """Record a handoff."""
        await self._session.record_handoff(self._id(from_agent), self._id(to_agent))

    async def on_tool_start(self, context: _Context, agent: Any, tool: Tool) -> None:
        """Record the start of a tool call."""
        arguments = context.tool_arguments if isinstance(context, ToolContext) else "{}"
        call = FrameworkToolCall(
            agent_id=self._id(agent),
            name=tool.name,
            call_id=_call_id(context, tool),
            arguments=arguments_of(arguments),
        )
        await self._session.record_tool_call(call)

    async def on_tool_end(self, context: _Context, agent: Any, tool: Tool, result: object) -> None:
        """Record the result of a tool call."""
        await self._session.record_tool_return(
            _call_id(context, tool), {"outcome": to_plain_json(result)}
        )


def agent_id_of(session: FrameworkSession, root: _Agent, agent: Any) -> str:
    """Return the id of an agent on the log."""
    root_id = session.agent_id
    return root_id if agent.name == root.name else agent_name(root_id, agent.name)


def _call_id(context: _Context, tool: Tool) -> str:
    return context.tool_call_id if isinstance(context, ToolContext) else tool.name


def arguments_of(text: str) -> Json:
    """Decode the arguments of a call. Text that is not JSON stays text."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _reasoning(response: ModelResponse) -> str:
    """Return the reasoning of a model, if the provider shows it."""
    items: list[Any] = [item for item in response.output if _kind(item) == "reasoning"]
    texts = [part.text for item in items for part in (item.content or item.summary)]
    return "\n".join(texts)


def _kind(item: object) -> str:
    return str(getattr(item, "type", ""))


def _model(agent: _Agent) -> tuple[str, str]:
    """Return the provider and the model of an agent, if they are declared."""
    model: object = agent.model
    name = model if isinstance(model, str) else str(getattr(model, "model", "") or "")
    prefix, slash, rest = name.partition("/")
    is_prefixed = bool(slash) and isinstance(model, str)
    if model is None or isinstance(model, str):
        return (prefix, rest) if is_prefixed else ("openai", name or "default")
    is_own = type(model).__module__.startswith("agents.models.openai")
    return "openai" if is_own else type(model).__name__.lower(), name
