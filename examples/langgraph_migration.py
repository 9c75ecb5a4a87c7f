"""From LangGraph to the record: the graph stays as it is, and one wrapper makes it a node.

    python examples/langgraph_migration.py "Where is A-17?"
    wopr dev examples/langgraph_migration.py
    wopr run support-graph -i question="Where is A-17?" --follow
    wopr inbox list

Before, whoever calls the graph keeps its checkpoints and finds out that it waits. After, the pause
stands in the inbox and outlives the process, every model and tool call is on the log, and a run can
be replayed and forked. It needs `pip install "wopr[langgraph]"`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, TypedDict

import anyio
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from wopr import Workflow
from wopr.adapters.langgraph import on_record

# Stands in for a model, so that the example runs without a key; put any chat model here.
MODEL: BaseChatModel = FakeListChatModel(responses=["It is on its way since Monday."])
ORDERS = {"A-17": "on its way since Monday"}


# The graph, as it was before.


class Support(TypedDict, total=False):
    """What the graph knows about a question."""

    question: str
    order: str
    draft: str
    reply: str


@tool
async def find_order(question: str) -> str:
    """Find what is known of the order that a question names."""
    found = [state for number, state in ORDERS.items() if number in question]
    return found[0] if found else "unknown"


async def look_up(state: Support) -> Support:
    """Find the order."""
    return {"order": await find_order.ainvoke({"question": state["question"]})}


async def write(state: Support) -> Support:
    """Write a reply."""
    told = f"Answer in one sentence.\nQuestion: {state['question']}\nOrder: {state['order']}"
    return {"draft": str((await MODEL.ainvoke([HumanMessage(told)])).text)}


def review(state: Support) -> Support:
    """Let a person look at the reply before it is sent."""
    may_go = interrupt({"approve": "Send this reply?", "artifact": state["draft"]})
    return {"reply": state["draft"] if may_go else "We will call you."}


builder = StateGraph(Support)
builder.add_sequence([look_up, write, review])
builder.add_edge(START, "look_up")


async def before(question: str) -> str:
    """Run the graph by itself: its state lives as long as this process."""
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "one"}}
    paused = await graph.ainvoke({"question": question}, config)
    print(paused["__interrupt__"][0].value)
    done = await graph.ainvoke(Command(resume=True), config)
    return str(done["reply"])


# The same graph, on the record.


@dataclass
class Question:
    """What a customer asks."""

    question: str


@dataclass
class Reply:
    """What the customer gets."""

    reply: str


support = on_record("acme.support.graph", builder.compile())

flow = Workflow("support-graph", inputs=Question, outputs=Reply)
answer = flow.add("answer", support, question=flow.inputs.question)
end = flow.end(reply=answer["reply"])
answer >> end


if __name__ == "__main__":
    [asked] = sys.argv[1:] or ["Where is A-17?"]
    print(anyio.run(before, asked))
