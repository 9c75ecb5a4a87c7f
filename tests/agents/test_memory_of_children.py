from __future__ import annotations

import pytest

from tests.support.agent_definitions import DONE, next_worker, supervised
from tests.support.definitions import edge, node, workflow
from tests.support.in_process import TENANT, Bench
from wopr.protocol.documents import Json, JsonObject
from wopr.runs.interrupts.approvals import Resolver

pytestmark = pytest.mark.anyio

REF = "acme/notes"


def remember(node_id: str, *write: str) -> JsonObject:
    config: JsonObject = {"ref": REF, "write": list(write)}
    return node(node_id, "vendor.acme.remember", config=config)


async def register(ours: Bench, definition: JsonObject) -> str:
    await ours.host.library.register(TENANT, definition)
    return str(definition["id"])


async def parent(ours: Bench, *plan: Json) -> str:
    """Return a parent that writes, dispatches workers, and then reads."""
    definition = supervised(*plan)
    definition["nodes"] = [remember("before", "parent"), *definition["nodes"], remember("after")]
    definition["edges"] = [
        edge("before", "supervisor"),
        *definition["edges"],
        edge("dispatch", "after"),
    ]
    return await register(ours, definition)


async def read(ours: Bench, run_id: str, node_id: str) -> list[str]:
    """Return what a node of a run read from the memory."""
    completed = [e for e in await ours.log(run_id) if e.type == "node.completed"]
    (found,) = [e.payload["outputs"]["read"] for e in completed if e.node_id == node_id]
    names: list[str] = found
    return names


async def children(ours: Bench, run_id: str) -> list[str]:
    log = await ours.log(run_id)
    return [e.payload["childRunId"] for e in log if e.type == "node.dispatched"]


async def test_writes_of_a_child_are_seen_by_its_parent_once_it_completed(ours: Bench) -> None:
    worker = await register(ours, workflow([remember("work", "child")]))
    run_id = await ours.create(await parent(ours, next_worker(worker), DONE))
    await ours.until(run_id, "completed", "failed")

    assert await read(ours, run_id, "before") == ["parent"]
    assert sorted(await read(ours, run_id, "after")) == ["child", "parent"]


async def test_writes_of_children_of_every_turn_are_seen(ours: Bench) -> None:
    one = await register(ours, workflow([remember("work", "one")]))
    two = await register(ours, workflow([remember("work", "two")]))
    run_id = await ours.create(await parent(ours, next_worker(one), next_worker(two, two), DONE))
    await ours.until(run_id, "completed", "failed")

    assert sorted(await read(ours, run_id, "after")) == ["one", "parent", "two", "two"]


async def test_a_child_sees_what_its_parent_wrote_before_it_was_created(ours: Bench) -> None:
    worker = await register(ours, workflow([remember("work")]))
    run_id = await ours.create(await parent(ours, next_worker(worker), DONE))
    await ours.until(run_id, "completed", "failed")

    (child,) = await children(ours, run_id)
    assert await read(ours, child, "work") == ["parent"]


async def test_writes_of_a_grandchild_are_seen_through_its_completed_parent(ours: Bench) -> None:
    grandchild = await register(ours, workflow([remember("work", "grandchild")]))
    passes_on = node("sub", "core.subWorkflow", config={"workflowId": grandchild})
    worker = await register(ours, workflow([passes_on]))
    run_id = await ours.create(await parent(ours, next_worker(worker), DONE))
    await ours.until(run_id, "completed", "failed")

    assert sorted(await read(ours, run_id, "after")) == ["grandchild", "parent"]


async def test_writes_of_a_failed_child_are_not_seen(ours: Bench) -> None:
    gate = node("gate", "core.approvalGate", config={"title": "Go on?"})
    lost = [gate, remember("work", "lost"), node("fail", "core.fail")]
    worker = await register(ours, workflow(lost))
    run_id = await ours.create(await parent(ours, next_worker(worker), DONE))
    await ours.until_logged(run_id, "node.dispatched")
    (child,) = await children(ours, run_id)
    await ours.until(child, "waiting-approval")
    # Later than the parent's start: only then does the writing run matter.
    ours.clock.now += 1
    by = Resolver(name="somebody", role="admin")
    await ours.host.commands.resolve_interrupt(TENANT, child, "gate", {"action": "accept"}, by)
    await ours.until(run_id, "completed", "failed")

    assert await read(ours, run_id, "after") == ["parent"]


async def test_concurrent_writes_of_an_unrelated_run_are_not_seen(ours: Bench) -> None:
    gate = node("gate", "core.approvalGate", config={"title": "Go on?"})
    waits = await register(ours, workflow([gate, remember("after")]))
    run_id = await ours.create(waits)
    ours.clock.now += 1
    other = await ours.create(await register(ours, workflow([remember("work", "other")])))
    await ours.until(other, "completed")
    by = Resolver(name="somebody", role="admin")
    await ours.host.commands.resolve_interrupt(TENANT, run_id, "gate", {"action": "accept"}, by)
    await ours.until(run_id, "completed")

    assert await read(ours, run_id, "after") == []


async def test_every_write_is_logged_without_its_content(ours: Bench) -> None:
    worker = await register(ours, workflow([remember("work", "a secret thing", "another")]))
    run_id = await ours.create(worker)
    await ours.until(run_id, "completed")

    written = [e.payload for e in await ours.log(run_id) if e.type == "memory.written"]

    assert len({payload["memoryId"] for payload in written}) == 2
    assert "secret thing" not in str(written)


async def test_a_node_in_a_loop_writes_in_every_round(ours: Bench) -> None:
    back = {"type": "expression", "expression": "!nodes.loop.done"}
    nodes = [node("loop", "core.loop", config={"times": 3}), remember("work", "again")]
    edges = [edge("loop", "work", condition=back), edge("work", "loop")]
    run_id = await ours.create(await register(ours, workflow(nodes, edges=edges)))
    await ours.until(run_id, "completed", "failed")

    log = await ours.log(run_id)
    last = [e for e in log if e.type == "node.completed" and e.node_id == "work"][-1]
    assert last.payload["outputs"]["read"] == ["again"] * 3
