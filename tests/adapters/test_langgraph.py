"""Features of LangGraph only: interrupts, subgraphs, synchronous nodes and checkpoints."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from tests.adapters.graph_desk import GraphModel
from tests.adapters.script import SECRET, traced, traces
from tests.adapters.test_wrapped_agents import payloads
from wopr import RunFailed, Workflow
from wopr.adapters.langgraph import on_record
from wopr.adapters.langgraph_state import export_thread, restore_thread
from wopr.adapters.wrapper import WrappedAgent
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.workflow import NodeSettings, RetryPolicy
from wopr.security.redact import Redactor
from wopr.testing import memory_host

pytestmark = pytest.mark.anyio


class Notes(TypedDict, total=False):
    """The state of the small graphs of these tests."""

    topic: str
    notes: Annotated[list[str], operator.add]
    confidence: float


def one_node(function: Any, **options: Any) -> WrappedAgent:
    builder = StateGraph(Notes)
    builder.add_node("work", function)
    builder.add_edge(START, "work")
    return on_record("acme.notes.graph", builder.compile(), **options)


def flow_of(graph: WrappedAgent, **inputs: object) -> Workflow[JsonObject, JsonObject]:
    flow = Workflow("notes")
    flow.node("work", graph, None, inputs)
    return flow


async def outputs_after(flow: Workflow[JsonObject, JsonObject], *answers: Json) -> JsonObject:
    """Return the outputs of the graph's node after these answers to its waits."""
    async with memory_host(flow) as host:
        run = await host.start(flow)
        for answer in answers:
            await run.settled()
            await run.answer(answer)
        outputs: JsonObject = (await run.result())["work"]
        return outputs


async def test_a_question_waits_as_a_clarification_and_receives_its_answer() -> None:
    def ask(state: Notes) -> Notes:
        return {"notes": [interrupt({"question": "Which year?", "about": state["topic"]})]}

    flow = flow_of(one_node(ask), topic="trains")

    async with memory_host(flow) as host:
        run = await host.start(flow)
        waiting = await run.settled()
        [wait] = await run.waits()
        await run.answer({"answers": {"answer": "1869"}})
        outputs = await run.result()

    assert waiting.status == "waiting-input"
    assert wait.question == 'Which year?\n\n{"about":"trains"}'
    assert outputs["work"]["notes"] == ["1869"]


async def test_interrupts_of_one_step_are_asked_one_at_a_time() -> None:
    builder = StateGraph(Notes)
    builder.add_node("first", lambda state: {"notes": [interrupt("First?")]})
    builder.add_node("second", lambda state: {"notes": [interrupt("Second?")]})
    builder.add_edge(START, "first")
    builder.add_edge(START, "second")
    flow = flow_of(on_record("acme.notes.graph", builder.compile()), topic="trains")

    outputs = await outputs_after(
        flow, {"answers": {"answer": "one"}}, {"answers": {"answer": "two"}}
    )

    assert outputs["notes"] == ["one", "two"]


async def test_repeating_a_question_needs_a_second_answer() -> None:
    def ask(state: Notes) -> Notes:
        return {"notes": [str(interrupt({"approve": "Pay?"})) for _ in range(2)]}

    flow = flow_of(one_node(ask), topic="trains")

    outputs = await outputs_after(flow, {"action": "accept"}, {"action": "reject"})

    assert outputs["notes"] == ["True", "False"]


async def test_tool_calls_of_the_middleware_are_approved_one_by_one() -> None:
    def review(state: Notes) -> Notes:
        calls = [{"name": "pay", "args": {"sum": 5}}, {"name": "mail", "args": {"to": "ada"}}]
        allowed = ["approve", "edit", "reject"]
        configs = [{"action_name": each["name"], "allowed_decisions": allowed} for each in calls]
        said = interrupt({"action_requests": calls, "review_configs": configs})
        return {"notes": [str(each) for each in said["decisions"]]}

    flow = flow_of(one_node(review), topic="trains")
    edited = {"action": "edit-accept", "editedArtifactData": {"sum": 4}}

    outputs = await outputs_after(flow, edited, {"action": "reject", "feedback": "no mail"})

    assert outputs["notes"] == [
        str({"type": "edit", "edited_action": {"name": "pay", "args": {"sum": 4}}}),
        str({"type": "reject", "message": "no mail"}),
    ]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"action": "accept"}, "True"),
        ({"action": "reject"}, "False"),
        ({"action": "edit-accept", "editedArtifactData": "mine"}, "mine"),
    ],
)
async def test_an_approval_returns_yes_no_or_the_edited_version(
    answer: Json, expected: str
) -> None:
    actions = ["accept", "reject", "edit-accept"]

    def ask(state: Notes) -> Notes:
        asked = {"approve": "Print?", "artifact": "draft", "actions": actions}
        return {"notes": [str(interrupt(asked))]}

    outputs = await outputs_after(flow_of(one_node(ask), topic="trains"), answer)

    assert outputs["notes"] == [expected]


@pytest.mark.parametrize(("answer", "code"), [("accept", ""), ("reject", "interrupt_rejected")])
async def test_a_breakpoint_on_a_node_is_an_approval(answer: str, code: str) -> None:
    builder = StateGraph(Notes)
    builder.add_node("work", lambda state: {"notes": ["done"]})
    builder.add_edge(START, "work")
    graph = builder.compile(interrupt_before=["work"], checkpointer=InMemorySaver())
    flow = flow_of(on_record("acme.notes.graph", graph), topic="trains")

    async with memory_host(flow) as host:
        run = await host.start(flow)
        await run.settled()
        [wait] = await run.waits()
        await run.answer(answer)
        failed = ""
        try:
            await run.result()
        except RunFailed as failure:
            failed = failure.code

    assert wait.question == "Continue with work?"
    assert failed == code


async def test_subgraphs_are_agents_that_hand_off_to_each_other() -> None:
    def writer(note: str, to: str) -> Any:
        async def write(state: MessagesState) -> Any:
            await GraphModel().ainvoke([HumanMessage(note)])
            said = {"messages": [AIMessage(note)]}
            return Command(goto=to, graph=Command.PARENT, update=said) if to else said

        inner = StateGraph(MessagesState)
        inner.add_node("write", write)
        inner.add_edge(START, "write")
        return inner.compile()

    builder = StateGraph(MessagesState)
    builder.add_node("finder", writer("found", "author"), destinations=("author",))
    builder.add_node("author", writer("written", ""))
    builder.add_edge(START, "finder")
    crew = on_record("acme.crew.graph", builder.compile())
    flow = flow_of(crew, prompt="Why is it blue?")

    async with memory_host(flow) as host:
        run = await host.start(flow)
        outputs = await run.result()
        log = await run.log()

    names = [crew.id, f"{crew.id}.finder", f"{crew.id}.author"]
    handed = [(each["fromAgentId"], each["toAgentId"]) for each in payloads(log, "agent.handoff")]
    assert outputs["work"]["text"] == "written"
    assert handed == [(names[0], names[1]), (names[1], names[2])]


@tool
def weigh(thing: str) -> str:
    """Weigh a thing."""
    traced("weigh")
    return f"{thing}: 5 kg"


async def test_synchronous_nodes_and_tools_are_logged_too() -> None:
    def work(state: Notes) -> Notes:
        answer = GraphModel().invoke("weigh it")
        return {"notes": [str(answer.content), weigh.invoke({"thing": "parcel"})]}

    flow = flow_of(one_node(work), topic="trains")

    async with memory_host(flow) as host:
        run = await host.start(flow)
        outputs = await run.result()
        log = await run.log()

    assert outputs["work"]["notes"] == ["Heard: weigh it", "parcel: 5 kg"]
    assert len(payloads(log, "provider.usage")) == 1
    [called], [returned] = payloads(log, "agent.toolCalled"), payloads(log, "agent.toolReturned")
    assert (called["toolName"], called["inputs"]) == ("weigh", {"thing": "parcel"})
    assert returned["outcome"] == "parcel: 5 kg"


async def test_a_synchronous_call_inside_an_asynchronous_node_does_not_block_the_host() -> None:
    async def work(state: Notes) -> Notes:
        return {"notes": [weigh.invoke({"thing": "parcel"})]}

    flow = flow_of(one_node(work), topic="trains")

    async with memory_host(flow) as host:
        run = await host.start(flow)
        await run.result()
        log = await run.log()

    assert len(payloads(log, "agent.toolReturned")) == 1


async def test_an_unsure_graph_waits_for_a_person_whose_decision_is_final() -> None:
    unsure = one_node(lambda state: {"notes": ["steam"], "confidence": 0.4}, threshold=0.8)
    flow = flow_of(unsure, topic="trains")

    async with memory_host(flow) as host:
        run = await host.start(flow)
        await run.settled()
        [wait] = await run.waits()
        await run.answer({"decision": {"notes": ["electric"], "confidence": 1.0}})
        outputs = await run.result()

    assert (wait.kind, wait.data["observed"]) == ("low-confidence", 0.4)
    assert outputs["work"]["notes"] == ["electric"]


async def test_a_yes_counts_only_for_the_decision_it_was_given_to() -> None:
    def decide(state: Notes) -> Notes:
        traced("decided")
        return {"notes": [f"{len(traces())}"], "confidence": 0.4}

    flow = flow_of(one_node(decide, threshold=0.8), topic="trains")

    async with memory_host(flow) as host:
        run = await host.start(flow)
        await run.settled()
        branch = await run.fork(after=len(await run.log()) - 1)
        await branch.settled()
        await branch.answer({"action": "accept"})
        await branch.settled()
        [asked_again] = await branch.waits()

    assert asked_again.data["decision"]["notes"] == ["2"]


async def test_an_answer_counts_only_for_the_question_it_was_given_to() -> None:
    def ask(state: Notes) -> Notes:
        traced("asked")
        return {"notes": [str(interrupt({"approve": f"Pay {len(traces())}?"}))]}

    flow = flow_of(one_node(ask), topic="trains")

    async with memory_host(flow) as host:
        run = await host.start(flow)
        await run.settled()
        [wait] = await run.waits()
        waiting_since = len(await run.log()) - 1
        branch = await run.fork(after=waiting_since)
        await branch.settled()
        await branch.answer("accept")
        await branch.settled()
        [asked_again] = await branch.waits()

    # The branch repeats the work and reaches another question, which has no answer.
    assert wait.question == "Pay 1?"
    assert asked_again.question == "Pay 2?"


async def test_a_failed_step_is_retried_from_the_last_checkpoint() -> None:
    def once(state: Notes) -> Notes:
        traced("first")
        return {"notes": ["first"]}

    def fails_once(state: Notes) -> Notes:
        traced("second")
        if traces().count("second") == 1:
            raise ValueError("not yet")
        return {"notes": ["second"]}

    builder = StateGraph(Notes)
    builder.add_sequence([("one", once), ("two", fails_once)])
    builder.add_edge(START, "one")
    flow = Workflow("notes")
    settings = NodeSettings(max_retries=1, backoff=RetryPolicy(initial_ms=1))
    graph = on_record("acme.notes.graph", builder.compile())
    flow.add("work", graph, settings=settings, topic="trains")

    async with memory_host(flow) as host:
        run = await host.start(flow)
        outputs = await run.result()

    assert outputs["work"]["notes"] == ["first", "second"]
    assert traces() == ["first", "second", "second"]


class Anything(TypedDict):
    """A state that stores any value."""

    values: dict[str, Any]


@dataclass
class Parcel:
    """A value type of the graph's author."""

    weight: float


async def test_a_checkpoint_of_any_content_survives_json() -> None:
    values = {
        "text": "plain",
        "not a number": float("inf"),
        "bytes": b"\x00\xff",
        "when": datetime(2026, 1, 1, tzinfo=UTC),
        "pairs": {1: "one", (2, 3): "two"},
        "set": {"a"},
        "own": Parcel(5.0),
        "mark": {"$ext": "not one"},
        "messages": [HumanMessage("hello", id="1")],
    }
    builder = StateGraph(Anything)
    builder.add_node("work", lambda state: {"values": {"seen": interrupt("Go on?")}})
    builder.add_edge(START, "work")
    saver = InMemorySaver()
    config: Any = {"configurable": {"thread_id": "t"}}
    await builder.compile(checkpointer=saver).ainvoke({"values": values}, config)

    again = restore_thread(export_thread(saver, "t"), "t")

    assert again.blobs == saver.blobs
    assert again.writes == saver.writes
    assert again.storage == saver.storage


async def test_secrets_are_redacted_inside_a_checkpoint() -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("work", lambda state: {"messages": [AIMessage("ok")]})
    builder.add_edge(START, "work")
    saver = InMemorySaver()
    graph = builder.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "t"}}
    await graph.ainvoke({"messages": [HumanMessage(f"my key is {SECRET}")]}, config)

    kept: JsonObject = Redactor().json(export_thread(saver, "t"))
    again = graph.copy(update={"checkpointer": restore_thread(kept, "t")})
    state = await again.aget_state(config)

    assert SECRET not in str(kept)
    assert state.values["messages"][0].content == "my key is [REDACTED]"
