from __future__ import annotations

import pytest

from tests.support.rows import (
    OTHER,
    T0,
    TENANT,
    answer,
    artifact,
    batch,
    found,
    invocation,
    key,
    log,
    workflow,
)
from wopr.protocol.errors import SequenceTaken
from wopr.store.port import Batch, PendingCommand, RunFilter, Store

pytestmark = pytest.mark.anyio


@pytest.fixture
async def shared(store: Store) -> Store:
    """Return a store in which one tenant has one row of everything."""
    await store.append(
        TENANT,
        [
            batch(
                tags=("blue",),
                parent_run_id="parent",
                artifacts=[artifact()],
                idempotency=answer(),
            )
        ],
    )
    await store.put_workflow(TENANT, workflow())
    await store.put_key(key())
    await store.claim_invocation(TENANT, invocation())
    return store


async def test_another_tenant_s_run_cannot_be_read(shared: Store) -> None:
    assert await shared.run(OTHER, "run-1") is None
    assert await shared.load_runs(OTHER, ["run-1"], 5) == []
    assert await shared.read(OTHER, "run-1") == []
    assert await shared.read(OTHER, "run-1", limit=1000) == []
    assert await shared.artifact(OTHER, "run-1", "a-1") is None


@pytest.mark.parametrize(
    "where",
    [
        RunFilter(),
        RunFilter(statuses=("running",)),
        RunFilter(statuses=("running", "paused")),
        RunFilter(workflow_id="greet"),
        RunFilter(tag="blue"),
        RunFilter(parent_run_id="parent"),
        RunFilter(parent_run_id="parent", tag="blue"),
    ],
)
async def test_another_tenant_s_run_is_not_listed(shared: Store, where: RunFilter) -> None:
    assert len((await shared.runs(TENANT, where, None, 10)).runs) == 1
    assert (await shared.runs(OTHER, where, None, 10)).runs == ()


@pytest.mark.parametrize("first", [0, 1])
async def test_another_tenant_s_run_cannot_be_appended_to(shared: Store, first: int) -> None:
    with pytest.raises(SequenceTaken):
        await shared.append(OTHER, [batch(first=first, mark="foreign")])

    assert await log(shared) == [b"0"]


async def test_another_tenant_s_run_can_be_neither_woken_nor_commanded(shared: Store) -> None:
    step = batch("theirs", wakes=["run-1"])
    wishing = Batch(
        run=step.run,
        first=0,
        events=step.events,
        wakes=step.wakes,
        commands=(PendingCommand(run_id="run-1", body=b"cancel"),),
    )

    await shared.append(OTHER, [wishing])

    assert not await shared.set_pending_command(OTHER, "run-1", b"cancel", T0)
    row = await found(shared)
    assert (row.pending_command, row.wake_at) == (None, None)


async def test_another_tenant_s_workflow_is_unknown_and_its_name_is_free(shared: Store) -> None:
    assert await shared.workflow(OTHER, "greet", None) is None
    assert await shared.workflow(OTHER, "greet", "1") is None
    assert await shared.workflows(OTHER, None, 10) == []
    assert await shared.workflow_ids(OTHER, 10) == []
    assert await shared.known_workflows(OTHER, ["greet"]) == set()
    assert await shared.workflow_versions(OTHER, "greet", 10, 0) == []

    assert await shared.put_workflow(OTHER, workflow(body=b"theirs"))

    assert await shared.workflow(TENANT, "greet", None) == workflow()


async def test_another_tenant_s_keys_are_not_listed(shared: Store) -> None:
    assert await shared.keys(OTHER) == []


async def test_another_tenant_s_response_is_unknown_and_its_key_is_free(shared: Store) -> None:
    assert await shared.idempotency_record(OTHER, b"k") is None

    await shared.put_idempotency_record(OTHER, answer(body=b"theirs"))
    await shared.append(OTHER, [batch("theirs", idempotency=answer(b"k2"))])

    assert await shared.idempotency_record(TENANT, b"k") == answer()
    assert await shared.idempotency_record(TENANT, b"k2") is None


async def test_another_tenant_s_invocation_can_be_neither_read_nor_settled(shared: Store) -> None:
    await shared.settle_invocation(OTHER, "i-1", "succeeded", b"theirs")

    assert await shared.claim_invocation(OTHER, invocation(run_id="theirs")) == invocation(
        run_id="theirs"
    )
    assert await shared.claim_invocation(TENANT, invocation()) == invocation()
