"""A store whose content is encrypted: bodies are encrypted on the way in and decrypted on the way out.

Encrypted are the bodies of events, snapshots, fork documents, artifacts, pending interrupts,
annotations and remembered answers, the outcomes of invocations, and the content of memories. Every
other method is the store's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from wopr.protocol.errors import Refused
from wopr.store.port import (
    Artifact,
    Batch,
    Invocation,
    MemoryRow,
    RememberedAnswer,
    RunFilter,
    RunPage,
    RunRow,
    StoredEvent,
    StoredRun,
)
from wopr.store.port.content import ContentCipher
from wopr.store.port.feedback import AnnotationRow
from wopr.store.port.suspensions import Suspension, SuspensionFilter, SuspensionPage
from wopr.store.port.webhooks import Delivery, Rotation, WebhookRow
from wopr.store.sql.memories import check_memory
from wopr.store.sql.mentions import event_of

if TYPE_CHECKING:
    from wopr.store.port import Store
    from wopr.store.port.peers import Peers

_EVENTS_AT_ONCE: Final = 500


async def with_encryption(store: Store, cipher: ContentCipher | None) -> Store:
    """Return the store with its content encrypted; without a cipher, the store itself.

    Raises `Refused` when the database holds content of a key that the cipher does not have.
    """
    used = await store.encryption_keys()
    known = () if cipher is None else cipher.key_ids
    if missing := [key for key in used if key not in known]:
        raise Refused(
            f"the database holds content that is encrypted with the key {', '.join(missing)}, "
            "which is not configured: add it to WOPR_ENCRYPTION_KEY, WOPR_ENCRYPTION_KEY_FILE or "
            "WOPR_ENCRYPTION_KEY_COMMAND, after the key to write with",
            field="encryption_key",
        )
    if cipher is None:
        return store
    if cipher.key_ids[0] not in used:
        await store.add_encryption_key(cipher.key_ids[0])
    return cast("Store", EncryptedStore(store, cipher))


class EncryptedStore:
    """`Store` on another store, with the content encrypted."""

    def __init__(self, store: Store, cipher: ContentCipher) -> None:
        self._store = store
        self._cipher = cipher

    def __getattr__(self, name: str) -> Any:
        """Pass everything without content on."""
        return getattr(self._store, name)

    @property
    def peers(self) -> Peers | None:
        """The processes that share the database; annotations that they tell of are decrypted."""
        peers = self._store.peers
        return None if peers is None else cast("Peers", _EncryptedPeers(peers, self._cipher))

    async def append(self, tenant: str, batches: Sequence[Batch]) -> bool:
        """Write every batch or none."""
        return await self._store.append(tenant, [self._batch(tenant, each) for each in batches])

    async def read(
        self,
        tenant: str,
        run_id: str,
        start: int = 0,
        limit: int = 100,
        *,
        most_bytes: int | None = None,
    ) -> list[StoredEvent]:
        """Events from `start` on, in order; `most_bytes` counts them as they are stored."""
        found = await self._store.read(tenant, run_id, start, limit, most_bytes=most_bytes)
        return [self._plain_event(tenant, run_id, event) for event in found]

    async def event(self, tenant: str, run_id: str, event_id: str) -> StoredEvent | None:
        """The event with that id: the log is read from its start, because no index has the ids."""
        needle, start = msgspec.json.encode(event_id), 0
        while events := await self.read(tenant, run_id, start, _EVENTS_AT_ONCE):
            rows = [(each.sequence, each.type, each.body) for each in events if needle in each.body]
            if found := event_of(rows, event_id):
                return found
            start = events[-1].sequence + 1
        return None

    async def run(self, tenant: str, run_id: str) -> RunRow | None:
        """The run's row."""
        found = await self._store.run(tenant, run_id)
        return None if found is None else self._plain_run(tenant, found)

    async def load(self, tenant: str, run_ids: Sequence[str], most_events: int) -> list[StoredRun]:
        """Runs of the tenant, each with its first events."""
        return [
            StoredRun(
                row=self._plain_run(tenant, each.row),
                events=[self._plain_event(tenant, each.row.run_id, event) for event in each.events],
            )
            for each in await self._store.load(tenant, run_ids, most_events)
        ]

    async def runs(
        self, tenant: str, where: RunFilter, after: tuple[int, str] | None, limit: int
    ) -> RunPage:
        """A page of runs, newest first."""
        page = await self._store.runs(tenant, where, after, limit)
        return replace(page, runs=tuple(self._plain_run(tenant, row) for row in page.runs))

    async def artifact(self, tenant: str, run_id: str, artifact_id: str) -> Artifact | None:
        """An artifact of the run, or None."""
        found = await self._store.artifact(tenant, run_id, artifact_id)
        if found is None:
            return None
        body = self._cipher.decrypt(found.body, "artifact", tenant, run_id, artifact_id)
        return replace(found, body=body)

    async def pending(
        self, tenant: str, where: SuspensionFilter, after: tuple[int, str] | None, limit: int
    ) -> SuspensionPage:
        """A page of the tenant's pending interrupts."""
        page = await self._store.pending(tenant, where, after, limit)
        plain = [
            replace(each, body=self._cipher.decrypt(each.body, *_suspension(tenant, each)))
            for each in page.suspensions
        ]
        return replace(page, suspensions=tuple(plain))

    async def answer(self, tenant: str, key_hash: bytes) -> RememberedAnswer | None:
        """The answer that is remembered under a key."""
        found = await self._store.answer(tenant, key_hash)
        if found is None:
            return None
        return replace(found, body=self._cipher.decrypt(found.body, *_answer(tenant, found)))

    async def remember(self, tenant: str, answer: RememberedAnswer) -> None:
        """Remember an answer."""
        await self._store.remember(tenant, self._answer(tenant, answer))

    async def claim(self, tenant: str, invocation: Invocation) -> Invocation:
        """Claim an outside effect, or find what came of it."""
        found = await self._store.claim(tenant, invocation)
        if found.outcome is None:
            return found
        place = ("invocation", tenant, found.invocation_id)
        return replace(found, outcome=self._cipher.decrypt(found.outcome, *place))

    async def settle(self, tenant: str, invocation_id: str, state: str, outcome: bytes) -> None:
        """Keep what came of an outside effect."""
        sealed = self._cipher.encrypt(outcome, "invocation", tenant, invocation_id)
        await self._store.settle(tenant, invocation_id, state, sealed)

    async def put_memory(self, tenant: str, row: MemoryRow) -> bool:
        """Keep a memory."""
        # Before it is encrypted: afterwards no content is too odd to be stored.
        check_memory(row)
        content = self._cipher.encrypt_text(row.content, *_memory(tenant, row))
        return await self._store.put_memory(tenant, replace(row, content=content))

    async def memories(self, tenant: str, memory_ref: str, **where: Any) -> list[MemoryRow]:
        """The entries under a reference."""
        found = await self._store.memories(tenant, memory_ref, **where)
        return [self._plain_memory(tenant, row) for row in found]

    async def memory(
        self, tenant: str, memory_ref: str, memory_id: str, now: int, **where: Any
    ) -> MemoryRow | None:
        """One entry, or None."""
        found = await self._store.memory(tenant, memory_ref, memory_id, now, **where)
        return None if found is None else self._plain_memory(tenant, found)

    async def put_annotation(
        self, tenant: str, row: AnnotationRow, remember: RememberedAnswer | None = None
    ) -> None:
        """Keep an annotation."""
        await self._store.put_annotation(
            tenant, self._annotation(tenant, row), self._answer_or_none(tenant, remember)
        )

    async def annotations(
        self, tenant: str, run_id: str, after: tuple[int, str] | None, limit: int
    ) -> list[AnnotationRow]:
        """Annotations of a run."""
        return [
            replace(row, body=self._cipher.decrypt(row.body, *_annotation(tenant, row)))
            for row in await self._store.annotations(tenant, run_id, after, limit)
        ]

    async def put_webhook(
        self, tenant: str, row: WebhookRow, remember: RememberedAnswer | None = None
    ) -> None:
        """Keep a new subscription."""
        await self._store.put_webhook(tenant, row, self._answer_or_none(tenant, remember))

    async def rotate_webhook(
        self,
        tenant: str,
        webhook_id: str,
        rotation: Rotation,
        remember: RememberedAnswer | None = None,
    ) -> bool:
        """Give a subscription a new secret."""
        sealed = self._answer_or_none(tenant, remember)
        return await self._store.rotate_webhook(tenant, webhook_id, rotation, sealed)

    async def deliveries(
        self, tenant: str, webhook_id: str, run_id: str, limit: int
    ) -> Sequence[Delivery]:
        """The first events of a lane."""
        return [
            replace(
                each,
                body=self._cipher.decrypt(each.body, "event", tenant, run_id, each.sequence),
            )
            for each in await self._store.deliveries(tenant, webhook_id, run_id, limit)
        ]

    def _batch(self, tenant: str, batch: Batch) -> Batch:
        run_id = batch.run.run_id
        return replace(
            batch,
            run=self._run(tenant, batch.run),
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
            remember=self._answer_or_none(tenant, batch.remember),
            suspends=tuple(
                replace(each, body=self._cipher.encrypt(each.body, *_suspension(tenant, each)))
                for each in batch.suspends
            ),
            annotations=tuple(self._annotation(tenant, row) for row in batch.annotations),
        )

    def _run(self, tenant: str, row: RunRow) -> RunRow:
        if row.snapshot is None and row.fork is None:
            return row
        return replace(
            row,
            snapshot=row.snapshot
            and self._cipher.encrypt(row.snapshot, "snapshot", tenant, row.run_id),
            fork=row.fork and self._cipher.encrypt(row.fork, "fork", tenant, row.run_id),
        )

    def _plain_run(self, tenant: str, row: RunRow) -> RunRow:
        if row.snapshot is None and row.fork is None:
            return row
        return replace(
            row,
            snapshot=row.snapshot
            and self._cipher.decrypt(row.snapshot, "snapshot", tenant, row.run_id),
            fork=row.fork and self._cipher.decrypt(row.fork, "fork", tenant, row.run_id),
        )

    def _plain_event(self, tenant: str, run_id: str, event: StoredEvent) -> StoredEvent:
        body = self._cipher.decrypt(event.body, "event", tenant, run_id, event.sequence)
        return StoredEvent(sequence=event.sequence, type=event.type, body=body)

    def _answer(self, tenant: str, answer: RememberedAnswer) -> RememberedAnswer:
        return replace(answer, body=self._cipher.encrypt(answer.body, *_answer(tenant, answer)))

    def _answer_or_none(
        self, tenant: str, answer: RememberedAnswer | None
    ) -> RememberedAnswer | None:
        return None if answer is None else self._answer(tenant, answer)

    def _annotation(self, tenant: str, row: AnnotationRow) -> AnnotationRow:
        return replace(row, body=self._cipher.encrypt(row.body, *_annotation(tenant, row)))

    def _plain_memory(self, tenant: str, row: MemoryRow) -> MemoryRow:
        content = self._cipher.decrypt_text(row.content, *_memory(tenant, row))
        return replace(row, content=content)


class _EncryptedPeers:
    """`Peers` with the annotations decrypted."""

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


def _suspension(tenant: str, each: Suspension) -> tuple[str, ...]:
    return ("suspension", tenant, each.run_id, each.interrupt_id)


def _answer(tenant: str, answer: RememberedAnswer) -> tuple[str, ...]:
    return ("answer", tenant, answer.key_hash.hex())


def _annotation(tenant: str, row: AnnotationRow) -> tuple[str, ...]:
    return ("annotation", tenant, row.run_id, row.annotation_id)


def _memory(tenant: str, row: MemoryRow) -> tuple[str, ...]:
    return ("memory", tenant, row.memory_ref, row.memory_id)
