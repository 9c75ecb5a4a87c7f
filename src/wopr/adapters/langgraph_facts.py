"""What happens inside a graph, heard through LangChain's callbacks and put on the run's log."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langgraph.errors import GraphBubbleUp

from wopr.adapters.plain import plain
from wopr.adapters.session import ModelCall, Session, ToolCall, failed
from wopr.adapters.wrapping import agent_name
from wopr.nodes.models import ModelUsage
from wopr.protocol.documents import Json, JsonObject

_Metadata = Mapping[str, Any] | None


class GraphFacts(AsyncCallbackHandler):
    """Hears every model call, tool call and hand-off between subgraphs.

    Code that runs in the host's event loop waits until its event is on the log. Synchronous code
    runs in a thread, or keeps the loop busy, and must not wait for it: its events are noted.
    """

    raise_error = True

    def __init__(self, session: Session, subgraphs: Collection[str]) -> None:
        self._session = session
        self._subgraphs = subgraphs
        self._loop = asyncio.get_running_loop()
        self._asked: dict[UUID, tuple[str, str, str]] = {}
        self._tools: dict[UUID, str] = {}
        self._step: int | None = None
        # Who acts in the step that is under way, and who did in the one before.
        self._acting: set[str] = {session.agent_id}
        self._acted: set[str] = {session.agent_id}

    @property
    def _is_at_home(self) -> bool:
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
        """A node of the graph itself begins; one that is a subgraph is an agent of its own."""
        space, step = _space(metadata), (metadata or {}).get("langgraph_step")
        if not space or "|" in space or step is None:
            return
        if step != self._step:
            self._step, self._acted, self._acting = step, self._acting, set[str]()
        agent_id = self._agent(metadata)
        if agent_id in self._acting:
            return
        self._acting.add(agent_id)
        if agent_id not in self._acted:
            await self._hand_over(min(self._acted), agent_id)

    async def _hand_over(self, from_agent: str, to_agent: str) -> None:
        if self._is_at_home:
            await self._session.hands_over(from_agent, to_agent)
        else:
            self._later(self._session.note_hand_over, from_agent, to_agent)

    async def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A chat model is asked."""
        await self._ask(run_id, metadata)

    async def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A model that only completes text is asked."""
        await self._ask(run_id, metadata)

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """A model has answered."""
        agent_id, provider, model = self._asked.pop(run_id, (self._session.agent_id, "", ""))
        call = model_call(response, provider, model)
        if self._is_at_home:
            await self._session.called_model(agent_id, call)
        else:
            self._later(self._session.note_model_call, agent_id, call)

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
        """A tool is about to be called."""
        call = ToolCall(
            agent_id=self._agent(metadata),
            name=str(serialized.get("name") or "tool"),
            call_id=str(kwargs.get("tool_call_id") or run_id),
            arguments=input_str if inputs is None else inputs,
        )
        self._tools[run_id] = call.call_id
        if self._is_at_home:
            await self._session.calls_tool(call)
        else:
            self._later(self._session.note_tool_call, call)

    async def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool has answered."""
        await self._returned(run_id, returned(output))

    async def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool has raised. One that waits for a person, or goes elsewhere in the graph, has not."""
        if isinstance(error, GraphBubbleUp):
            self._later(self._session.leave_open, self._tools.pop(run_id, ""))
        else:
            await self._returned(run_id, failed(error))

    async def _returned(self, run_id: UUID, result: JsonObject) -> None:
        call_id = self._tools.pop(run_id, "")
        if self._is_at_home:
            await self._session.tool_returned(call_id, result)
        else:
            self._later(self._session.note_tool_return, call_id, result)

    def _later(self, note: Any, *arguments: object) -> None:
        """Note something from another thread, in order; the host's loop does it when it can."""
        self._loop.call_soon_threadsafe(note, *arguments)

    async def _ask(self, run_id: UUID, metadata: _Metadata) -> None:
        if self._is_at_home:
            await self._session.asks_model()
        known = metadata or {}
        provider, model = known.get("ls_provider", ""), known.get("ls_model_name", "")
        self._asked[run_id] = (self._agent(metadata), str(provider), str(model))

    def _agent(self, metadata: _Metadata) -> str:
        """Who acts: the subgraph in which something happens, or the graph itself."""
        node = _space(metadata).partition("|")[0].partition(":")[0]
        root = self._session.agent_id
        return agent_name(root, node) if node in self._subgraphs else root


class ModelGate(BaseCallbackHandler):
    """Refuses model calls of synchronous code, where LangChain only logs what `GraphFacts` raises."""

    raise_error = True
    run_inline = True

    def __init__(self, session: Session) -> None:
        self._session = session

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        """A chat model is asked."""
        self._session.note_question()

    def on_llm_start(self, *args: Any, **kwargs: Any) -> None:
        """A model that only completes text is asked."""
        self._session.note_question()


def _space(metadata: _Metadata) -> str:
    return str((metadata or {}).get("langgraph_checkpoint_ns", ""))


def model_call(response: LLMResult, provider: str, model: str) -> ModelCall:
    """What a model's answer cost, and what it thought."""
    generation = response.generations[0][0] if response.generations else None
    message = generation.message if isinstance(generation, ChatGeneration) else None
    if not isinstance(message, AIMessage):
        return ModelCall(provider=provider, model=model, usage=ModelUsage())
    used = message.usage_metadata
    details: Mapping[str, Any] = used.get("input_token_details", {}) if used else {}
    answered = message.response_metadata
    return ModelCall(
        provider=str(answered.get("model_provider") or provider),
        model=str(answered.get("model_name") or model),
        usage=ModelUsage(
            input_tokens=used["input_tokens"] if used else 0,
            output_tokens=used["output_tokens"] if used else 0,
            cache_read_tokens=details.get("cache_read", 0),
            cache_write_tokens=details.get("cache_creation", 0),
        ),
        reasoning=_thought(message),
    )


def _thought(message: AIMessage) -> str:
    """Its reasoning, or what it says beside its tool calls."""
    blocks: list[Any] = list(message.content_blocks)
    told = [block.get("reasoning", "") for block in blocks if block["type"] == "reasoning"]
    said = str(message.text) if message.tool_calls else ""
    return "\n".join(filter(None, told)) or said


def returned(output: object) -> JsonObject:
    """What came of a tool, as the log shows it."""
    if isinstance(output, ToolMessage):
        content: Json = plain(output.content)
        if output.status == "error":
            return {"error": {"code": "tool_error", "message": str(content)}}
        return {"outcome": content}
    return {"outcome": plain(output)}
