"""A divergent replay reports the difference once, and continues."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fault.forking import ended, forked
from tests.support.definitions import node
from tests.support.in_process import TENANT, Bench, bench, numbered
from wopr.engine.outcome import Completed
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import JsonObject
from wopr.protocol.events import RunEvent

pytestmark = pytest.mark.anyio


class ChangingNode:
    """A node type whose behaviour changes between releases."""

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
def mind() -> ChangingNode:
    return ChangingNode()


@pytest.fixture
async def ours(tmp_path: Path, mind: ChangingNode) -> AsyncIterator[Bench]:
    async with bench(tmp_path, mind.node_type(), new_id=numbered()) as running:
        yield running


async def divergences(ours: Bench, run_id: str) -> list[RunEvent]:
    return [event for event in await ours.log(run_id) if event.type == "replay.diverged"]


async def test_a_different_output_is_reported_and_the_replay_continues(
    ours: Bench, mind: ChangingNode
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


async def test_a_missing_event_is_reported_as_another_type(ours: Bench, mind: ChangingNode) -> None:
    mind.logs = 2
    workflow = await ours.register([node("think", "test.mind"), node("b")])
    source = await ended(ours, workflow)
    mind.logs = 1

    replay = await forked(ours, source)

    [diverged] = await divergences(ours, replay)
    assert diverged.payload["divergenceKind"] == "type-mismatch"
    assert diverged.payload["atSequence"] == 3
    assert (await ours.row(replay)).status == "completed"


async def test_an_additional_event_is_reported(ours: Bench, mind: ChangingNode) -> None:
    workflow = await ours.register([node("think", "test.mind"), node("b")])
    source = await ended(ours, workflow)
    mind.logs = 1

    replay = await forked(ours, source)

    [diverged] = await divergences(ours, replay)
    assert diverged.payload["divergenceKind"] == "type-mismatch"
    assert (await ours.row(replay)).status == "completed"


async def test_a_replay_that_is_compared_from_an_event_on_reports_only_later_differences(
    ours: Bench, mind: ChangingNode
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


async def test_a_replay_of_a_diverged_replay_is_compared_with_that_replay(
    ours: Bench, mind: ChangingNode
) -> None:
    workflow = await ours.register([node("think", "test.mind"), node("b")])
    source = await ended(ours, workflow)
    mind.says = {"answer": 43}
    replay = await forked(ours, source)

    again = await forked(ours, replay)

    assert await divergences(ours, again) == []


async def test_no_divergence_is_reported_when_nothing_changed(ours: Bench) -> None:
    workflow = await ours.register([node("think", "test.mind"), node("b")])
    source = await ended(ours, workflow)

    replay = await forked(ours, source)

    assert await divergences(ours, replay) == []


async def test_a_replay_continues_where_its_source_was_cancelled_and_reports_it(
    ours: Bench,
) -> None:
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
