"""OpenAI Agents SDK: an agent as a node of a workflow, on the record.

    triage = on_record("acme.support.triage", agent)
    answer = flow.add("answer", triage, prompt=flow.inputs.text)

Every turn is kept, so a host that was killed goes on with the next model call. A tool that needs
approval waits in the inbox.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import msgspec

from wopr.adapters.asks import Answer
from wopr.adapters.plain import not_installed, plain
from wopr.adapters.session import Session, ToolCall
from wopr.adapters.steps import Ask, Done, Paused
from wopr.adapters.wrapping import OnRecord, require
from wopr.engine.asking import TOOL_CALL
from wopr.engine.expression_tokens import is_object
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.manifests import ManifestModelClass

try:
    from agents import (
        Agent,
        RunConfig,
        RunContextWrapper,
        Runner,
        RunResult,
        RunState,
        ToolApprovalItem,
        TResponseInputItem,
    )

    from wopr.adapters.openai_agents_facts import AgentFacts, arguments_of, id_of
except ModuleNotFoundError as missing:
    raise not_installed("the OpenAI Agents SDK", "openai-agents", missing) from missing

_DEFAULT_TURNS: Final = 10
_Agent = Agent[Any]


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
) -> OnRecord:
    """Put an agent, and those that it hands over to, on the record.

    A node's input is `prompt`, text or a list of the SDK's input items; further inputs are added
    to it as data. The outputs are `result`, `text` where that is one, and `agent`, who gave it.
    With a `threshold` a result whose `confidence` is below it waits for a person. The SDK sends
    traces to OpenAI wherever it has a key; here it does so only with `tracing`.
    """
    require(name, agent, Agent, "an Agent of the OpenAI Agents SDK")
    config = dataclasses.replace(run_config or RunConfig(), tracing_disabled=not tracing)
    return OnRecord(
        name,
        _Agents(agent, context, max_turns, config),
        threshold=threshold,
        description=description,
        model_class=model_class,
    )


class _Agents:
    """An agent of the SDK as a framework at work."""

    name = "openai-agents"

    def __init__(self, agent: _Agent, context: object, max_turns: int, config: RunConfig) -> None:
        self.about = f"The agent {agent.name} of the OpenAI Agents SDK"
        self.tools: Sequence[str] = [tool.name for tool in agent.tools]
        self._agent = agent
        self._context = context
        self._max_turns = max_turns
        self._config = config

    async def begin(self, session: Session, inputs: JsonObject) -> Paused | Done:
        """Run the agent from its start."""
        return await self._run(session, self._agent, _prompt(inputs), 0)

    async def go_on(
        self, session: Session, state: Json, answers: Sequence[Answer] | None
    ) -> Paused | Done:
        """Run on with the next turn, or with the tool calls that people decided on."""
        kept: JsonObject = state
        if answers is None:
            speaker = _by_name(self._agent)[kept["agent"]]
            return await self._run(session, speaker, kept["input"], kept["turns"])
        waiting = await RunState[Any].from_json(
            self._agent, kept["run"], context_override=RunContextWrapper(self._context)
        )
        for item, answer in zip(waiting.get_interruptions(), answers, strict=True):
            if answer.is_granted:
                waiting.approve(item)
            else:
                waiting.reject(item, rejection_message=answer.feedback or None)
                await session.refused_tool(self._refused(session, item), answer.feedback)
        return await self._run(session, self._agent, waiting, kept["turns"])

    def _refused(self, session: Session, item: ToolApprovalItem) -> ToolCall:
        return ToolCall(
            agent_id=id_of(session, self._agent, item.agent),
            name=item.tool_name or "tool",
            call_id=str(_raw(item, "call_id") or _raw(item, "id") or item.tool_name),
            arguments=arguments_of(_raw(item, "arguments") or "{}"),
        )

    async def _run(
        self,
        session: Session,
        agent: _Agent,
        given: str | list[TResponseInputItem] | RunState[Any],
        turns: int,
    ) -> Paused | Done:
        # A state brings its context and its count of turns along, and has work behind it.
        is_resumed = isinstance(given, RunState)
        facts = AgentFacts(session, self._agent, turns, has_begun=is_resumed)
        result = await Runner.run(
            agent,
            given,
            context=None if is_resumed else self._context,
            max_turns=self._max_turns if is_resumed else max(self._max_turns - turns, 1),
            hooks=facts,
            run_config=self._config,
        )
        if result.interruptions:
            return await _paused(session, result, facts.turns)
        who = id_of(session, self._agent, result.last_agent)
        return Done(decision=plain(result.final_output), outputs={"agent": who})


def _prompt(inputs: JsonObject) -> str | list[TResponseInputItem]:
    """What the agent is told: the prompt, and every other input as data."""
    prompt: Json = inputs.get("prompt", "")
    others = {name: value for name, value in inputs.items() if name != "prompt"}
    shown = msgspec.json.encode(others).decode() if others else ""
    if isinstance(prompt, str):
        return "\n\n".join(filter(None, (prompt, shown)))
    items = cast("list[TResponseInputItem]", prompt)
    said = cast("TResponseInputItem", {"role": "user", "content": shown})
    return [*items, said] if shown else items


async def _paused(session: Session, result: RunResult, turns: int) -> Paused:
    asks = [_ask(item) for item in result.interruptions]
    run: JsonObject = plain(result.to_state().to_json(context_serializer=lambda _: {}))
    kept: JsonObject = await session.ctx.llm.redact(run)
    if kept != run:
        kept = _without_prints(kept)
    return Paused(state={"run": kept, "turns": turns}, asks=asks)


def _without_prints(run: JsonObject) -> JsonObject:
    """The state without the fingerprints of calls that are over.

    The SDK compares them with the calls, and what was redacted there has another. Those of calls
    that wait stay: a call whose own arguments were redacted is not the one that was approved.
    """
    context: JsonObject = run["context"]
    prints: dict[str, JsonObject] = context["tool_invocations"]
    waiting = {name: each for name, each in prints.items() if not each["completed"]}
    return run | {"context": context | {"tool_invocations": waiting}}


def _ask(item: ToolApprovalItem) -> Ask:
    name = item.tool_name or "a tool"
    return Ask(
        kind="approval",
        text=f"Call {name}?",
        artifact=arguments_of(_raw(item, "arguments") or "{}"),
        artifact_type=TOOL_CALL,
        description=f"The agent {item.agent.name} wants to call {name}.",
    )


def _raw(item: ToolApprovalItem, name: str) -> Any:
    """A member of the provider's own form of a call, which is an object or a dictionary."""
    raw: Any = item.raw_item
    return raw.get(name) if is_object(raw) else getattr(raw, name, None)


def _by_name(root: _Agent) -> dict[str, _Agent]:
    """Every agent that can come to speak, by its name."""
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
            # A hand-off that was declared on its own keeps its receiver to itself, weakly.
            reference: Any = getattr(handoff, "_agent_ref", None)
            receiver: object = None if reference is None else reference()
            if isinstance(receiver, Agent):
                yield receiver
