"""A preview of a fork names the nodes that the fork then executes."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fault.forking import ENDED, WAITING, fork, forked
from tests.fault.test_fork_properties import (
    APPROVAL,
    Outside,
    Ticking,
    approve,
    definitions,
    run_to_its_end,
)
from tests.support.definitions import edge, fresh, node
from tests.support.in_process import (
    DEADLINE_SECONDS,
    TENANT,
    Bench,
    bench,
    numbered,
)
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import NotFound, WoprError
from wopr.protocol.events import RunEvent
from wopr.protocol.forks import ForkMode, ForkPreview, ForkRun, OptionsOverlay

_EXECUTIONS = frozenset({"node.started", "node.completed", "node.failed", "node.cancelled"})


async def previewed(ours: Bench, run_id: str, mode: ForkMode, start: int) -> ForkPreview:
    return await ours.host.commands.preview_fork(TENANT, run_id, ForkRun(mode=mode, from_seq=start))


async def seen_through(ours: Bench, run_id: str) -> None:
    """Wait for a run's end, and approve its waits."""
    with anyio.fail_after(DEADLINE_SECONDS):
        while (status := (await ours.row(run_id)).status) not in ENDED:
            if status in WAITING:
                # A branch from within a suspension starts the node again before it can be answered.
                with suppress(NotFound):
                    await approve(ours, run_id)
            await anyio.sleep(0.001)


def resolved(log: list[RunEvent]) -> list[str]:
    """The keys of the waits that were answered, in order."""
    answered = (event.payload for event in log if event.type == "interrupt.resolved")
    return [payload["interruptId"].removeprefix("int-") for payload in answered]


async def executed(ours: Bench, run_id: str, start: int) -> set[str]:
    """Return the nodes that a run executed itself from an event on."""
    log = await ours.log(run_id)
    own = [event for event in log if event.sequence >= start and event.type in _EXECUTIONS]
    started = {str(event.node_id) for event in log if event.type == "node.started"}
    return {str(event.node_id) for event in own} & started


def path(log: list[RunEvent]) -> dict[str, str]:
    """How each node of a run ended."""
    return {
        str(event.node_id): event.type
        for event in log
        if event.type in ("node.completed", "node.failed", "node.skipped", "node.cancelled")
    }


async def check(definition: JsonObject, folder: Path, *, cancel_at: int | None) -> None:
    outside = Outside()
    async with bench(folder, *outside.types(), clock=Ticking(), new_id=numbered()) as ours:
        try:
            await ours.host.library.register(TENANT, definition)
        except WoprError:
            return
        if cancel_at is None:
            source = await run_to_its_end(ours, definition["id"])
        else:
            source = await run_and_cancel(ours, definition["id"], cancel_at)
        log = await ours.log(source)
        has_conditions = any("condition" in edge for edge in definition["edges"])

        for start in range(len(log)):
            preview = await previewed(ours, source, "branch", start)
            branch = await fork(ours, source, "branch", start)
            await seen_through(ours, branch)
            ran = await executed(ours, branch, start)

            assert ran <= {*preview.rerun_nodes, *preview.possible_nodes}, start
            is_same = path(await ours.log(branch)) == path(log)
            went_on = (
                cancel_at is not None and not has_conditions and await is_completed(ours, branch)
            )
            if is_same or went_on:
                assert ran == set(preview.rerun_nodes), (start, preview)
            assert set(preview.effects_again) <= set(preview.rerun_nodes)
            answers = resolved(await ours.log(branch))
            assert set(preview.answers_kept) == set(resolved(log[:start])), start
            assert len(set(answers)) == len(answers), (start, answers)


async def is_completed(ours: Bench, run_id: str) -> bool:
    return (await ours.row(run_id)).status == "completed"


async def run_and_cancel(ours: Bench, workflow_id: str, length: int) -> str:
    """Run a workflow, and cancel it at a log length, or once it waits for a person."""
    run_id = await ours.create(workflow_id)
    with anyio.fail_after(DEADLINE_SECONDS):
        while (row := await ours.row(run_id)).status not in ENDED:
            if row.last_sequence >= length or row.status in WAITING:
                await ours.host.commands.cancel(TENANT, run_id, "enough")
            await anyio.lowlevel.checkpoint()
    return run_id


PATIENT = settings(
    max_examples=10,
    phases=(Phase.generate,),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@PATIENT
@given(definitions())
def test_a_branch_executes_the_previewed_nodes_if_it_takes_the_same_path(
    definition: JsonObject,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(lambda: check(definition, Path(folder), cancel_at=None))


@PATIENT
@given(definitions(), st.integers(0, 12))
def test_a_branch_of_a_cancelled_run_executes_the_previewed_nodes(
    definition: JsonObject, length: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(lambda: check(definition, Path(folder), cancel_at=length))


async def check_replays(definition: JsonObject, folder: Path) -> None:
    async with bench(folder, *Outside().types(), clock=Ticking(), new_id=numbered()) as ours:
        try:
            await ours.host.library.register(TENANT, definition)
        except WoprError:
            return
        source = await run_to_its_end(ours, definition["id"])
        for start in range(len(await ours.log(source))):
            preview = await previewed(ours, source, "replay", start)
            replay = await forked(ours, source, "replay", start)

            assert await executed(ours, replay, start) == set(preview.rerun_nodes), start
            assert preview.effects_again == preview.possible_effects == []


@PATIENT
@given(definitions())
def test_a_replay_executes_the_previewed_nodes(definition: JsonObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(check_replays, definition, Path(folder))


@pytest.mark.anyio
async def test_a_replay_of_a_cancelled_run_previews_nodes_up_to_the_first_effect(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path, *Outside().types(), new_id=numbered()) as ours:
        nodes = [
            node("wait", "core.delay", config={"ms": 50_000}),
            node("note"),
            node("effect", "test.effect"),
            node("end"),
        ]
        source = await ours.create(await ours.register(nodes))
        await ours.until_logged(source, "node.started")
        await ours.host.commands.cancel(TENANT, source, "enough")

        preview = await previewed(ours, source, "replay", 0)
        replay = await forked(ours, source, "replay")

        assert preview.rerun_nodes == ["wait", "note", "effect"]
        assert await executed(ours, replay, 0) == {"wait", "note", "effect"}


@pytest.mark.anyio
async def test_a_branch_of_a_waiting_run_previews_the_effects_after_the_wait(
    tmp_path: Path,
) -> None:
    outside = Outside()
    async with bench(tmp_path, *outside.types(), new_id=numbered()) as ours:
        gate = node("gate", "core.approvalGate", config=APPROVAL)
        nodes = [node("first", "test.effect"), gate, node("pay", "test.effect"), node("end")]
        source = await ours.create(await ours.register(nodes))
        await ours.until(source, "waiting-approval")

        preview = await previewed(ours, source, "branch", 0)

        assert preview.rerun_nodes == ["first", "gate", "pay", "end"]
        assert preview.effects_again == ["first", "pay"]
        assert preview.possible_nodes == []


@pytest.mark.anyio
async def test_a_branch_of_a_failed_run_previews_what_follows_if_the_node_succeeds(
    tmp_path: Path,
) -> None:
    outside = Outside()
    async with bench(tmp_path, *outside.types(), new_id=numbered()) as ours:
        flaky = node("flaky", "test.flaky", config={"failures": 9})
        nodes = [node("first"), flaky, node("pay", "test.effect"), node("end")]
        source = await ours.create(await ours.register(nodes))
        await ours.until(source, "failed")

        preview = await previewed(ours, source, "branch", 3)

        assert (preview.kept_nodes, preview.rerun_nodes) == (["first"], ["flaky"])
        assert preview.possible_nodes == ["pay", "end"]
        assert (preview.effects_again, preview.possible_effects) == (["flaky"], ["pay"])


@pytest.mark.anyio
async def test_a_branch_with_other_inputs_previews_the_resulting_path(
    tmp_path: Path,
) -> None:
    outside = Outside()
    async with bench(tmp_path, *outside.types(), new_id=numbered()) as ours:
        nodes = [node("begin"), node("left"), node("right", "test.effect")]
        edges = [
            edge("begin", "left", condition={"expression": "inputs.side == 'left'"}),
            edge("begin", "right", condition={"expression": "inputs.side == 'right'"}),
        ]
        variables = [{"name": "side", "type": "string"}]
        workflow_id = await ours.register(nodes, edges=edges, variables=variables)
        source = await ours.create(workflow_id, {"side": "left"})
        await ours.until(source, "completed")
        request = ForkRun(
            mode="branch", from_seq=0, run_options_overlay=OptionsOverlay(inputs={"side": "right"})
        )

        preview = await ours.host.commands.preview_fork(TENANT, source, request)

        assert preview.rerun_nodes == ["begin", "right"]
        assert preview.effects_again == ["right"]


@pytest.mark.anyio
async def test_a_branch_from_within_a_suspension_asks_again(tmp_path: Path) -> None:
    doubt = {"decision": {"kind": "go"}, "confidence": 0.2}
    async with bench(tmp_path, new_id=numbered()) as ours:
        agent = node("agent", "core.conformance.mock-agent", config={"mockDecision": doubt})
        source = await ours.create(await ours.register([agent], id=fresh("conformance")))
        await ours.until(source, "waiting-approval")
        [suspended] = [e.sequence for e in await ours.log(source) if e.type == "node.suspended"]

        branch = await fork(ours, source, "branch", suspended + 1)
        await ours.until_logged(branch, "interrupt.requested")
        await seen_through(ours, branch)

        assert await is_completed(ours, branch)
