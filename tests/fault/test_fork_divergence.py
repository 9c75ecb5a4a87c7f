"""A replay that differs says so, once, and goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fault.forking import ended, forked
from tests.fault.inprocess import TENANT, Bench, bench, numbered
from tests.wire.definitions import node
from wopr.engine.outcome import Completed
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import JsonObject
from wopr.protocol.events import RunEvent

pytestmark = pytest.mark.anyio


class Mind:
    """A node type that changes what it does from one release to the next."""

    def __init__(self) -> None:
        self.says: JsonObject = {"answer": 42}
        self.logs = 0

    def node_type(self) -> NodeType:
        def speak(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
            for number in range(self.logs):
                ctx.log("info", f"line {number}")
            return Completed(dict(self.says))

        return NodeType(type_id="test.mind", execute=speak)


@pytest.fixture
def mind() -> Mind:
    return Mind()


@pytest.fixture
async def ours(tmp_path: Path, mind: Mind) -> AsyncIterator[Bench]:
    async with bench(tmp_path, mind.node_type(), new_id=numbered()) as running:
        yield running


async def divergences(ours: Bench, run_id: str) -> list[RunEvent]:
    return [event for event in await ours.log(run_id) if event.type == "replay.diverged"]


async def test_another_output_is_reported_where_it_came_and_the_replay_goes_on(
    ours: Bench, mind: Mind
) -> None:
    workflow = await ours.register([node("think", "test.mind"), node("b"), node("c")])
    source = await ended(ours, workflow)
    mind.says = {"answer": 43}

    replay = await forked(ours, source)

    [diverged] = await divergences(ours, replay)
    original = next(e for e in await ours.log(source) if e.type == "node.completed")
    assert diverged.payload == {
        "sourceRunId": source,
        "atSequence": original.sequence,
        "originalEventId": original.event_id,
        "divergenceKind": "output",
    }
    assert (await ours.row(replay)).status == "completed"
    assert (await ours.loaded(replay)).state.nodes["think"].outputs == {"answer": 43}


async def test_an_event_that_no_longer_comes_is_reported_as_another_type(
    ours: Bench, mind: Mind
) -> None:
    mind.logs = 2
    workflow = await ours.register([node("think", "test.mind"), node("b")])
    source = await ended(ours, workflow)
    mind.logs = 1

    replay = await forked(ours, source)

    [diverged] = await divergences(ours, replay)
    assert diverged.payload["divergenceKind"] == "type-mismatch"
    assert diverged.payload["atSequence"] == 3
    assert (await ours.row(replay)).status == "completed"


async def test_an_event_that_comes_in_addition_is_reported(ours: Bench, mind: Mind) -> None:
    workflow = await ours.register([node("think", "test.mind"), node("b")])
    source = await ended(ours, workflow)
    mind.logs = 1

    replay = await forked(ours, source)

    [diverged] = await divergences(ours, replay)
    assert diverged.payload["divergenceKind"] == "type-mismatch"
    assert (await ours.row(replay)).status == "completed"


async def test_a_replay_that_differs_from_a_given_event_on_only_reports_what_it_worked_out(
    ours: Bench, mind: Mind
) -> None:
    workflow = await ours.register([node("think", "test.mind"), node("again", "test.mind")])
    source = await ended(ours, workflow)
    first = next(e for e in await ours.log(source) if e.type == "node.completed")
    mind.says = {"answer": 43}

    replay = await forked(ours, source, from_seq=first.sequence + 1)

    [diverged] = await divergences(ours, replay)
    assert diverged.payload["atSequence"] > first.sequence
    assert (await ours.loaded(replay)).state.nodes["think"].outputs == {"answer": 42}
    assert (await ours.loaded(replay)).state.nodes["again"].outputs == {"answer": 43}


async def test_a_replay_of_a_replay_that_differed_compares_with_what_that_said(
    ours: Bench, mind: Mind
) -> None:
    workflow = await ours.register([node("think", "test.mind"), node("b")])
    source = await ended(ours, workflow)
    mind.says = {"answer": 43}
    replay = await forked(ours, source)

    again = await forked(ours, replay)

    assert await divergences(ours, again) == []


async def test_nothing_is_reported_when_nothing_changed(ours: Bench) -> None:
    workflow = await ours.register([node("think", "test.mind"), node("b")])
    source = await ended(ours, workflow)

    replay = await forked(ours, source)

    assert await divergences(ours, replay) == []


async def test_a_replay_goes_on_where_its_source_was_cancelled_and_says_so(ours: Bench) -> None:
    wait = node("wait", "core.delay", config={"ms": 50_000})
    source = await ours.create(await ours.register([wait, node("b")]))
    await ours.until_logged(source, "node.started")
    await ours.host.commands.cancel(TENANT, source, "enough")

    replay = await forked(ours, source)

    [diverged] = await divergences(ours, replay)
    cancelled = next(e for e in await ours.log(source) if e.type == "node.cancelled")
    assert diverged.payload == {
        "sourceRunId": source,
        "atSequence": cancelled.sequence,
        "originalEventId": cancelled.event_id,
        "divergenceKind": "type-mismatch",
    }
    assert (await ours.log(replay))[cancelled.sequence].type == "node.completed"
    assert (await ours.row(replay)).status == "completed"
