from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from itertools import pairwise

import anyio
import pytest

from tests.support.rows import OTHER, T0, TENANT, batch
from wopr.protocol.errors import SequenceTaken
from wopr.security.audit_chain import CheckpointKey, MerkleTree
from wopr.security.redact import Redactors
from wopr.services.audit.trail import Audit, AuditBatches, AuditTrail
from wopr.store.port import Batch, Store
from wopr.store.port.audit import AuditDraft, CheckpointRow, SinkPosition

pytestmark = pytest.mark.anyio


def _link(text: str, sequence: int, previous: bytes | None) -> bytes:
    before = b"-" if previous is None else hashlib.sha256(previous).hexdigest().encode()
    return b"%d %b %b" % (sequence, text.encode(), before)


def draft(text: str = "done", tenant: str = TENANT) -> AuditDraft:
    return AuditDraft(tenant=tenant, link=partial(_link, text))


def auditing(run_id: str = "run-1", first: int = 0, count: int = 1) -> Batch:
    return replace(batch(run_id, first, count), audits=(draft(run_id),))


def checkpoint(at: int = 0) -> CheckpointRow:
    return CheckpointRow(
        at_sequence=at, merkle_root="00", signature="s", public_key="p", peaks=b"peaks"
    )


async def test_entries_are_numbered_from_zero(store: Store) -> None:
    sequences = [await store.append_audit(draft(text)) for text in ("a", "b", "c")]

    rows = await store.audit_entries(0, 10)
    assert sequences == [row.sequence for row in rows] == [0, 1, 2]
    assert rows[0].body == b"0 a -"
    for before, row in pairwise(rows):
        assert row.body.endswith(before.digest.hex().encode())
    assert all(row.digest == hashlib.sha256(row.body).digest() for row in rows)
    assert await store.audit_head() == 2


async def test_an_empty_log_has_no_head(store: Store) -> None:
    assert await store.audit_head() == -1
    assert await store.signed_head() == -1
    assert await store.audit_entries(0, 10) == []
    assert await store.last_checkpoint(10) is None


async def test_many_writers_leave_no_gap_and_no_fork_in_the_chain(store: Store) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(store.append_audit, draft(f"n{number}"))
            tasks.start_soon(store.append, TENANT, [auditing(f"run-{number}")])

    rows = await store.audit_entries(0, 1000)
    assert [row.sequence for row in rows] == list(range(100))
    for before, row in pairwise(rows):
        assert row.body.endswith(before.digest.hex().encode())


async def test_an_entry_is_written_with_its_batch(store: Store) -> None:
    await store.append(TENANT, [auditing()])

    with pytest.raises(SequenceTaken):
        await store.append(TENANT, [auditing(first=0)])

    assert len(await store.audit_entries(0, 10)) == 1


async def test_a_tenant_reads_its_own_entries_newest_first_in_pages(store: Store) -> None:
    for number in range(6):
        await store.append_audit(draft(f"n{number}", TENANT if number % 2 else OTHER))

    first = await store.audit_page(TENANT, None, 2)
    second = await store.audit_page(TENANT, first[-1].sequence, 2)

    assert [row.sequence for row in [*first, *second]] == [5, 3, 1]
    assert {row.tenant for row in await store.audit_page(OTHER, None, 10)} == {OTHER}


async def test_checkpoints_are_stored_once_and_found_by_position(store: Store) -> None:
    for at in (4, 9, 14):
        assert await store.put_checkpoint(checkpoint(at))

    assert not await store.put_checkpoint(checkpoint(9))
    assert [row.at_sequence for row in await store.checkpoints(5, 14)] == [9, 14]
    assert await store.last_checkpoint(9) == checkpoint(4)
    assert await store.last_checkpoint(10) == checkpoint(9)
    assert await store.signed_head() == 14


async def test_a_checkpoint_with_an_invalid_signature_is_not_continued(store: Store) -> None:
    key = CheckpointKey(b"k" * 32)
    audit = Audit(store, key, lambda: T0, Redactors())
    for number in range(3):
        await audit.record(TENANT, "ada", "run.cancel", f"run-{number}")
    forged = MerkleTree()
    for _ in range(3):
        forged.add(b"another history")
    await store.put_checkpoint(
        CheckpointRow(
            at_sequence=2,
            merkle_root=forged.root().hex(),
            signature="AAAA",
            public_key=key.public_key,
            peaks=forged.peaks,
        )
    )
    await audit.record(TENANT, "ada", "run.cancel", "run-3")

    await audit.sign()

    history = MerkleTree()
    for row in await store.audit_entries(0, 10):
        history.add(row.body)
    last = await store.last_checkpoint(10)
    assert last is not None
    assert (last.at_sequence, last.merkle_root) == (3, history.root().hex())


async def test_entries_appended_together_are_consecutive(store: Store) -> None:
    await store.append_audit(draft("a"))

    last = await store.append_audit(draft("b"), draft("c"))

    rows = await store.audit_entries(0, 10)
    assert last == 2
    assert [row.body.split()[1] for row in rows] == [b"a", b"b", b"c"]
    assert rows[2].body.endswith(rows[1].digest.hex().encode())


async def test_a_sink_has_its_own_position_that_never_goes_back(store: Store) -> None:
    assert await store.sink_position("a") == SinkPosition(-1, -1)

    await store.put_sink_position("a", SinkPosition(7, 5))
    await store.put_sink_position("b", SinkPosition(1, -1))
    await store.put_sink_position("a", SinkPosition(3, 6))

    assert await store.sink_position("a") == SinkPosition(7, 6)
    assert await store.sink_position("b") == SinkPosition(1, -1)


class FailingTrail(AuditTrail):
    """A trail whose writes fail with an unexpected error."""

    async def append(self, *drafts: AuditDraft) -> None:
        raise RuntimeError("not written")


async def test_every_caller_of_a_batch_learns_that_it_was_not_written(store: Store) -> None:
    batches = AuditBatches(FailingTrail(store, lambda: T0, Redactors()))
    failed: list[str] = []

    async def read(run_id: str) -> None:
        with pytest.raises(RuntimeError, match="not written"):
            await batches.record(TENANT, "ada", "run.read", run_id)
        failed.append(run_id)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read, "run-1")
        tasks.start_soon(read, "run-2")

    assert sorted(failed) == ["run-1", "run-2"]
