"""A support desk in LangGraph, and an app with it."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt

from tests.adapters.flows import THOUGHT, desk_flow
from tests.adapters.script import (
    IN_TOKENS,
    OUT_TOKENS,
    Call,
    be_slow,
    break_down,
    look_up,
    move,
    refund,
)
from wopr.adapters.langgraph import on_record
from wopr.adapters.wrapper import WrappedAgent


class GraphModel(BaseChatModel):
    """Return the answers of the script."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        prompt = next(str(each.content) for each in messages if isinstance(each, HumanMessage))
        results = [str(each.content) for each in messages if isinstance(each, ToolMessage)]
        wanted = move(prompt, results)
        answer = AIMessage(
            content=THOUGHT if isinstance(wanted, Call) else wanted,
            tool_calls=_graph_calls(wanted, len(results)),
            usage_metadata={
                "input_tokens": IN_TOKENS,
                "output_tokens": OUT_TOKENS,
                "total_tokens": IN_TOKENS + OUT_TOKENS,
            },
            response_metadata={"model_name": "m", "model_provider": "scripted"},
        )
        return ChatResult(generations=[ChatGeneration(message=answer)])


def _graph_calls(wanted: Call | str, place: int) -> list[Any]:
    if isinstance(wanted, str):
        return []
    return [{"name": wanted.tool, "args": wanted.arguments, "id": f"c{place}"}]


@tool("refund")
async def graph_refund(order: str) -> str:
    """Refund an order after an approval."""
    if not interrupt({"approve": "Call refund?", "artifact": {"order": order}}):
        return "refused"
    return await refund(order)


async def _ask(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await GraphModel().ainvoke(state["messages"])]}


def _ask_in_a_thread(state: MessagesState) -> dict[str, Any]:
    return {"messages": [GraphModel().invoke(state["messages"])]}


def graph_desk(name: str = "acme.desk.graph", ask: Any = _ask) -> WrappedAgent:
    """Return the desk as a graph."""
    plain = [
        StructuredTool.from_function(coroutine=each) for each in (look_up, break_down, be_slow)
    ]
    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_node("tools", ToolNode([graph_refund, *plain]))
    builder.add_edge(START, "ask")
    builder.add_conditional_edges("ask", tools_condition)
    builder.add_edge("tools", "ask")
    return on_record(name, builder.compile())


flow = desk_flow("desk-langgraph", graph_desk())
threads_flow = desk_flow("desk-threads", graph_desk("acme.desk.threads", _ask_in_a_thread))
