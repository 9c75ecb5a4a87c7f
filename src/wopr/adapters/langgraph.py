"""LangGraph: a compiled graph as a node of a workflow, on the record.

    support = on_record("acme.support.graph", graph)
    answer = flow.add("answer", support, prompt=flow.inputs.text)

The graph's steps are kept as LangGraph's own checkpoints, in the run's record: a host that was
killed goes on after the last step. `interrupt()` waits in the inbox.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Final, cast

from wopr.adapters.asks import Answer
from wopr.adapters.plain import not_installed, plain
from wopr.adapters.session import Session
from wopr.adapters.steps import Ask, Done, Going, Paused
from wopr.adapters.wrapping import OnRecord, require
from wopr.engine.expression_tokens import is_list
from wopr.engine.outcome import NodeFailure
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.manifests import ManifestModelClass

try:
    from langchain_core.messages import BaseMessage, convert_to_openai_messages
    from langchain_core.runnables import RunnableConfig
    from langgraph.channels import DeltaChannel
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.pregel import Pregel
    from langgraph.types import Command, StateSnapshot

    from wopr.adapters.langgraph_asks import asks_of, resume_of
    from wopr.adapters.langgraph_facts import GraphFacts, ModelGate
    from wopr.adapters.langgraph_state import export, prune, restored
except ModuleNotFoundError as missing:
    raise not_installed("LangGraph", "langgraph", missing) from missing

_MESSAGES: Final = "messages"
_STRUCTURED: Final = "structured_response"
_NOTHING_YET: Final = ""


def on_record(
    name: str,
    graph: Pregel[Any, Any, Any, Any],
    *,
    config: RunnableConfig | None = None,
    context: object = None,
    threshold: float | None = None,
    description: str = "",
    model_class: ManifestModelClass = "general",
) -> OnRecord:
    """Put a compiled graph on the record.

    A node's inputs are the graph's input; text given as `prompt` is a user's message where the
    graph has messages and no `prompt`. The outputs are the graph's, and `text`, the last message.
    With a `threshold` an output `confidence` below it waits for a person. `config` and `context`
    are the graph's own; its checkpointer is the run's record.
    """
    require(name, graph, Pregel, "a compiled graph, such as builder.compile()")
    return OnRecord(
        name,
        _Graph(graph, config or {}, context),
        threshold=threshold,
        description=description,
        model_class=model_class,
    )


class _Graph:
    """A graph as a framework at work."""

    name = "langgraph"
    # Tools are nodes of the graph or hidden in them; nobody can list them.
    tools: Sequence[str] = ()

    def __init__(
        self, graph: Pregel[Any, Any, Any, Any], config: RunnableConfig, context: object
    ) -> None:
        self.about = f"A LangGraph graph with the nodes {', '.join(_nodes(graph))}"
        # What its generic parts are of is its author's affair.
        self._graph: Any = graph
        self._config = config
        self._context = context
        self._subgraphs = {str(name) for name, _ in self._graph.get_subgraphs()}
        self._may_forget = not _has_deltas(self._graph)

    async def begin(self, session: Session, inputs: JsonObject) -> Paused | Done:
        """Run the graph from its start."""
        return await self._run(session, InMemorySaver(), self._input(inputs), _NOTHING_YET)

    async def go_on(
        self, session: Session, state: Json, answers: Sequence[Answer] | None
    ) -> Paused | Done:
        """Run the graph from a checkpoint, with what people answered to its interrupts."""
        thread: JsonObject = state
        saver = restored(thread["graph"], session.thread_id)
        wanted = None if answers is None else _resumption(thread["interrupts"], answers)
        return await self._run(session, saver, wanted, _newest(saver, session.thread_id))

    async def _run(
        self, session: Session, saver: InMemorySaver, given: Any, seen: str
    ) -> Paused | Done:
        graph = self._graph.copy(update={"checkpointer": saver})
        config = self._configured(session)
        chunks = graph.astream(
            given, config, context=self._context, stream_mode="values", durability="sync"
        )
        async with aclosing(chunks) as steps:
            async for _ in steps:
                seen = await self._keep(session, saver, seen)
        found = await graph.aget_state(config)
        if found.interrupts or found.next:
            return _paused(found, export(saver, session.thread_id))
        return self._done(found)

    async def _keep(self, session: Session, saver: InMemorySaver, seen: str) -> str:
        """Keep the checkpoint of a step that is over; the input alone is no step."""
        newest = _newest(saver, session.thread_id)
        if newest in (seen, _NOTHING_YET):
            return newest
        if seen != _NOTHING_YET:
            if self._may_forget:
                prune(saver, session.thread_id)
            state: JsonObject = {"graph": export(saver, session.thread_id), "interrupts": []}
            await session.keep(Going(state=state))
        return newest

    def _configured(self, session: Session) -> RunnableConfig:
        own = self._config
        callbacks: Any = own.get("callbacks") or []
        own_handlers = (GraphFacts(session, self._subgraphs), ModelGate(session))
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
        said = {"role": "user", "content": inputs["prompt"]}
        return others | {_MESSAGES: [*inputs.get(_MESSAGES, []), said]}

    def _done(self, found: StateSnapshot) -> Done:
        values: Any = found.values
        if not isinstance(values, dict):
            return Done(decision=plain(values))
        state = cast("dict[str, object]", values)
        shown = self._graph.output_channels
        if not isinstance(shown, str):
            state = {name: state[name] for name in shown if name in state}
        return _outcome({name: _told(value) for name, value in state.items()}, state)


def _outcome(outputs: JsonObject, state: dict[str, object]) -> Done:
    """What the graph decided: its structured response, its values, or its last message."""
    messages: Json = state.get(_MESSAGES)
    last: object = messages[-1] if is_list(messages) and messages else None
    said = {"text": str(last.text)} if isinstance(last, BaseMessage) else {}
    values = {name: value for name, value in outputs.items() if name != _MESSAGES}
    if _STRUCTURED in values:
        return Done(decision=values[_STRUCTURED], outputs=said | outputs, place=_STRUCTURED)
    if values or not said:
        return Done(decision=values, outputs=said | outputs, place="")
    return Done(decision=said["text"], outputs=outputs, place="text")


def _told(value: object) -> Json:
    """A value of the state as JSON; messages as everybody knows them."""
    given: Json = value
    items: list[Json] = given if is_list(given) else []
    if items and all(isinstance(item, BaseMessage) for item in items):
        return plain(convert_to_openai_messages(items))
    return plain(value)


def _paused(found: StateSnapshot, graph: Json) -> Paused:
    """The waits of an interrupted graph; a breakpoint that was set on a node is an approval."""
    interrupts: list[JsonObject] = [
        {"id": each.id, "value": plain(each.value)} for each in found.interrupts
    ]
    asks = [ask for each in interrupts for ask in asks_of(each["value"])]
    if not interrupts:
        shown = {name: _told(value) for name, value in cast("JsonObject", found.values).items()}
        text = f"Go on with {', '.join(found.next)}?"
        asks = [Ask(kind="approval", text=text, artifact=shown)]
    return Paused(state={"graph": graph, "interrupts": interrupts}, asks=asks)


def _resumption(interrupts: list[JsonObject], answers: Sequence[Answer]) -> Command[Any] | None:
    """What the graph is resumed with: by interrupt, what people said to it."""
    if not interrupts:
        if not all(answer.is_granted for answer in answers):
            raise NodeFailure(
                "a person stopped the graph", code="interrupt_rejected", retryable=False
            )
        return None
    left = list(answers)
    resumed: dict[str, Json] = {}
    for each in interrupts:
        count = len(asks_of(each["value"]))
        resumed[each["id"]] = resume_of(each["value"], left[:count])
        del left[:count]
    return Command(resume=resumed)


def _newest(saver: InMemorySaver, thread: str) -> str:
    return max(saver.storage[thread][""], default=_NOTHING_YET)


def _nodes(graph: Pregel[Any, Any, Any, Any]) -> list[str]:
    return [name for name in graph.nodes if not name.startswith("__")]


def _has_deltas(graph: Any) -> bool:
    """Whether a value is the sum of all checkpoints, so that none may be forgotten."""
    graphs: list[Any] = [graph, *(part for _, part in graph.get_subgraphs(recurse=True))]
    channels = [channel for each in graphs for channel in getattr(each, "channels", {}).values()]
    return any(isinstance(channel, DeltaChannel) for channel in channels)
