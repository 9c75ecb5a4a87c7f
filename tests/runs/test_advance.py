from __future__ import annotations

import anyio
import msgspec
import pytest

from tests.support.definitions import delay, edge, node
from tests.support.eventually import eventually_async
from tests.support.in_process import TENANT, Bench, Gates
from wopr.engine import plan as engine_plan
from wopr.protocol.errors import Conflict
from wopr.protocol.runs import PauseRun
from wopr.runs import advance
from wopr.runs.execution.agent_context import AgentContext
from wopr.runs.execution.context import ExecutionContext
from wopr.runs.journal import Commit

pytestmark = pytest.mark.anyio


async def test_nodes_run_in_the_order_of_their_edges(ours: Bench) -> None:
    nodes = [node("first"), node("second"), node("third")]
    edges = [edge("first", "second"), edge("second", "third")]

    run_id = await ours.create(await ours.register(nodes, edges=edges))

    started = [event.node_id for event in await ours.log(run_id) if event.type == "node.started"]
    assert started == ["first", "second", "third"]


async def test_each_step_is_planned_once(ours: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int] = []

    def counted(*args: object, **kwargs: object) -> engine_plan.Plan:
        found = engine_plan.plan(*args, **kwargs)  # type: ignore[arg-type]  # as it was called
        planned.append(len(found.steps))
        return found

    workflow_id = await ours.register([node("only")])
    monkeypatch.setattr(advance, "plan", counted)

    await ours.create(workflow_id)

    # One plan starts the node and one ends the run.
    assert planned == [1, 1]


async def test_the_wake_up_of_a_waiting_run_comes_from_its_last_plan(
    ours: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await ours.create(await ours.register([delay("pause", 60_000)]))

    row = await ours.row(run_id)

    assert row.wake_at == ours.clock.now + 60_000


async def test_a_timer_that_fires_completes_the_run(ours: Bench) -> None:
    run_id = await ours.create(await ours.register([delay("pause", 60_000)]))

    ours.clock.now += 60_000
    await ours.wake(run_id)

    assert (await ours.row(run_id)).status == "completed"


async def test_an_async_node_is_in_flight_after_its_start_is_committed(
    ours: Bench, gates: Gates
) -> None:
    run_id = await ours.create(await ours.register([node("gate", "test.gate")]))

    await gates.until_reached("gate")
    before = await ours.types(run_id)
    gates.open("gate")
    await ours.until(run_id, "completed")

    assert before == ["run.started", "node.started"]
    assert run_id not in ours.host.advancer.active.runs


async def test_a_flush_appends_while_the_node_is_in_flight(ours: Bench, gates: Gates) -> None:
    run_id = await ours.create(await ours.register([node("talk", "test.talk")]))

    await gates.until_reached("talk")

    assert (await ours.types(run_id))[-1] == "log.appended"
    gates.open("talk")
    await ours.until(run_id, "completed")


async def test_a_cancelled_run_stops_its_node_in_flight(ours: Bench, gates: Gates) -> None:
    run_id = await ours.create(await ours.register([node("gate", "test.gate")]))
    await gates.until_reached("gate")

    answer = await ours.host.commands.cancel(TENANT, run_id, "enough")

    assert answer.status == "cancelled"
    assert (await ours.types(run_id))[-2:] == ["node.cancelled", "run.cancelled"]
    again = await ours.host.commands.cancel(TENANT, run_id, "enough")
    assert again.already_terminal


async def test_a_pause_waits_for_the_node_in_flight_and_resume_continues(
    ours: Bench, gates: Gates
) -> None:
    nodes = [node("gate", "test.gate"), node("last")]
    run_id = await ours.create(await ours.register(nodes, edges=[edge("gate", "last")]))
    await gates.until_reached("gate")

    await ours.host.commands.pause(TENANT, run_id, PauseRun(drain_policy="drain-current-node"))
    gates.open("gate")
    await ours.until(run_id, "paused")
    paused = await ours.types(run_id)
    await ours.host.commands.resume(TENANT, run_id)
    await ours.until(run_id, "completed")

    assert paused[-2:] == ["node.completed", "run.paused"]
    with pytest.raises(Conflict):
        await ours.host.commands.resume(TENANT, run_id)


async def test_every_commit_is_passed_to_the_subscribers_once(ours: Bench) -> None:
    commits: list[Commit] = []
    workflow_id = await ours.register([node("only")])
    ours.host.advancer.journal.on_committed(commits.append)

    run_id = await ours.create(workflow_id)

    [commit] = commits
    assert (commit.tenant, commit.state.identity.run_id) == (TENANT, run_id)
    assert [event.type for event in commit.writes[0].events] == await ours.types(run_id)


async def test_only_node_types_that_use_an_agent_get_an_agent_context(
    ours: Bench, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    plain = ExecutionContext.__init__

    def plain_made(self: ExecutionContext, *args: object, **kwargs: object) -> None:
        made.append(type(self).__name__)
        plain(self, *args, **kwargs)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(ExecutionContext, "__init__", plain_made)
    nodes = [node("plain"), node("own", "test.gate")]
    run_id = await ours.create(await ours.register(nodes, edges=[edge("plain", "own")]))
    await gates.until_reached("own")
    gates.open("own")
    await ours.until(run_id, "completed")

    assert made == ["ExecutionContext", "AgentContext"]


async def test_the_parts_of_an_agent_context_are_made_at_their_first_use(
    ours: Bench, gates: Gates
) -> None:
    run_id = await ours.create(await ours.register([node("gate", "test.gate")]))
    await gates.until_reached("gate")
    run = await ours.loaded(run_id)
    advancer = ours.host.advancer
    context = AgentContext(
        advancer.executor.context_services,
        advancer.services,
        run,
        "gate",
        run.state,
        now=ours.clock.now,
    )

    before = {"llm", "memory", "tool_calls"} & vars(context).keys()
    used = context.memory
    after = {"llm", "memory", "tool_calls"} & vars(context).keys()

    assert (before, after) == (set(), {"memory"})
    assert context.memory is used
    gates.open("gate")
    await ours.until(run_id, "completed")


async def test_a_restarted_host_calls_a_node_again_that_was_in_flight(
    ours: Bench, gates: Gates
) -> None:
    run_id = await ours.create(await ours.register([node("gate", "test.gate")]))
    await gates.until_reached("gate")
    run = await ours.loaded(run_id)

    run.stop()

    async def is_gone() -> bool:
        ours.host.advancer.active.release(run)
        return run_id not in ours.host.advancer.active.runs

    await eventually_async(is_gone)
    gates.open("gate")
    with anyio.fail_after(60):
        await ours.wake(run_id)
        await ours.until(run_id, "completed")
    stored = await ours.host.store.read(TENANT, run_id, 0, 100)
    assert msgspec.json.decode(stored[-1].body)["type"] == "run.completed"
