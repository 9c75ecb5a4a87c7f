"""A store that encrypts its content before it is written and decrypts it after it is read.

It encrypts the bodies of events, snapshots, fork documents, artifacts, pending interrupts,
annotations and idempotency records, the outcomes of invocations, and the content of memories. It
passes all other calls on to the wrapped store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, cast

import msgspec

from wopr.protocol.errors import Refused
from wopr.store.port import (
    Artifact,
    Batch,
    IdempotencyRecord,
    Invocation,
    MemoryRow,
    RunFilter,
    RunPage,
    RunRow,
    Store,
    StoredEvent,
    StoredRun,
)
from wopr.store.port.feedback import AnnotationRow, JudgedRow, Review
from wopr.store.port.peers import Peers
from wopr.store.port.store import ContentCipher
from wopr.store.port.suspensions import Suspension, SuspensionFilter, SuspensionPage
from wopr.store.port.webhooks import Delivery, Rotation, WebhookRow
from wopr.store.tables.memories import check_memory
from wopr.store.tables.runs.runs import find_event

_EVENTS_AT_ONCE: Final = 500


async def with_encryption(store: Store, cipher: ContentCipher | None) -> Store:
    """Return the store with its content encrypted, or the store itself if there is no cipher.

    Raises `Refused` if the database has content of a key that the cipher does not have.
    """
    used = await store.encryption_keys()
    known = () if cipher is None else cipher.key_ids
    if missing := [key for key in used if key not in known]:
        raise Refused(
            f"the database has content that is encrypted with the key {', '.join(missing)}, "
            "which is not configured: add it to WOPR_ENCRYPTION_KEY, WOPR_ENCRYPTION_KEY_FILE or "
            "WOPR_ENCRYPTION_KEY_COMMAND, after the key that encrypts new content",
            field="encryption_key",
        )
    if cipher is None:
        return store
    if cipher.key_ids[0] not in used:
        await store.add_encryption_key(cipher.key_ids[0])
    return cast(Store, EncryptedStore(store, cipher))


class EncryptedStore:
    """`Store` on another store, with the content encrypted."""

    def __init__(self, store: Store, cipher: ContentCipher) -> None:
        self._store = store
        self._cipher = cipher

    def __getattr__(self, name: str) -> Any:
        """Return a method of the wrapped store, for data that is not encrypted."""
        return getattr(self._store, name)

    @property
    def peers(self) -> Peers | None:
        """The processes that share the database; their annotations are decrypted."""
        peers = self._store.peers
        return None if peers is None else cast(Peers, _EncryptedPeers(peers, self._cipher))

    async def append(self, tenant: str, batches: Sequence[Batch]) -> bool:
        """Write every batch or none."""
        return await self._store.append(
            tenant, [self._encrypt_batch(tenant, each) for each in batches]
        )

    async def read(
        self,
        tenant: str,
        run_id: str,
        start: int = 0,
        limit: int = 100,
        *,
        most_bytes: int | None = None,
    ) -> list[StoredEvent]:
        """Read events from `start` on, in order; `most_bytes` counts them as they are stored."""
        found = await self._store.read(tenant, run_id, start, limit, most_bytes=most_bytes)
        return [self._decrypt_event(tenant, run_id, event) for event in found]

    async def event(self, tenant: str, run_id: str, event_id: str) -> StoredEvent | None:
        """Return the event with that id.

        It reads the log from its start, because bodies are encrypted.
        """
        needle, start = msgspec.json.encode(event_id), 0
        while events := await self.read(tenant, run_id, start, _EVENTS_AT_ONCE):
            rows = [(each.sequence, each.type, each.body) for each in events if needle in each.body]
            if found := find_event(rows, event_id):
                return found
            start = events[-1].sequence + 1
        return None

    async def run(self, tenant: str, run_id: str) -> RunRow | None:
        """Return the run's row."""
        found = await self._store.run(tenant, run_id)
        return None if found is None else self._decrypt_run(tenant, found)

    async def load_runs(
        self, tenant: str, run_ids: Sequence[str], most_events: int
    ) -> list[StoredRun]:
        """List runs of the tenant, each with its first events."""
        return [
            StoredRun(
                row=self._decrypt_run(tenant, each.row),
                events=[
                    self._decrypt_event(tenant, each.row.run_id, event) for event in each.events
                ],
            )
            for each in await self._store.load_runs(tenant, run_ids, most_events)
        ]

    async def runs(
        self, tenant: str, where: RunFilter, after: tuple[int, str] | None, limit: int
    ) -> RunPage:
        """List a page of runs, newest first."""
        page = await self._store.runs(tenant, where, after, limit)
        return replace(page, runs=tuple(self._decrypt_run(tenant, row) for row in page.runs))

    async def artifact(self, tenant: str, run_id: str, artifact_id: str) -> Artifact | None:
        """Return an artifact of the run, or None."""
        found = await self._store.artifact(tenant, run_id, artifact_id)
        if found is None:
            return None
        body = self._cipher.decrypt(found.body, "artifact", tenant, run_id, artifact_id)
        return replace(found, body=body)

    async def pending_interrupts(
        self, tenant: str, where: SuspensionFilter, after: tuple[int, str] | None, limit: int
    ) -> SuspensionPage:
        """List a page of the tenant's pending interrupts."""
        page = await self._store.pending_interrupts(tenant, where, after, limit)
        plain = [
            replace(each, body=self._cipher.decrypt(each.body, *_suspension_context(tenant, each)))
            for each in page.suspensions
        ]
        return replace(page, suspensions=tuple(plain))

    async def idempotency_record(self, tenant: str, key_hash: bytes) -> IdempotencyRecord | None:
        """Return the record that is stored under a key."""
        found = await self._store.idempotency_record(tenant, key_hash)
        if found is None:
            return None
        return replace(
            found, body=self._cipher.decrypt(found.body, *_record_context(tenant, found))
        )

    async def put_idempotency_record(self, tenant: str, record: IdempotencyRecord) -> None:
        """Store a record."""
        await self._store.put_idempotency_record(tenant, self._encrypt_record(tenant, record))

    async def claim_invocation(self, tenant: str, invocation: Invocation) -> Invocation:
        """Claim an outside effect, or return its record."""
        found = await self._store.claim_invocation(tenant, invocation)
        if found.outcome is None:
            return found
        context = ("invocation", tenant, found.invocation_id)
        return replace(found, outcome=self._cipher.decrypt(found.outcome, *context))

    async def settle_invocation(
        self, tenant: str, invocation_id: str, state: str, outcome: bytes
    ) -> None:
        """Record how an outside effect ended."""
        encrypted = self._cipher.encrypt(outcome, "invocation", tenant, invocation_id)
        await self._store.settle_invocation(tenant, invocation_id, state, encrypted)

    async def put_memory(self, tenant: str, row: MemoryRow) -> bool:
        """Store a memory."""
        # Checked before the encryption, because encrypted content is always valid.
        check_memory(row)
        content = self._cipher.encrypt_text(row.content, *_memory_context(tenant, row))
        return await self._store.put_memory(tenant, replace(row, content=content))

    async def memories(self, tenant: str, memory_ref: str, **where: Any) -> list[MemoryRow]:
        """Return the entries under a reference."""
        found = await self._store.memories(tenant, memory_ref, **where)
        return [self._decrypt_memory(tenant, row) for row in found]

    async def memory(
        self, tenant: str, memory_ref: str, memory_id: str, now: int, **where: Any
    ) -> MemoryRow | None:
        """Return one entry."""
        found = await self._store.memory(tenant, memory_ref, memory_id, now, **where)
        return None if found is None else self._decrypt_memory(tenant, found)

    async def put_annotation(
        self, tenant: str, row: AnnotationRow, idempotency: IdempotencyRecord | None = None
    ) -> None:
        """Store an annotation."""
        await self._store.put_annotation(
            tenant,
            self._encrypt_annotation(tenant, row),
            self._encrypt_record_or_none(tenant, idempotency),
        )

    async def annotations(
        self, tenant: str, run_id: str, after: tuple[int, str] | None, limit: int
    ) -> list[AnnotationRow]:
        """List annotations of a run."""
        return [
            replace(row, body=self._cipher.decrypt(row.body, *_annotation_context(tenant, row)))
            for row in await self._store.annotations(tenant, run_id, after, limit)
        ]

    async def finish_review(self, tenant: str, review: Review) -> tuple[int, bool]:
        """Store a review with its annotations."""
        annotations = tuple(self._encrypt_annotation(tenant, row) for row in review.annotations)
        return await self._store.finish_review(tenant, replace(review, annotations=annotations))

    async def set_judged_state(
        self, tenant: str, judge_id: str, item: JudgedRow, annotation: AnnotationRow | None = None
    ) -> bool:
        """Set the state of a judged run, with its annotation."""
        encrypted = None if annotation is None else self._encrypt_annotation(tenant, annotation)
        return await self._store.set_judged_state(tenant, judge_id, item, encrypted)

    async def put_webhook(
        self, tenant: str, row: WebhookRow, idempotency: IdempotencyRecord | None = None
    ) -> None:
        """Store a new subscription."""
        await self._store.put_webhook(
            tenant, row, self._encrypt_record_or_none(tenant, idempotency)
        )

    async def rotate_webhook(
        self,
        tenant: str,
        webhook_id: str,
        rotation: Rotation,
        idempotency: IdempotencyRecord | None = None,
    ) -> bool:
        """Give a subscription a new secret."""
        record = self._encrypt_record_or_none(tenant, idempotency)
        return await self._store.rotate_webhook(tenant, webhook_id, rotation, record)

    async def deliveries(
        self, tenant: str, webhook_id: str, run_id: str, limit: int
    ) -> Sequence[Delivery]:
        """List the first events of a queue."""
        return [
            replace(
                each,
                body=self._cipher.decrypt(each.body, "event", tenant, run_id, each.sequence),
            )
            for each in await self._store.deliveries(tenant, webhook_id, run_id, limit)
        ]

    def _encrypt_batch(self, tenant: str, batch: Batch) -> Batch:
        run_id = batch.run.run_id
        return replace(
            batch,
            run=self._encrypt_run(tenant, batch.run),
            events=tuple(
                StoredEvent(
                    sequence=event.sequence,
                    type=event.type,
                    body=self._cipher.encrypt(event.body, "event", tenant, run_id, event.sequence),
                )
                for event in batch.events
            ),
            artifacts=tuple(
                replace(
                    each,
                    body=self._cipher.encrypt(
                        each.body, "artifact", tenant, run_id, each.artifact_id
                    ),
                )
                for each in batch.artifacts
            ),
            idempotency=self._encrypt_record_or_none(tenant, batch.idempotency),
            suspends=tuple(
                replace(
                    each, body=self._cipher.encrypt(each.body, *_suspension_context(tenant, each))
                )
                for each in batch.suspends
            ),
            annotations=tuple(self._encrypt_annotation(tenant, row) for row in batch.annotations),
        )

    def _encrypt_run(self, tenant: str, row: RunRow) -> RunRow:
        if row.snapshot is None and row.fork is None:
            return row
        return replace(
            row,
            snapshot=row.snapshot
            and self._cipher.encrypt(row.snapshot, "snapshot", tenant, row.run_id),
            fork=row.fork and self._cipher.encrypt(row.fork, "fork", tenant, row.run_id),
        )

    def _decrypt_run(self, tenant: str, row: RunRow) -> RunRow:
        if row.snapshot is None and row.fork is None:
            return row
        return replace(
            row,
            snapshot=row.snapshot
            and self._cipher.decrypt(row.snapshot, "snapshot", tenant, row.run_id),
            fork=row.fork and self._cipher.decrypt(row.fork, "fork", tenant, row.run_id),
        )

    def _decrypt_event(self, tenant: str, run_id: str, event: StoredEvent) -> StoredEvent:
        body = self._cipher.decrypt(event.body, "event", tenant, run_id, event.sequence)
        return StoredEvent(sequence=event.sequence, type=event.type, body=body)

    def _encrypt_record(self, tenant: str, record: IdempotencyRecord) -> IdempotencyRecord:
        return replace(
            record, body=self._cipher.encrypt(record.body, *_record_context(tenant, record))
        )

    def _encrypt_record_or_none(
        self, tenant: str, record: IdempotencyRecord | None
    ) -> IdempotencyRecord | None:
        return None if record is None else self._encrypt_record(tenant, record)

    def _encrypt_annotation(self, tenant: str, row: AnnotationRow) -> AnnotationRow:
        return replace(row, body=self._cipher.encrypt(row.body, *_annotation_context(tenant, row)))

    def _decrypt_memory(self, tenant: str, row: MemoryRow) -> MemoryRow:
        content = self._cipher.decrypt_text(row.content, *_memory_context(tenant, row))
        return replace(row, content=content)


class _EncryptedPeers:
    """`Peers` that decrypts annotations."""

    def __init__(self, peers: Peers, cipher: ContentCipher) -> None:
        self._peers = peers
        self._cipher = cipher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._peers, name)

    async def annotation(self, tenant: str, run_id: str, annotation_id: str) -> bytes | None:
        body = await self._peers.annotation(tenant, run_id, annotation_id)
        if body is None:
            return None
        return self._cipher.decrypt(body, "annotation", tenant, run_id, annotation_id)


def _suspension_context(tenant: str, each: Suspension) -> tuple[str, ...]:
    return ("suspension", tenant, each.run_id, each.interrupt_id)


def _record_context(tenant: str, record: IdempotencyRecord) -> tuple[str, ...]:
    # `answer` is the older name of an idempotency record. Stored values contain it.
    return ("answer", tenant, record.key_hash.hex())


def _annotation_context(tenant: str, row: AnnotationRow) -> tuple[str, ...]:
    return ("annotation", tenant, row.run_id, row.annotation_id)


def _memory_context(tenant: str, row: MemoryRow) -> tuple[str, ...]:
    return ("memory", tenant, row.memory_ref, row.memory_id)
