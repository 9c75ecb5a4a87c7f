"""A LangGraph graph as a node: one wrapper, and the graph itself does not change.

    python examples/langgraph_migration.py "Where is A-17?"
    wopr dev examples/langgraph_migration.py
    wopr run support-graph -i question="Where is A-17?" --follow
    wopr inbox list

Without WOPR, the caller of the graph stores its checkpoints and must check whether it waits. With
WOPR, a waiting graph is in the inbox and survives a restart, every model call and tool call is on
the log, and a run can be replayed and forked. The example needs `pip install ".[langgraph]"` in the
directory of this project.
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

# A fake model, so that the example runs without a key. Replace it with any chat model.
MODEL: BaseChatModel = FakeListChatModel(responses=["It is on its way since Monday."])
ORDERS = {"A-17": "on its way since Monday"}


# The graph.


class Support(TypedDict, total=False):
    """The state of the graph."""

    question: str
    order: str
    draft: str
    reply: str


@tool
async def find_order(question: str) -> str:
    """Return the state of the order that a question names."""
    found = [state for number, state in ORDERS.items() if number in question]
    return found[0] if found else "unknown"


async def look_up(state: Support) -> Support:
    """Look up the order."""
    return {"order": await find_order.ainvoke({"question": state["question"]})}


async def write(state: Support) -> Support:
    """Write a reply."""
    request = f"Answer in one sentence.\nQuestion: {state['question']}\nOrder: {state['order']}"
    return {"draft": str((await MODEL.ainvoke([HumanMessage(request)])).text)}


def review(state: Support) -> Support:
    """Ask a person to approve the reply before it is sent."""
    is_approved = interrupt({"approve": "Send this reply?", "artifact": state["draft"]})
    return {"reply": state["draft"] if is_approved else "We will call you."}


builder = StateGraph(Support)
builder.add_sequence([look_up, write, review])
builder.add_edge(START, "look_up")


async def run_without_wopr(question: str) -> str:
    """Run the graph alone. Its state is lost when this process ends."""
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "one"}}
    paused = await graph.ainvoke({"question": question}, config)
    print(paused["__interrupt__"][0].value)
    done = await graph.ainvoke(Command(resume=True), config)
    return str(done["reply"])


# The same graph as a node of a workflow.


@dataclass
class Question:
    """A question of a customer."""

    question: str


@dataclass
class Reply:
    """The reply to the customer."""

    reply: str


support = on_record("acme.support.graph", builder.compile())

flow = Workflow("support-graph", inputs=Question, outputs=Reply)
answer = flow.add("answer", support, question=flow.inputs.question)
end = flow.end(reply=answer["reply"])
answer >> end


if __name__ == "__main__":
    [asked] = sys.argv[1:] or ["Where is A-17?"]
    print(anyio.run(run_without_wopr, asked))
