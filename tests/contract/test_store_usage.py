"""The contract of `Usage`: counters of what a tenant uses, and quotas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.contract.test_store_traces import part, put
from tests.contract.test_store_webhooks import batch_with_deliveries, letter, settlement, webhook
from tests.support.feedback_rows import annotation, queue
from tests.support.fleet_rows import push, start
from tests.support.rows import (
    OTHER,
    T0,
    TENANT,
    agent,
    answer,
    artifact,
    batch,
    ended,
    memory,
    workflow,
)
from wopr.protocol.errors import Refused
from wopr.store.port import Batch, Store
from wopr.store.port.audit import AuditDraft
from wopr.store.port.usage import QuotaRow

pytestmark = pytest.mark.anyio


def bytes_of(*batches: Batch) -> int:
    return sum(len(event.body) for each in batches for event in each.events)


async def test_the_bytes_of_events_and_artifacts_are_counted_per_tenant(store: Store) -> None:
    first, second = batch("run-1"), batch("run-1", first=1)
    second = replace(second, artifacts=(artifact("a", body=b"12345"),))
    theirs = batch("theirs")
    await store.append(TENANT, [first])
    await store.append(TENANT, [second])
    await store.append(OTHER, [theirs])

    ours, others = await store.usage(TENANT, T0), await store.usage(OTHER, T0)

    assert ours.event_bytes == bytes_of(first, second)
    assert ours.artifact_bytes == 5
    assert (others.event_bytes, others.artifact_bytes) == (bytes_of(theirs), 0)


async def test_an_artifact_that_replaces_another_counts_once(store: Store) -> None:
    await store.append(TENANT, [replace(batch(), artifacts=(artifact("a", body=b"12345"),))])
    later = replace(batch(first=1), artifacts=(artifact("a", body=b"123"),))

    await store.append(TENANT, [later])

    assert (await store.usage(TENANT, T0)).artifact_bytes == 3


async def test_deleted_runs_are_not_counted(store: Store) -> None:
    await store.append(TENANT, [replace(batch(), artifacts=(artifact("a", body=b"12345"),))])
    kept = batch("kept")
    await store.append(TENANT, [ended(), kept])

    await store.delete_expired_runs(T0 + 10**9, 10)

    found = await store.usage(TENANT, T0)
    assert (found.event_bytes, found.artifact_bytes) == (bytes_of(kept), 0)


async def test_a_recount_gives_the_same_numbers(store: Store) -> None:
    await store.append(TENANT, [replace(batch(), artifacts=(artifact("a", body=b"12345"),))])
    before = await store.usage(TENANT, T0)

    await store.recount_usage()
    await store.append(TENANT, [batch(first=1)])
    after = await store.usage(TENANT, T0)

    assert after.event_bytes == before.event_bytes + bytes_of(batch(first=1))
    assert after.artifact_bytes == before.artifact_bytes


async def others(store: Store, tenant: str = TENANT) -> int:
    return (await store.usage(tenant, T0)).other_bytes


async def test_definitions_are_counted_with_all_their_versions(store: Store) -> None:
    await store.put_workflow(TENANT, workflow(version="1", body=b"12345"))
    await store.put_workflow(TENANT, workflow(version="2", body=b"123"))
    await store.put_workflow(TENANT, workflow(version="2", body=b"123"))
    await store.put_agent(TENANT, agent(body=b"1234"))
    await store.put_workflow(OTHER, workflow(body=b"1"))

    ours, theirs = await store.usage(TENANT, T0), await store.usage(OTHER, T0)

    assert (ours.other_bytes, ours.workflow_versions, ours.agents) == (12, 2, 1)
    assert (theirs.other_bytes, theirs.workflow_versions, theirs.agents) == (1, 1, 0)


async def test_annotations_are_counted_until_their_run_is_deleted(store: Store) -> None:
    await store.append(TENANT, [batch()])
    said = annotation()
    await store.put_annotation(TENANT, said)
    assert await others(store) == len(said.body)

    await store.append(TENANT, [ended()])
    await store.delete_expired_runs(T0 + 10**9, 10)

    assert await others(store) == 0


async def test_idempotency_records_are_counted_until_they_are_deleted(store: Store) -> None:
    await store.append(TENANT, [replace(batch(), idempotency=answer(b"k1", b"12345"))])
    await store.put_idempotency_record(TENANT, answer(b"k2", b"123"))
    assert await others(store) == 8

    await store.delete_idempotency_records(T0 + 1, T0 + 1)

    assert await others(store) == 0


async def test_memories_are_counted_in_bytes_until_they_expire(store: Store) -> None:
    await store.put_memory(TENANT, memory("m-1", content="é", expires_at=T0 + 1))
    await store.put_memory(TENANT, memory("m-1", content="é", expires_at=T0 + 1))
    await store.put_memory(TENANT, memory("m-2", content="abc"))
    assert await others(store) == 5

    await store.delete_expired_memories(T0 + 2)

    assert await others(store) == 3


async def test_dead_letters_are_counted_once_each_until_their_webhook_is_deleted(
    store: Store,
) -> None:
    await store.put_webhook(TENANT, webhook())
    await store.append(TENANT, [batch_with_deliveries()])
    before = await others(store)
    await store.settle_deliveries(TENANT, settlement(dead=letter()))
    once = await others(store)
    await store.settle_deliveries(TENANT, settlement(dead=letter()))

    assert once > before
    assert await others(store) == once
    await store.delete_webhook(TENANT, "wh-1")
    assert await others(store) == before


async def test_kahn_lines_and_traces_are_counted(store: Store) -> None:
    line = start("k-1")
    await push(store, TENANT, [line])
    lines = await others(store)
    await put(store, part("spans"))

    assert lines >= len(line)
    assert await others(store) == lines + 5
    trace = await store.trace(TENANT, "t-1")
    assert trace is not None
    await store.delete_trace(TENANT, trace)
    assert await others(store) == lines


async def test_review_queues_are_counted(store: Store) -> None:
    await store.put_queue(TENANT, queue(), [])

    assert await others(store) == 2


async def test_a_recount_finds_the_same_other_bytes(store: Store) -> None:
    await store.append(TENANT, [replace(batch(), idempotency=answer(b"k1", b"12345"))])
    await store.put_workflow(TENANT, workflow())
    await store.put_agent(OTHER, agent())
    await store.put_annotation(TENANT, annotation())
    await store.put_memory(OTHER, memory())
    await push(store, TENANT, [start("k-1")])
    await put(store, part("spans"))
    before = [await store.usage(tenant, T0) for tenant in (TENANT, OTHER)]

    await store.recount_usage()

    assert [await store.usage(tenant, T0) for tenant in (TENANT, OTHER)] == before


async def test_the_usage_of_all_tenants_is_read_in_one_call(store: Store) -> None:
    await store.append(TENANT, [batch()])
    await store.put_workflow(OTHER, workflow(body=b"12345"))

    found = await store.all_usage()

    assert {tenant: (each.active_runs, each.other_bytes) for tenant, each in found.items()} == {
        TENANT: (1, 0),
        OTHER: (0, 5),
    }
    assert found[TENANT].event_bytes == bytes_of(batch())


async def test_delayed_runs_are_the_due_ones(store: Store) -> None:
    await store.append(TENANT, [batch("due", wake_at=T0), batch("later", wake_at=T0 + 9)])
    await store.append(OTHER, [batch("theirs", wake_at=T0)])

    found = await store.usage(TENANT, T0 + 1)

    assert (found.queued_runs, found.active_runs) == (1, 2)


async def test_model_tokens_are_added_per_tenant_and_day(store: Store) -> None:
    await store.add_model_tokens(TENANT, "2027-01-31", 5)
    await store.add_model_tokens(TENANT, "2027-01-31", 7)
    await store.add_model_tokens(TENANT, "2027-02-01", 1)
    await store.add_model_tokens(OTHER, "2027-01-31", 2)

    assert await store.model_tokens(TENANT, "2027-01-31") == 12
    assert await store.model_tokens(OTHER, "2027-01-31") == 2
    assert await store.model_tokens(OTHER, "2027-02-01") == 0


async def test_a_quota_is_set_replaced_and_reset(store: Store) -> None:
    await store.set_quota(QuotaRow(tenant=TENANT, quota="activeRuns", amount=5))
    await store.set_quota(QuotaRow(tenant=TENANT, quota="activeRuns", amount=6))
    await store.set_quota(QuotaRow(tenant=OTHER, key_id="k1", quota="streams", amount=1))

    found = await store.quotas()

    assert found == sorted(
        [
            QuotaRow(tenant=TENANT, quota="activeRuns", amount=6),
            QuotaRow(tenant=OTHER, key_id="k1", quota="streams", amount=1),
        ],
        key=lambda row: row.tenant,
    )
    assert await store.reset_quota(TENANT, "", "activeRuns")
    assert not await store.reset_quota(TENANT, "", "activeRuns")
    assert [row.tenant for row in await store.quotas()] == [OTHER]


def entry(tenant: str = TENANT) -> AuditDraft:
    return AuditDraft(tenant=tenant, link=lambda sequence, previous: b"entry")


def broken() -> AuditDraft:
    def link(sequence: int, previous: bytes | None) -> bytes:
        raise Refused("no entry", field="limit")

    return AuditDraft(tenant=TENANT, link=link)


async def test_a_quota_and_its_audit_entry_are_written_together(store: Store) -> None:
    row = QuotaRow(tenant=TENANT, quota="activeRuns", amount=5)

    await store.set_quota(row, entry())
    assert await store.reset_quota(TENANT, "", "activeRuns", entry())
    assert not await store.reset_quota(TENANT, "", "activeRuns", entry())

    assert len(await store.audit_page(TENANT, None, 10)) == 2


async def test_a_quota_is_not_changed_without_its_audit_entry(store: Store) -> None:
    row = QuotaRow(tenant=TENANT, quota="activeRuns", amount=5)

    with pytest.raises(Refused):
        await store.set_quota(row, broken())
    assert await store.quotas() == []

    await store.set_quota(row)
    with pytest.raises(Refused):
        await store.reset_quota(TENANT, "", "activeRuns", broken())
    assert await store.quotas() == [row]
