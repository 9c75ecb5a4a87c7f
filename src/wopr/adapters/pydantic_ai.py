"""pydantic-ai: an agent as a node of a workflow, on the record.

    triage = on_record("acme.support.triage", agent)
    answer = flow.add("answer", triage, prompt=flow.inputs.text)

The messages are kept after every model answer and every round of tools, so a host that was killed
goes on from there. A tool that needs approval waits in the inbox; the agent's `output_type` must
then name `DeferredToolRequests`, as pydantic-ai itself asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from wopr.adapters.asks import Answer
from wopr.adapters.plain import not_installed, plain
from wopr.adapters.session import ModelCall, Session, ToolCall
from wopr.adapters.steps import Ask, Done, Going, Paused
from wopr.adapters.wrapping import OnRecord, require
from wopr.engine.asking import TOOL_CALL
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.interrupts import ApprovalAction
from wopr.protocol.manifests import ManifestModelClass

try:
    from pydantic_ai import (
        AgentRun,
        CallToolsNode,
        DeferredToolRequests,
        DeferredToolResults,
        ModelRequestNode,
        ToolApproved,
        ToolDenied,
    )
    from pydantic_ai import messages as said
    from pydantic_ai.agent import AbstractAgent
    from pydantic_ai.toolsets import FunctionToolset

    from wopr.agents.pydantic_models import usage_of
except ModuleNotFoundError as missing:
    raise not_installed("pydantic-ai", "models", missing) from missing

_MESSAGES: Final = said.ModelMessagesTypeAdapter
_ACTIONS: Final[tuple[ApprovalAction, ...]] = ("accept", "reject", "edit-accept")
_Agent = AbstractAgent[Any, Any]
_Run = AgentRun[Any, Any]


def on_record(
    name: str,
    agent: _Agent,
    *,
    deps: object = None,
    threshold: float | None = None,
    description: str = "",
    model_class: ManifestModelClass = "general",
) -> OnRecord:
    """Put an agent on the record.

    A node's input is `prompt`; further inputs are added to it as data. The outputs are `result`,
    of the agent's output type, and `text` where that is text. With a `threshold` a result whose
    `confidence` is below it waits for a person.
    """
    require(name, agent, AbstractAgent, "an Agent of pydantic-ai")
    return OnRecord(
        name,
        _PydanticAi(agent, deps),
        threshold=threshold,
        description=description,
        model_class=model_class,
    )


class _PydanticAi:
    """An agent of pydantic-ai as a framework at work."""

    name = "pydantic-ai"

    def __init__(self, agent: _Agent, deps: object) -> None:
        self.about = f"The pydantic-ai agent {agent.name or 'without a name'}"
        self.tools: Sequence[str] = [
            tool
            for toolset in agent.toolsets
            if isinstance(toolset, FunctionToolset)
            for tool in toolset.tools
        ]
        self._agent = agent
        self._deps = deps

    async def begin(self, session: Session, inputs: JsonObject) -> Paused | Done:
        """Run the agent from its start."""
        return await self._run(session, prompt=_prompt(inputs))

    async def go_on(
        self, session: Session, state: Json, answers: Sequence[Answer] | None
    ) -> Paused | Done:
        """Run on from the messages so far, with what people decided on its tool calls."""
        kept: JsonObject = state
        history = _MESSAGES.validate_python(kept["messages"])
        results = None if answers is None else _results(kept, answers)
        return await self._run(session, history=history, results=results)

    async def _run(
        self,
        session: Session,
        *,
        prompt: str | None = None,
        history: Sequence[said.ModelMessage] | None = None,
        results: DeferredToolResults | None = None,
    ) -> Paused | Done:
        async with self._agent.iter(
            prompt, message_history=history, deferred_tool_results=results, deps=self._deps
        ) as run:
            tools = _Tools(session, run, results or DeferredToolResults())
            # What a restart brings along was counted when it came.
            heard = len(history or ())
            async for node in run:
                heard = await _hear(session, _messages(run, node), heard)
                if isinstance(node, ModelRequestNode):
                    await session.asks_model()
                if isinstance(node, CallToolsNode):
                    await tools.use(node)
        result = run.result
        if result is None:
            raise RuntimeError("the agent ended without a result")
        if isinstance(result.output, DeferredToolRequests):
            return _paused(result.output, result.all_messages())
        return Done(decision=plain(result.output))


async def _hear(session: Session, messages: Sequence[said.ModelMessage], heard: int) -> int:
    """Put the answers that came since on the log, and keep the messages where there is news."""
    for message in messages[heard:]:
        if isinstance(message, said.ModelResponse):
            await session.called_model(session.agent_id, _model_call(message))
    has_worked = any(isinstance(message, said.ModelResponse) for message in messages)
    if len(messages) > heard and has_worked:
        await session.keep(Going(state=_state(messages)))
    return len(messages)


def _messages(run: _Run, node: object) -> list[said.ModelMessage]:
    """All messages, with the request that is about to be sent."""
    messages = run.all_messages()
    if isinstance(node, ModelRequestNode) and node.request not in messages[-1:]:
        return [*messages, node.request]
    return messages


class _Tools:
    """The tool calls of one run, and what people decided on some of them."""

    def __init__(self, session: Session, run: _Run, results: DeferredToolResults) -> None:
        self._session = session
        self._run = run
        self._results = results

    async def use(self, node: CallToolsNode[Any, Any]) -> None:
        """Let tools be called, each with its call on the log before it and its return after."""
        async with node.stream(self._run.ctx) as events:
            async for event in events:
                if isinstance(event, said.FunctionToolCallEvent):
                    await self._called(event.part, is_valid=event.args_valid is True)
                elif isinstance(event, said.FunctionToolResultEvent):
                    part = event.part
                    await self._session.tool_returned(part.tool_call_id, _returned(part))

    async def _called(self, part: said.ToolCallPart, *, is_valid: bool) -> None:
        """Record a call that is made now; one that waits, or was skipped, is not."""
        decision = self._results.approvals.get(part.tool_call_id)
        call = self._call(part, decision)
        if isinstance(decision, ToolDenied):
            await self._session.refused_tool(call, decision.message)
            return
        is_answered = decision is not None or part.tool_call_id in self._results.calls
        if is_answered or (is_valid and not self._waits(part)):
            await self._session.calls_tool(call)

    def _waits(self, part: said.ToolCallPart) -> bool:
        """Whether a tool is called only after a person said yes, or not by this agent at all."""
        known = self._run.ctx.deps.tool_manager.get_tool_def(part.tool_name)
        return known is not None and known.kind in ("unapproved", "external")

    def _call(self, part: said.ToolCallPart, decision: object) -> ToolCall:
        edited = decision.override_args if isinstance(decision, ToolApproved) else None
        return ToolCall(
            agent_id=self._session.agent_id,
            name=part.tool_name,
            call_id=part.tool_call_id,
            arguments=part.args_as_dict() if edited is None else edited,
        )


def _returned(part: said.ToolReturnPart) -> JsonObject:
    if part.outcome == "failed":
        message = str(part.model_response_str())
        return {"error": {"code": "tool_error", "message": message}}
    return {"outcome": plain(part.content)}


def _model_call(response: said.ModelResponse) -> ModelCall:
    return ModelCall(
        provider=response.provider_name or "",
        model=response.model_name or "",
        usage=usage_of(response),
        reasoning=_thought(response),
    )


def _thought(response: said.ModelResponse) -> str:
    """Its reasoning, or what it says beside its tool calls."""
    told = [part.content for part in response.parts if isinstance(part, said.ThinkingPart)]
    spoken = (response.text or "") if response.tool_calls else ""
    return "\n".join(filter(None, told)) or spoken


def _state(messages: Sequence[said.ModelMessage]) -> JsonObject:
    return {"messages": _MESSAGES.dump_python(list(messages), mode="json")}


def _paused(requests: DeferredToolRequests, messages: Sequence[said.ModelMessage]) -> Paused:
    """The waits for tool calls that need a person's yes, then for those made outside."""
    asks = [_approval(part) for part in requests.approvals]
    asks += [_outside(part) for part in requests.calls]
    state = _state(messages) | {
        "approvals": [part.tool_call_id for part in requests.approvals],
        "calls": [part.tool_call_id for part in requests.calls],
    }
    return Paused(state=state, asks=asks)


def _approval(part: said.ToolCallPart) -> Ask:
    return Ask(
        kind="approval",
        text=f"Call {part.tool_name}?",
        artifact=plain(part.args_as_dict()),
        artifact_type=TOOL_CALL,
        actions=_ACTIONS,
    )


def _outside(part: said.ToolCallPart) -> Ask:
    given = msgspec.json.encode(plain(part.args_as_dict())).decode()
    return Ask(kind="clarification", text=f"What is the result of {part.tool_name} for {given}?")


def _results(kept: JsonObject, answers: Sequence[Answer]) -> DeferredToolResults:
    approvals: list[str] = kept["approvals"]
    calls: list[str] = kept["calls"]
    given = dict(zip([*approvals, *calls], answers, strict=True))
    return DeferredToolResults(
        approvals={call_id: _decision(given[call_id]) for call_id in approvals},
        calls={call_id: given[call_id].value for call_id in calls},
    )


def _decision(answer: Answer) -> ToolApproved | ToolDenied:
    if not answer.is_granted:
        return ToolDenied(answer.feedback) if answer.feedback else ToolDenied()
    edited = answer.edited
    return ToolApproved(override_args=None if isinstance(edited, Unset) else edited)


def _prompt(inputs: JsonObject) -> str:
    """What the agent is told: the prompt, and every other input as data."""
    others = {name: value for name, value in inputs.items() if name != "prompt"}
    shown = msgspec.json.encode(others).decode() if others else ""
    return "\n\n".join(filter(None, (str(inputs.get("prompt", "")), shown)))
