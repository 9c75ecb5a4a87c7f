"""A replay of any run from any event has the same log, byte for byte."""

from __future__ import annotations

import tempfile
from pathlib import Path

import anyio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fault.forking import ENDED, WAITING, answer, forked, log_content
from tests.support.definitions import edge, fresh, node, workflow
from tests.support.in_process import (
    DEADLINE_SECONDS,
    NOON,
    TENANT,
    Bench,
    Clock,
    bench,
    numbered,
)
from wopr.engine.outcome import Completed, NodeFailure
from wopr.engine.state import RunState
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import WoprError

APPROVAL = {"title": "May it?", "actions": ["accept", "reject"]}
RETRYING = {"maxRetries": 2, "backoff": {"initialMs": 2}}
CONDITIONS = ("", "", "", "true", "false", "variables.x == 1", "nodes.absent.ok")


class Ticking(Clock):
    """A clock that returns a later time at each call."""

    def __call__(self) -> int:
        self.now += 1
        return self.now


class Outside:
    """Effects with different outcomes, some of which fail."""

    def __init__(self) -> None:
        self.calls = 0

    def types(self) -> tuple[NodeType, ...]:
        async def effect(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
            self.calls += 1
            ctx.log("info", f"call {self.calls}")
            ctx.set_variable("x", self.calls)
            return Completed({"number": self.calls, "at": ctx.now})

        async def flaky(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
            self.calls += 1
            if ctx.attempt < config["failures"]:
                raise NodeFailure(f"call {self.calls} fails", code="http_error")
            return Completed({"number": self.calls})

        return (
            NodeType(type_id="test.effect", execute=effect, is_async=True),
            NodeType(type_id="test.flaky", execute=flaky, is_async=True),
        )


@st.composite
def agents(draw: st.DrawFn) -> JsonObject:
    """Generate the script of a mock agent."""
    script: JsonObject = {}
    if draw(st.booleans()):
        chunks = draw(st.lists(st.text("abc ", min_size=1, max_size=4), max_size=3))
        script["mockReasoning"] = {"summary": draw(st.text(max_size=12)), "streamChunks": chunks}
    if draw(st.booleans()):
        script["mockToolCalls"] = [{"toolId": "t", "arguments": {"a": 1}, "result": {"b": 2}}]
    if draw(st.booleans()):
        script["mockDecision"] = {
            "decision": {"kind": draw(st.sampled_from(["go", "stop"]))},
            "confidence": draw(st.sampled_from([0.2, 0.9, 1.0])),
        }
    return script


@st.composite
def nodes(draw: st.DrawFn, name: str) -> JsonObject:
    """Generate a node: pure, agent, effect, or one that waits for a person."""
    kind = draw(st.integers(0, 8))
    match kind:
        case 0:
            value = draw(st.one_of(st.integers(0, 3), st.text(max_size=5), st.none()))
            return node(name, "core.setVariable", config={"name": "x", "value": value})
        case 1:
            config = {"channelName": "c", "value": draw(st.integers(0, 9)), "reducer": "append"}
            return node(name, "core.channelWrite", config=config)
        case 2:
            return node(name, "core.delay", config={"ms": draw(st.integers(0, 3))})
        case 3:
            return node(name, "core.approvalGate", config=APPROVAL)
        case 4:
            return node(name, "test.effect")
        case 5:
            failures = draw(st.integers(0, 3))
            return node(name, "test.flaky", config={"failures": failures}, settings=RETRYING)
        case 6 | 7:
            return node(name, "core.conformance.mock-agent", config=draw(agents()))
        case _:
            return node(name)


@st.composite
def definitions(draw: st.DrawFn) -> JsonObject:
    """Generate a workflow of a few nodes, each after some earlier ones."""
    names = [f"n{number}" for number in range(draw(st.integers(1, 6)))]
    edges = {
        (source, name): draw(st.sampled_from(CONDITIONS))
        for index, name in enumerate(names)
        for source in draw(
            st.sets(st.sampled_from(names[:index]), max_size=2) if index else st.just(set())
        )
    }
    return workflow(
        [draw(nodes(name)) for name in names],
        id=fresh("conformance"),
        edges=[
            edge(source, name, **({"condition": {"expression": text}} if text else {}))
            for (source, name), text in edges.items()
        ],
        variables=[{"name": "x", "type": "number", "defaultValue": 0}],
    )


async def run_to_its_end(ours: Bench, workflow_id: str) -> str:
    """Run a workflow, and approve its waits."""
    run_id = await ours.create(workflow_id)
    with anyio.fail_after(DEADLINE_SECONDS):
        while (status := (await ours.row(run_id)).status) not in ENDED:
            if status in WAITING:
                await approve(ours, run_id)
            await anyio.sleep(0.001)
    return run_id


async def approve(ours: Bench, run_id: str) -> None:
    state = await folded(ours, run_id)
    for name, found in state.nodes.items():
        if found.status == "suspended":
            await answer(ours, run_id, name, {"action": "accept"})
            return


async def folded(ours: Bench, run_id: str) -> RunState:
    """Return the folded log of a run."""
    run = await ours.host.advancer.journal.load(TENANT, run_id)
    assert run is not None
    return run.state


def results_of(state: RunState) -> JsonObject:
    """Return the results of a run without times."""
    return {
        "status": state.status,
        "outputs": state.outputs,
        "variables": state.variables,
        "channels": state.channels,
        "error": state.error,
        "nodes": {name: (n.status, n.outputs, n.attempt) for name, n in state.nodes.items()},
    }


async def check(definition: JsonObject, folder: Path) -> None:
    outside = Outside()
    clock = Ticking()
    async with bench(folder, *outside.types(), clock=clock, new_id=numbered()) as ours:
        try:
            await ours.host.library.register(TENANT, definition)
        except WoprError:
            return
        source = await run_to_its_end(ours, definition["id"])
        original, performed = await log_content(ours, source), outside.calls
        end = results_of(await folded(ours, source))

        for start in range(len(original) + 1):
            replay = await forked(ours, source, from_seq=start)
            assert await log_content(ours, replay) == original, start
            assert results_of(await folded(ours, replay)) == end

        assert outside.calls == performed
        assert clock.now > NOON


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(definitions())
def test_a_replay_from_any_event_repeats_the_log(definition: JsonObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(check, definition, Path(folder))


def test_steps_planned_together_are_not_planned_again_from_between_them(tmp_path: Path) -> None:
    nodes = [
        node("effect", "test.effect"),
        node("forget", "core.setVariable", config={"name": "x", "value": None}),
        node("note", "core.channelWrite", config={"channelName": "c", "value": 1}),
    ]
    # When both are planned the condition holds; once the first has run it no longer does.
    holds = {"expression": "variables.x == 1"}
    edges = [edge("effect", "forget"), edge("effect", "note", condition=holds)]
    x = {"name": "x", "type": "number", "defaultValue": 0}

    anyio.run(check, workflow(nodes, edges=edges, variables=[x]), tmp_path)
