"""pydantic-ai: an agent as a node of a workflow.

    triage = on_record("acme.support.triage", agent)
    answer = flow.add("answer", triage, prompt=flow.inputs.text)

The run stores the messages after every model call and every round of tools. A restarted host
continues from there. A tool that needs approval waits in the inbox. For this, pydantic-ai requires
`DeferredToolRequests` in the agent's `output_type`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from wopr.adapters.session import (
    FrameworkSession,
    FrameworkToolCall,
    ModelCall,
    not_installed_error,
    to_plain_json,
)
from wopr.adapters.steps import Done, HumanAnswer, HumanRequest, Paused, Running
from wopr.adapters.wrapper import WrappedAgent, require_type
from wopr.engine.interrupts import TOOL_CALL
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
    from pydantic_ai import messages as ai_messages
    from pydantic_ai.agent import AbstractAgent
    from pydantic_ai.toolsets import FunctionToolset

    from wopr.agents.models.pydantic_adapter import usage_of
except ModuleNotFoundError as missing:
    raise not_installed_error("pydantic-ai", "models", missing) from missing

_MESSAGES: Final = ai_messages.ModelMessagesTypeAdapter
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
) -> WrappedAgent:
    """Wrap an agent, so that a workflow can run it durably.

    The input of the node is `prompt`. More inputs are added to it as data. The outputs are
    `result`, of the agent's output type, and `text` if the result is a text. The log of the run
    has every model call and tool call.

    Args:
        name: The id of the agent and the node type, such as `acme.support.triage`.
        agent: The agent of pydantic-ai.
        deps: The agent's dependencies.
        threshold: The confidence that a decision needs, from 0 to 1. A decision whose
            `confidence` is below it waits in the inbox.
        description: A description for the inventory of agents.
        model_class: The class of work, such as `classification`.

    Returns:
        The node type and its agent, for `Workflow.add`.

    Raises:
        WorkflowError: `agent` is not an agent of pydantic-ai.

    Example:
        >>> from pydantic_ai import Agent
        >>> from wopr import Workflow
        >>> from wopr.adapters.pydantic_ai import on_record
        >>> triage = on_record("acme.support.triage", Agent("test"))
        >>> flow = Workflow("support")
        >>> _ = flow.add("triage", triage, prompt="Where is my parcel?") >> flow.end()
    """
    require_type(name, agent, AbstractAgent, "an Agent of pydantic-ai")
    return WrappedAgent(
        name,
        _PydanticAi(agent, deps),
        threshold=threshold,
        description=description,
        model_class=model_class,
    )


class _PydanticAi:
    """The adapter of one agent."""

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

    async def begin(self, session: FrameworkSession, inputs: JsonObject) -> Paused | Done:
        """Run the agent from its start."""
        return await self._run(session, prompt=_prompt(inputs))

    async def resume(
        self, session: FrameworkSession, state: Json, answers: Sequence[HumanAnswer] | None
    ) -> Paused | Done:
        """Continue from the messages so far, with the decisions on its tool calls."""
        stored: JsonObject = state
        history = _MESSAGES.validate_python(stored["messages"])
        results = None if answers is None else _deferred_results(stored, answers)
        return await self._run(session, history=history, results=results)

    async def _run(
        self,
        session: FrameworkSession,
        *,
        prompt: str | None = None,
        history: Sequence[ai_messages.ModelMessage] | None = None,
        results: DeferredToolResults | None = None,
    ) -> Paused | Done:
        async with self._agent.iter(
            prompt, message_history=history, deferred_tool_results=results, deps=self._deps
        ) as run:
            tools = _ToolCalls(session, run, results or DeferredToolResults())
            # The messages of the history were recorded before the restart.
            recorded = len(history or ())
            async for node in run:
                recorded = await _record(session, _messages(run, node), recorded)
                if isinstance(node, ModelRequestNode):
                    await session.before_model_call()
                if isinstance(node, CallToolsNode):
                    await tools.use(node)
        result = run.result
        if result is None:
            raise RuntimeError("the agent ended without a result")
        if isinstance(result.output, DeferredToolRequests):
            return _paused_step(result.output, result.all_messages())
        return Done(decision=to_plain_json(result.output))


async def _record(
    session: FrameworkSession, messages: Sequence[ai_messages.ModelMessage], recorded: int
) -> int:
    """Record new model calls on the log, and store the messages if there are new ones."""
    for message in messages[recorded:]:
        if isinstance(message, ai_messages.ModelResponse):
            await session.record_model_call(session.agent_id, _model_call(message))
    has_response = any(isinstance(message, ai_messages.ModelResponse) for message in messages)
    if len(messages) > recorded and has_response:
        await session.store(Running(state=_state(messages)))
    return len(messages)


def _messages(run: _Run, node: object) -> list[ai_messages.ModelMessage]:
    """Return all messages, including the request to send next."""
    messages = run.all_messages()
    if isinstance(node, ModelRequestNode) and node.request not in messages[-1:]:
        return [*messages, node.request]
    return messages


class _ToolCalls:
    """The tool calls of one run, and the decisions on them."""

    def __init__(self, session: FrameworkSession, run: _Run, results: DeferredToolResults) -> None:
        self._session = session
        self._run = run
        self._results = results

    async def use(self, node: CallToolsNode[Any, Any]) -> None:
        """Execute the tool calls, and record the start and the result of each."""
        async with node.stream(self._run.ctx) as events:
            async for event in events:
                if isinstance(event, ai_messages.FunctionToolCallEvent):
                    await self._record_call(event.part, is_valid=event.args_valid is True)
                elif isinstance(event, ai_messages.FunctionToolResultEvent):
                    part = event.part
                    await self._session.record_tool_return(part.tool_call_id, _tool_message(part))

    async def _record_call(self, part: ai_messages.ToolCallPart, *, is_valid: bool) -> None:
        """Record a call that is executed now, but not a call that waits or was skipped."""
        decision = self._results.approvals.get(part.tool_call_id)
        call = self._call(part, decision)
        if isinstance(decision, ToolDenied):
            await self._session.record_rejected_tool_call(call, decision.message)
            return
        is_answered = decision is not None or part.tool_call_id in self._results.calls
        if is_answered or (is_valid and not self._is_deferred(part)):
            await self._session.record_tool_call(call)

    def _is_deferred(self, part: ai_messages.ToolCallPart) -> bool:
        """Return whether a call needs an approval, or is executed outside the agent."""
        known = self._run.ctx.deps.tool_manager.get_tool_def(part.tool_name)
        return known is not None and known.kind in ("unapproved", "external")

    def _call(self, part: ai_messages.ToolCallPart, decision: object) -> FrameworkToolCall:
        edited = decision.override_args if isinstance(decision, ToolApproved) else None
        return FrameworkToolCall(
            agent_id=self._session.agent_id,
            name=part.tool_name,
            call_id=part.tool_call_id,
            arguments=part.args_as_dict() if edited is None else edited,
        )


def _tool_message(part: ai_messages.ToolReturnPart) -> JsonObject:
    if part.outcome == "failed":
        message = str(part.model_response_str())
        return {"error": {"code": "tool_error", "message": message}}
    return {"outcome": to_plain_json(part.content)}


def _model_call(response: ai_messages.ModelResponse) -> ModelCall:
    return ModelCall(
        provider=response.provider_name or "",
        model=response.model_name or "",
        usage=usage_of(response),
        reasoning=_reasoning(response),
    )


def _reasoning(response: ai_messages.ModelResponse) -> str:
    """Return the reasoning, or the text next to the tool calls."""
    reasoning = [
        part.content for part in response.parts if isinstance(part, ai_messages.ThinkingPart)
    ]
    text = (response.text or "") if response.tool_calls else ""
    return "\n".join(filter(None, reasoning)) or text


def _state(messages: Sequence[ai_messages.ModelMessage]) -> JsonObject:
    return {"messages": _MESSAGES.dump_python(list(messages), mode="json")}


def _paused_step(
    requests: DeferredToolRequests, messages: Sequence[ai_messages.ModelMessage]
) -> Paused:
    """Return the questions: approvals of tool calls, then results of external calls."""
    asks = [_approval(part) for part in requests.approvals]
    asks += [_external_request(part) for part in requests.calls]
    state = _state(messages) | {
        "approvals": [part.tool_call_id for part in requests.approvals],
        "calls": [part.tool_call_id for part in requests.calls],
    }
    return Paused(state=state, asks=asks)


def _approval(part: ai_messages.ToolCallPart) -> HumanRequest:
    return HumanRequest(
        kind="approval",
        text=f"Call {part.tool_name}?",
        artifact=to_plain_json(part.args_as_dict()),
        artifact_type=TOOL_CALL,
        actions=_ACTIONS,
    )


def _external_request(part: ai_messages.ToolCallPart) -> HumanRequest:
    given = msgspec.json.encode(to_plain_json(part.args_as_dict())).decode()
    return HumanRequest(
        kind="clarification", text=f"What is the result of {part.tool_name} for {given}?"
    )


def _deferred_results(stored: JsonObject, answers: Sequence[HumanAnswer]) -> DeferredToolResults:
    approvals: list[str] = stored["approvals"]
    calls: list[str] = stored["calls"]
    given = dict(zip([*approvals, *calls], answers, strict=True))
    return DeferredToolResults(
        approvals={call_id: _decision(given[call_id]) for call_id in approvals},
        calls={call_id: given[call_id].value for call_id in calls},
    )


def _decision(answer: HumanAnswer) -> ToolApproved | ToolDenied:
    if not answer.is_granted:
        return ToolDenied(answer.feedback) if answer.feedback else ToolDenied()
    edited = answer.edited
    return ToolApproved(override_args=None if isinstance(edited, Unset) else edited)


def _prompt(inputs: JsonObject) -> str:
    """Return the input of the agent: the prompt, and the other inputs as data."""
    others = {name: value for name, value in inputs.items() if name != "prompt"}
    data = msgspec.json.encode(others).decode() if others else ""
    return "\n\n".join(filter(None, (str(inputs.get("prompt", "")), data)))
