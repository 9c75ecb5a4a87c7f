from __future__ import annotations

import msgspec
import pytest

from tests.support.definitions import edge, from_variable, node, variable
from tests.support.in_process import TENANT, Bench
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import NotFound, Refused, Unprocessable
from wopr.protocol.forks import ForkMode, ForkRun, OptionsOverlay
from wopr.runs.forks.compare import ancestry, compare

pytestmark = pytest.mark.anyio


async def two_steps(ours: Bench) -> str:
    """Run a workflow of two nodes to its end."""
    nodes = [node("first", "core.identity", inputs={"who": from_variable("who")}), node("second")]
    workflow_id = await ours.register(
        nodes, edges=[edge("first", "second")], variables=[variable("who")]
    )
    return await ours.create(workflow_id, {"who": "Ann"})


async def forked(
    ours: Bench, run_id: str, mode: ForkMode, from_seq: int, inputs: JsonObject | None = None
) -> str:
    overlay = OptionsOverlay(inputs=inputs or {})
    request = ForkRun(mode=mode, from_seq=from_seq, run_options_overlay=overlay)
    accepted = msgspec.json.decode(await ours.host.commands.fork(TENANT, run_id, request))
    await ours.until(accepted["runId"], "completed", "failed")
    return str(accepted["runId"])


async def test_a_replay_repeats_the_log_of_its_source(ours: Bench) -> None:
    source = await two_steps(ours)

    replay = await forked(ours, source, "replay", 0)

    before, after = await ours.log(source), await ours.log(replay)
    assert [(e.type, e.payload, e.timestamp) for e in after] == [
        (e.type, e.payload, e.timestamp) for e in before
    ]
    assert {e.event_id for e in before}.isdisjoint(e.event_id for e in after)


async def test_a_branch_from_the_start_takes_new_inputs(ours: Bench) -> None:
    source = await two_steps(ours)

    branch = await forked(ours, source, "branch", 0, {"who": "Ben"})

    [outputs] = [
        event.payload["outputs"]
        for event in await ours.log(branch)
        if event.type == "node.completed" and event.node_id == "first"
    ]
    assert outputs == {"who": "Ben"}


async def test_a_branch_copies_the_events_before_its_fork_point(ours: Bench) -> None:
    source = await two_steps(ours)
    types = await ours.types(source)
    point = types.index("node.completed") + 1

    branch = await forked(ours, source, "branch", point)

    assert (await ours.types(branch))[:point] == types[:point]
    assert (await ours.types(branch))[-1] == "run.completed"


async def test_a_fork_point_beyond_the_log_is_refused(ours: Bench) -> None:
    source = await two_steps(ours)

    with pytest.raises(Unprocessable) as refused:
        await forked(ours, source, "branch", 1000)

    assert refused.value.code == "invalid_from_seq"


async def test_a_replay_takes_no_overlay(ours: Bench) -> None:
    source = await two_steps(ours)

    with pytest.raises(Refused):
        await forked(ours, source, "replay", 0, {"who": "Ben"})


async def test_an_unknown_source_is_not_found(ours: Bench) -> None:
    with pytest.raises(NotFound):
        await forked(ours, "no-such-run", "replay", 0)


async def test_a_preview_lists_what_a_branch_would_run_again(ours: Bench) -> None:
    source = await two_steps(ours)
    point = (await ours.types(source)).index("node.completed") + 1

    preview = await ours.host.commands.preview_fork(
        TENANT, source, ForkRun(mode="branch", from_seq=point)
    )

    assert (preview.kept_nodes, preview.rerun_nodes) == (["first"], ["second"])
    assert preview.copied_events == point


async def test_a_run_and_its_replay_do_not_differ(ours: Bench) -> None:
    source = await two_steps(ours)
    replay = await forked(ours, source, "replay", 0)

    diff = await compare(ours.host.advancer.journal, TENANT, source, replay)

    assert (diff.diverged_at_seq, diff.event_diffs) == (None, [])


async def test_a_fork_has_no_parent_run(ours: Bench) -> None:
    source = await two_steps(ours)
    branch = await forked(ours, source, "branch", 0)

    found = await ancestry(ours.host.advancer.journal, TENANT, branch)

    assert found.parent is None
