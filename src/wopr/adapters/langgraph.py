"""LangGraph: a compiled graph as a node of a workflow.

    support = on_record("acme.support.graph", graph)
    answer = flow.add("answer", support, prompt=flow.inputs.text)

The run stores LangGraph's own checkpoints after every step. A restarted host continues after the
last one. `interrupt()` waits in the inbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from wopr.adapters.session import (
    FrameworkSession,
    FrameworkToolCall,
    ModelCall,
    not_installed_error,
    to_plain_json,
    tool_error,
)
from wopr.adapters.steps import Done, HumanAnswer, HumanRequest, Paused, Running
from wopr.adapters.wrapper import WrappedAgent, agent_name, require_type
from wopr.agents.models.port import ModelUsage
from wopr.engine.interrupts import AGENT_REQUEST, TOOL_CALL
from wopr.engine.outcome import NodeFailure
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, is_list, is_object
from wopr.protocol.interrupts import ApprovalAction
from wopr.protocol.manifests import ManifestModelClass

try:
    from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
    from langchain_core.messages import (
        AIMessage,
        BaseMessage,
        ToolMessage,
        convert_to_openai_messages,
    )
    from langchain_core.outputs import ChatGeneration, LLMResult
    from langchain_core.runnables import RunnableConfig
    from langgraph.channels import DeltaChannel
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.errors import GraphBubbleUp
    from langgraph.pregel import Pregel
    from langgraph.types import Command, StateSnapshot

    from wopr.adapters.langgraph_state import export_thread, prune_thread, restore_thread
except ModuleNotFoundError as missing:
    raise not_installed_error("LangGraph", "langgraph", missing) from missing

_MESSAGES: Final = "messages"
_STRUCTURED: Final = "structured_response"
_NO_CHECKPOINT: Final = ""
_ACTIONS: Final[dict[str, ApprovalAction]] = {
    "approve": "accept",
    "edit": "edit-accept",
    "reject": "reject",
}
_YES_OR_NO: Final[tuple[ApprovalAction, ...]] = ("accept", "reject")
_Metadata = Mapping[str, Any] | None


def on_record(
    name: str,
    graph: Pregel[Any, Any, Any, Any],
    *,
    config: RunnableConfig | None = None,
    context: object = None,
    threshold: float | None = None,
    description: str = "",
    model_class: ManifestModelClass = "general",
) -> WrappedAgent:
    """Wrap a compiled graph, so that a workflow can run it durably.

    The inputs of the node are the input of the graph. An input `prompt` becomes a user message if
    the graph has `messages` and no `prompt`. The outputs are those of the graph, and `text`, the
    last message. The log of the run has every model call, tool call and handoff.

    Args:
        name: The id of the agent and the node type, such as `acme.support.graph`.
        graph: The compiled graph. The run replaces its checkpointer.
        config: The graph's config, as for `graph.invoke`.
        context: The graph's runtime context.
        threshold: The confidence that a decision needs, from 0 to 1. A decision whose
            `confidence` is below it waits in the inbox.
        description: A description for the inventory of agents.
        model_class: The class of work, such as `classification`.

    Returns:
        The node type and its agent, for `Workflow.add`.

    Raises:
        WorkflowError: `graph` is not a compiled graph.

    Example:
        >>> from langgraph.graph import StateGraph
        >>> from wopr import Workflow
        >>> from wopr.adapters.langgraph import on_record
        >>> def support(builder: StateGraph) -> Workflow:
        ...     flow = Workflow("support")
        ...     graph = on_record("acme.support.graph", builder.compile())
        ...     _ = flow.add("answer", graph, prompt="Where is my parcel?") >> flow.end()
        ...     return flow
    """
    require_type(name, graph, Pregel, "a compiled graph, such as builder.compile()")
    return WrappedAgent(
        name,
        _Graph(graph, config or {}, context),
        threshold=threshold,
        description=description,
        model_class=model_class,
    )


class _Graph:
    """The adapter of one graph."""

    name = "langgraph"
    # Tools are in the nodes of the graph, so they cannot be listed.
    tools: Sequence[str] = ()

    def __init__(
        self, graph: Pregel[Any, Any, Any, Any], config: RunnableConfig, context: object
    ) -> None:
        self.about = f"A LangGraph graph with the nodes {', '.join(_nodes(graph))}"
        # The type parameters of the graph do not matter here.
        self._graph: Any = graph
        self._config = config
        self._context = context
        self._subgraphs = {str(name) for name, _ in self._graph.get_subgraphs()}
        self._can_prune = not _has_deltas(self._graph)

    async def begin(self, session: FrameworkSession, inputs: JsonObject) -> Paused | Done:
        """Run the graph from its start."""
        return await self._run(session, InMemorySaver(), self._input(inputs), _NO_CHECKPOINT)

    async def resume(
        self, session: FrameworkSession, state: Json, answers: Sequence[HumanAnswer] | None
    ) -> Paused | Done:
        """Run the graph from a checkpoint, with the answers to its interrupts."""
        thread: JsonObject = state
        saver = restore_thread(thread["graph"], session.thread_id)
        wanted = None if answers is None else _resume_command(thread["interrupts"], answers)
        return await self._run(session, saver, wanted, _newest(saver, session.thread_id))

    async def _run(
        self,
        session: FrameworkSession,
        saver: InMemorySaver,
        graph_input: Any,
        last_checkpoint: str,
    ) -> Paused | Done:
        graph = self._graph.copy(update={"checkpointer": saver})
        config = self._run_config(session)
        chunks = graph.astream(
            graph_input, config, context=self._context, stream_mode="values", durability="sync"
        )
        async with aclosing(chunks) as steps:
            async for _ in steps:
                last_checkpoint = await self._store_step(session, saver, last_checkpoint)
        snapshot = await graph.aget_state(config)
        if snapshot.interrupts or snapshot.next:
            return _paused_step(snapshot, export_thread(saver, session.thread_id))
        return self._done(snapshot)

    async def _store_step(
        self, session: FrameworkSession, saver: InMemorySaver, last_checkpoint: str
    ) -> str:
        """Store the checkpoint of a finished step, but not a checkpoint with only the input."""
        newest = _newest(saver, session.thread_id)
        if newest in (last_checkpoint, _NO_CHECKPOINT):
            return newest
        if last_checkpoint != _NO_CHECKPOINT:
            if self._can_prune:
                prune_thread(saver, session.thread_id)
            state: JsonObject = {"graph": export_thread(saver, session.thread_id), "interrupts": []}
            await session.store(Running(state=state))
        return newest

    def _run_config(self, session: FrameworkSession) -> RunnableConfig:
        own = self._config
        callbacks: Any = own.get("callbacks") or []
        own_handlers = (GraphCallbacks(session, self._subgraphs), ModelGate(session))
        if isinstance(callbacks, list):
            callbacks = [*callbacks, *own_handlers]
        else:
            callbacks = callbacks.copy()
            for handler in own_handlers:
                callbacks.add_handler(handler)
        named = {**own.get("configurable", {}), "thread_id": session.thread_id}
        return {**own, "callbacks": callbacks, "configurable": named}

    def _input(self, inputs: JsonObject) -> JsonObject:
        channels = self._graph.channels
        if "prompt" not in inputs or "prompt" in channels or _MESSAGES not in channels:
            return inputs
        others = {name: value for name, value in inputs.items() if name != "prompt"}
        message = {"role": "user", "content": inputs["prompt"]}
        return others | {_MESSAGES: [*inputs.get(_MESSAGES, []), message]}

    def _done(self, snapshot: StateSnapshot) -> Done:
        values: Any = snapshot.values
        if not isinstance(values, dict):
            return Done(decision=to_plain_json(values))
        state = cast("dict[str, object]", values)
        visible = self._graph.output_channels
        if not isinstance(visible, str):
            state = {name: state[name] for name in visible if name in state}
        return _outcome({name: _state_json(value) for name, value in state.items()}, state)


def _outcome(outputs: JsonObject, state: dict[str, object]) -> Done:
    """Return the decision of the graph: its structured response, values or last message."""
    messages: Json = state.get(_MESSAGES)
    last: object = messages[-1] if is_list(messages) and messages else None
    text = {"text": str(last.text)} if isinstance(last, BaseMessage) else {}
    values = {name: value for name, value in outputs.items() if name != _MESSAGES}
    if _STRUCTURED in values:
        return Done(decision=values[_STRUCTURED], outputs=text | outputs, place=_STRUCTURED)
    if values or not text:
        return Done(decision=values, outputs=text | outputs, place="")
    return Done(decision=text["text"], outputs=outputs, place="text")


def _state_json(value: object) -> Json:
    """Convert a value of the state to JSON; messages in the format of OpenAI."""
    given: Json = value
    items: list[Json] = given if is_list(given) else []
    if items and all(isinstance(item, BaseMessage) for item in items):
        return to_plain_json(convert_to_openai_messages(items))
    return to_plain_json(value)


def _paused_step(snapshot: StateSnapshot, graph: Json) -> Paused:
    """Return the questions of an interrupted graph. A breakpoint becomes an approval."""
    interrupts: list[JsonObject] = [
        {"id": each.id, "value": to_plain_json(each.value)} for each in snapshot.interrupts
    ]
    asks = [ask for each in interrupts for ask in human_requests_of(each["value"])]
    if not interrupts:
        visible = {
            name: _state_json(value) for name, value in cast("JsonObject", snapshot.values).items()
        }
        text = f"Continue with {', '.join(snapshot.next)}?"
        asks = [HumanRequest(kind="approval", text=text, artifact=visible)]
    return Paused(state={"graph": graph, "interrupts": interrupts}, asks=asks)


def _resume_command(
    interrupts: list[JsonObject], answers: Sequence[HumanAnswer]
) -> Command[Any] | None:
    """Return the answers by interrupt, to resume the graph with."""
    if not interrupts:
        if not all(answer.is_granted for answer in answers):
            raise NodeFailure(
                "the approval to continue the graph was rejected",
                code="interrupt_rejected",
                retryable=False,
            )
        return None
    left = list(answers)
    resumed: dict[str, Json] = {}
    for each in interrupts:
        count = len(human_requests_of(each["value"]))
        resumed[each["id"]] = resume_value_of(each["value"], left[:count])
        del left[:count]
    return Command(resume=resumed)


def _newest(saver: InMemorySaver, thread: str) -> str:
    return max(saver.storage[thread][""], default=_NO_CHECKPOINT)


def _nodes(graph: Pregel[Any, Any, Any, Any]) -> list[str]:
    return [name for name in graph.nodes if not name.startswith("__")]


def _has_deltas(graph: Any) -> bool:
    """Return whether a value depends on all checkpoints, so that none may be deleted."""
    graphs: list[Any] = [graph, *(part for _, part in graph.get_subgraphs(recurse=True))]
    channels = [channel for each in graphs for channel in getattr(each, "channels", {}).values()]
    return any(isinstance(channel, DeltaChannel) for channel in channels)


class GraphCallbacks(AsyncCallbackHandler):
    """Records every model call, tool call and handoff between subgraphs on the run's log.

    A call in the host's event loop waits until its event is on the log. Synchronous code runs in a
    thread or blocks the loop, so it must not wait; its events are appended later, in order.
    """

    raise_error = True

    def __init__(self, session: FrameworkSession, subgraphs: Collection[str]) -> None:
        self._session = session
        self._subgraphs = subgraphs
        self._loop = asyncio.get_running_loop()
        self._calls: dict[UUID, tuple[str, str, str]] = {}
        self._tools: dict[UUID, str] = {}
        self._step: int | None = None
        # The agents of the current step, and those of the step before.
        self._current_agents: set[str] = {session.agent_id}
        self._previous_agents: set[str] = {session.agent_id}

    @property
    def _is_in_host_loop(self) -> bool:
        return asyncio.get_running_loop() is self._loop

    async def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Record a handoff when a subgraph starts, because every subgraph is an agent."""
        space, step = _namespace(metadata), (metadata or {}).get("langgraph_step")
        if not space or "|" in space or step is None:
            return
        if step != self._step:
            self._step = step
            self._previous_agents, self._current_agents = self._current_agents, set[str]()
        agent_id = self._agent(metadata)
        if agent_id in self._current_agents:
            return
        self._current_agents.add(agent_id)
        if agent_id not in self._previous_agents:
            await self._record_handoff(min(self._previous_agents), agent_id)

    async def _record_handoff(self, from_agent: str, to_agent: str) -> None:
        if self._is_in_host_loop:
            await self._session.record_handoff(from_agent, to_agent)
        else:
            self._schedule(self._session.record_handoff_nowait, from_agent, to_agent)

    async def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Check the tokens before a chat model is called."""
        await self._before_model_call(run_id, metadata)

    async def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Check the tokens before a completion model is called."""
        await self._before_model_call(run_id, metadata)

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Record the usage of a model call."""
        agent_id, provider, model = self._calls.pop(run_id, (self._session.agent_id, "", ""))
        call = model_call(response, provider, model)
        if self._is_in_host_loop:
            await self._session.record_model_call(agent_id, call)
        else:
            self._schedule(self._session.record_model_call_nowait, agent_id, call)

    async def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Record the start of a tool call."""
        call = FrameworkToolCall(
            agent_id=self._agent(metadata),
            name=str(serialized.get("name") or "tool"),
            call_id=str(kwargs.get("tool_call_id") or run_id),
            arguments=input_str if inputs is None else inputs,
        )
        self._tools[run_id] = call.call_id
        if self._is_in_host_loop:
            await self._session.record_tool_call(call)
        else:
            self._schedule(self._session.record_tool_call_nowait, call)

    async def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Record the result of a tool call."""
        await self._record_return(run_id, tool_result(output))

    async def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Record the error of a tool call, unless the tool interrupts the graph or redirects it."""
        if isinstance(error, GraphBubbleUp):
            self._schedule(self._session.forget_tool_call, self._tools.pop(run_id, ""))
        else:
            await self._record_return(run_id, tool_error(error))

    async def _record_return(self, run_id: UUID, result: JsonObject) -> None:
        call_id = self._tools.pop(run_id, "")
        if self._is_in_host_loop:
            await self._session.record_tool_return(call_id, result)
        else:
            self._schedule(self._session.record_tool_return_nowait, call_id, result)

    def _schedule(self, function: Any, *arguments: object) -> None:
        """Schedule a call in the host's event loop from another thread, in order."""
        self._loop.call_soon_threadsafe(function, *arguments)

    async def _before_model_call(self, run_id: UUID, metadata: _Metadata) -> None:
        if self._is_in_host_loop:
            await self._session.before_model_call()
        known = metadata or {}
        provider, model = known.get("ls_provider", ""), known.get("ls_model_name", "")
        self._calls[run_id] = (self._agent(metadata), str(provider), str(model))

    def _agent(self, metadata: _Metadata) -> str:
        """Return the agent of a callback: a subgraph, or the graph itself."""
        node = _namespace(metadata).partition("|")[0].partition(":")[0]
        root = self._session.agent_id
        return agent_name(root, node) if node in self._subgraphs else root


class ModelGate(BaseCallbackHandler):
    """Refuses model calls of synchronous code, where errors of `GraphCallbacks` are only logged."""

    raise_error = True
    run_inline = True

    def __init__(self, session: FrameworkSession) -> None:
        self._session = session

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        """Check the tokens before a chat model is called."""
        self._session.require_tokens()

    def on_llm_start(self, *args: Any, **kwargs: Any) -> None:
        """Check the tokens before a completion model is called."""
        self._session.require_tokens()


def _namespace(metadata: _Metadata) -> str:
    return str((metadata or {}).get("langgraph_checkpoint_ns", ""))


def model_call(response: LLMResult, provider: str, model: str) -> ModelCall:
    """Return the usage and the reasoning of a model call."""
    generation = response.generations[0][0] if response.generations else None
    message = generation.message if isinstance(generation, ChatGeneration) else None
    if not isinstance(message, AIMessage):
        return ModelCall(provider=provider, model=model, usage=ModelUsage())
    used = message.usage_metadata
    details: Mapping[str, Any] = used.get("input_token_details", {}) if used else {}
    metadata = message.response_metadata
    return ModelCall(
        provider=str(metadata.get("model_provider") or provider),
        model=str(metadata.get("model_name") or model),
        usage=ModelUsage(
            input_tokens=used["input_tokens"] if used else 0,
            output_tokens=used["output_tokens"] if used else 0,
            cache_read_tokens=details.get("cache_read", 0),
            cache_write_tokens=details.get("cache_creation", 0),
        ),
        reasoning=_reasoning(message),
    )


def _reasoning(message: AIMessage) -> str:
    """Return the reasoning, or the text next to the tool calls."""
    blocks: list[Any] = list(message.content_blocks)
    reasoning = [block.get("reasoning", "") for block in blocks if block["type"] == "reasoning"]
    text = str(message.text) if message.tool_calls else ""
    return "\n".join(filter(None, reasoning)) or text


def tool_result(output: object) -> JsonObject:
    """Return the result of a tool for the log."""
    if isinstance(output, ToolMessage):
        content: Json = to_plain_json(output.content)
        if output.status == "error":
            return {"error": {"code": "tool_error", "message": str(content)}}
        return {"outcome": content}
    return {"outcome": to_plain_json(output)}


def human_requests_of(value: Json) -> list[HumanRequest]:
    """Return the questions of one `interrupt(value)`.

    `{"action_requests": [...]}`, the format of LangChain's middleware, is one approval per tool
    call. `{"approve": title, "artifact": ..., "actions": [...]}` is one approval. Any other value
    is a question.
    """
    requests = _requests(value)
    if requests:
        allowed = _allowed(value)
        return [_tool_approval(request, allowed) for request in requests]
    if is_object(value) and isinstance(value.get("approve"), str):
        return [_approval(value)]
    return [HumanRequest(kind="clarification", text=_question(value))]


def resume_value_of(value: Json, answers: Sequence[HumanAnswer]) -> Json:
    """Return the result of `interrupt(value)` in the graph.

    An approval gives True, False or the edited artifact. A question gives its answer.
    """
    requests = _requests(value)
    if requests:
        pairs = zip(requests, answers, strict=True)
        return {"decisions": [_decision(request, answer) for request, answer in pairs]}
    [answer] = answers
    if is_object(value) and isinstance(value.get("approve"), str):
        return answer.is_granted if isinstance(answer.edited, Unset) else answer.edited
    return answer.value


def _requests(value: Json) -> list[JsonObject]:
    found: Json = value.get("action_requests") if is_object(value) else None
    if not is_list(found) or not all(is_object(each) and "name" in each for each in found):
        return []
    return cast("list[JsonObject]", found)


def _allowed(value: JsonObject) -> dict[str, list[ApprovalAction]]:
    """Return the actions that the middleware allows, by tool."""
    return {
        str(each["action_name"]): [
            _ACTIONS[name] for name in each.get("allowed_decisions", ()) if name in _ACTIONS
        ]
        for each in cast("list[JsonObject]", value.get("review_configs", []))
    }


def _tool_approval(request: JsonObject, allowed: dict[str, list[ApprovalAction]]) -> HumanRequest:
    name = str(request["name"])
    return HumanRequest(
        kind="approval",
        text=f"Call {name}?",
        artifact=request.get("args", {}),
        artifact_type=TOOL_CALL,
        description=str(request.get("description", "")),
        actions=tuple(allowed.get(name, ())) or _YES_OR_NO,
    )


def _decision(request: JsonObject, answer: HumanAnswer) -> JsonObject:
    if not answer.is_granted:
        return {"type": "reject"} | ({"message": answer.feedback} if answer.feedback else {})
    if isinstance(answer.edited, Unset):
        return {"type": "approve"}
    return {"type": "edit", "edited_action": {"name": request["name"], "args": answer.edited}}


def _approval(value: JsonObject) -> HumanRequest:
    wanted: Json = value.get("actions")
    return HumanRequest(
        kind="approval",
        text=value["approve"] or "Continue?",
        artifact=value.get("artifact", UNSET),
        artifact_type=AGENT_REQUEST,
        description=str(value.get("description", "")),
        actions=msgspec.convert(wanted, tuple[ApprovalAction, ...]) if wanted else _YES_OR_NO,
    )


def _question(value: Json) -> str:
    if isinstance(value, str):
        return value or "Continue?"
    if not is_object(value) or not isinstance(value.get("question"), str):
        return msgspec.json.encode(value).decode()
    others = {name: member for name, member in value.items() if name != "question"}
    details = f"\n\n{msgspec.json.encode(others).decode()}" if others else ""
    return f"{value['question']}{details}"
