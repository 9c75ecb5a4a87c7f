"""What agents of the OpenAI Agents SDK do, heard through its run hooks and put on the run's log."""

from __future__ import annotations

from typing import Any

import msgspec
from agents import (
    Agent,
    ModelResponse,
    RunContextWrapper,
    RunHooks,
    Tool,
    TResponseInputItem,
)
from agents.tool_context import ToolContext

from wopr.adapters.plain import plain
from wopr.adapters.session import ModelCall, Session, ToolCall
from wopr.adapters.steps import Going
from wopr.adapters.wrapping import agent_name
from wopr.nodes.models import ModelUsage
from wopr.protocol.documents import Json

_Agent = Agent[Any]
_Context = RunContextWrapper[Any]


class AgentFacts(RunHooks[Any]):
    """Hears every turn, tool call and hand-off."""

    def __init__(self, session: Session, root: _Agent, turns: int, *, has_begun: bool) -> None:
        self.turns = turns
        self._session = session
        self._root = root
        self._has_begun = has_begun

    def _id(self, agent: Any) -> str:
        return id_of(self._session, self._root, agent)

    async def on_llm_start(
        self,
        context: _Context,
        agent: _Agent,
        system_prompt: str | None,
        input_items: list[TResponseInputItem],
    ) -> None:
        """A turn begins: what the model is told is all that it takes to begin it again."""
        await self._session.asks_model()
        if self._has_begun:
            said: Json = plain(input_items)
            state = {"agent": agent.name, "input": said, "turns": self.turns}
            await self._session.keep(Going(state=state))
        self._has_begun = True
        self.turns += 1

    async def on_llm_end(self, context: _Context, agent: _Agent, response: ModelResponse) -> None:
        """A model has answered."""
        used = response.usage
        cached = used.input_tokens_details.cached_tokens or 0
        usage = ModelUsage(
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cache_read_tokens=cached,
        )
        provider, model = _model(agent)
        call = ModelCall(provider=provider, model=model, usage=usage, reasoning=_thought(response))
        await self._session.called_model(self._id(agent), call)

    async def on_handoff(self, context: _Context, from_agent: Any, to_agent: Any) -> None:
        """One agent hands over to another."""
        await self._session.hands_over(self._id(from_agent), self._id(to_agent))

    async def on_tool_start(self, context: _Context, agent: Any, tool: Tool) -> None:
        """A tool is about to be called."""
        arguments = context.tool_arguments if isinstance(context, ToolContext) else "{}"
        call = ToolCall(
            agent_id=self._id(agent),
            name=tool.name,
            call_id=_call_id(context, tool),
            arguments=arguments_of(arguments),
        )
        await self._session.calls_tool(call)

    async def on_tool_end(self, context: _Context, agent: Any, tool: Tool, result: object) -> None:
        """A tool has answered."""
        await self._session.tool_returned(_call_id(context, tool), {"outcome": plain(result)})


def id_of(session: Session, root: _Agent, agent: Any) -> str:
    """Who an agent is on the log: the wrapped one, or one that works for it."""
    own = session.agent_id
    return own if agent.name == root.name else agent_name(own, agent.name)


def _call_id(context: _Context, tool: Tool) -> str:
    return context.tool_call_id if isinstance(context, ToolContext) else tool.name


def arguments_of(text: str) -> Json:
    """The arguments of a call; a model that wrote no JSON is quoted."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _thought(response: ModelResponse) -> str:
    """A model's reasoning, as far as the provider shows it."""
    items: list[Any] = [item for item in response.output if _kind(item) == "reasoning"]
    told = [part.text for item in items for part in (item.content or item.summary)]
    return "\n".join(told)


def _kind(item: object) -> str:
    return str(getattr(item, "type", ""))


def _model(agent: _Agent) -> tuple[str, str]:
    """Whose model an agent asks, as far as its declaration says."""
    model: object = agent.model
    name = model if isinstance(model, str) else str(getattr(model, "model", "") or "")
    prefix, slash, rest = name.partition("/")
    is_prefixed = bool(slash) and isinstance(model, str)
    if model is None or isinstance(model, str):
        return (prefix, rest) if is_prefixed else ("openai", name or "default")
    is_own = type(model).__module__.startswith("agents.models.openai")
    return "openai" if is_own else type(model).__name__.lower(), name
