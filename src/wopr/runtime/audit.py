"""The audit trail: who did what, chained entry by entry and signed from time to time."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import structlog

from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.errors import WoprError
from wopr.protocol.times import to_iso
from wopr.runtime.host_secret import private_file
from wopr.security.audit_chain import CheckpointKey, Tree, is_signed, linked
from wopr.security.redact import Redactors
from wopr.store.port.audit import AuditDraft, AuditLog, CheckpointRow

FILE_NAME: Final = "audit.key"
INTERVAL_ENTRIES: Final = 1000
INTERVAL_SECONDS: Final = 300
# How often the log's length is looked at, so that a thousand entries do not wait for the clock.
LOOK_SECONDS: Final = 5.0
PAGE: Final = 500
# The tenant of what concerns the host as a whole.
HOST: Final = ""

# Which request an entry belongs to, where the caller said so.
correlation: ContextVar[str] = ContextVar("correlation", default="")

log = structlog.get_logger("wopr.audit")


def audit_key(data_dir: Path) -> CheckpointKey:
    """The key that signs checkpoints, made at the first start in a data directory."""
    return CheckpointKey(private_file(data_dir / FILE_NAME))


def local_operator() -> str:
    """Who works on the database from this machine's command line."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):
        return "cli"


class Entries:
    """`AuditTrail` on a store: entries that follow on each other."""

    def __init__(self, store: AuditLog, now: Callable[[], int], redactors: Redactors) -> None:
        self._store = store
        self._now = now
        self._redactors = redactors

    def draft(
        self,
        tenant: str,
        principal: str,
        action: str,
        resource: str,
        outcome: str = "allowed",
        **facts: Json,
    ) -> AuditDraft:
        """An entry to be written in the transaction of what it tells of."""
        entry: JsonObject = {
            "time": to_iso(self._now()),
            "tenant": tenant,
            "principal": principal,
            "action": action,
            "resource": resource,
            "outcome": outcome,
            "facts": {name: value for name, value in facts.items() if value is not None},
        }
        if correlation.get():
            entry["correlationId"] = correlation.get()
        kept: JsonObject = self._redactors.of(tenant).json(entry) | {"tenant": tenant}

        def link(sequence: int, previous: bytes | None) -> bytes:
            return linked(kept | {"sequence": sequence}, previous)

        return AuditDraft(tenant=tenant, link=link)

    async def record(
        self,
        tenant: str,
        principal: str,
        action: str,
        resource: str,
        outcome: str = "allowed",
        **facts: Json,
    ) -> None:
        """Append one entry durably."""
        await self.append(self.draft(tenant, principal, action, resource, outcome, **facts))

    async def append(self, *drafts: AuditDraft) -> None:
        """Append entries of one tenant durably and together."""
        await self._store.append_audit(*drafts)


@dataclass(slots=True)
class _Batch:
    """Entries that are written together, and whether they were."""

    drafts: list[AuditDraft] = field(default_factory=list[AuditDraft])
    written: anyio.Event = field(default_factory=anyio.Event)
    fault: WoprError | None = None


class AuditBatches:
    """`AuditTrail` for frequent entries: those that come during a write share the next one."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._open: dict[str, _Batch] = {}
        self._writing = anyio.Lock()

    async def record(
        self,
        tenant: str,
        principal: str,
        action: str,
        resource: str,
        outcome: str = "allowed",
        **facts: Json,
    ) -> None:
        """Append one entry durably, together with others of its tenant."""
        draft = self._entries.draft(tenant, principal, action, resource, outcome, **facts)
        batch = self._open.get(tenant)
        if batch is None:
            batch = self._open[tenant] = _Batch([draft])
            # The others of the batch depend on this task, also when its own caller has left.
            with anyio.CancelScope(shield=True):
                await self._write(tenant, batch)
        else:
            batch.drafts.append(draft)
            await batch.written.wait()
        if batch.fault is not None:
            raise batch.fault

    async def _write(self, tenant: str, batch: _Batch) -> None:
        try:
            async with self._writing:
                del self._open[tenant]
                await self._entries.append(*batch.drafts)
        except WoprError as fault:
            batch.fault = fault
        finally:
            batch.written.set()


class Audit(Entries):
    """A host's own trail: its entries, and signed checkpoints over them."""

    def __init__(
        self, store: AuditLog, key: CheckpointKey, now: Callable[[], int], redactors: Redactors
    ) -> None:
        super().__init__(store, now, redactors)
        self.public_key = key.public_key
        self._key = key

    async def keep_checkpoints(self) -> None:
        """Sign the log as it grows, until cancelled."""
        signed_at = anyio.current_time()
        while True:
            await anyio.sleep(LOOK_SECONDS)
            is_time = anyio.current_time() - signed_at >= INTERVAL_SECONDS
            try:
                await self.sign(least=1 if is_time else INTERVAL_ENTRIES)
            except WoprError as error:
                log.error("no checkpoint", code=error.code, message=str(error))
            if is_time:
                signed_at = anyio.current_time()

    async def sign(self, least: int = 1) -> None:
        """Make the checkpoints that are due: one per thousand entries, and one at the end.

        Fewer new entries than `least` are left for later.
        """
        head = await self._store.audit_head()
        last = await self._store.last_checkpoint(head + 1)
        signed = -1 if last is None else last.at_sequence
        if head - signed < least:
            return
        tree = await self._tree(last)
        while tree.count <= head:
            end = min(tree.count + INTERVAL_ENTRIES, head + 1)
            if least == INTERVAL_ENTRIES and end - tree.count < INTERVAL_ENTRIES:
                return
            if not await self._grow(tree, end):
                log.error("the audit log is damaged; nothing is signed", sequence=tree.count)
                return
            await self._store.put_checkpoint(self._checkpoint(tree))

    async def _tree(self, last: CheckpointRow | None) -> Tree:
        """The tree of the last checkpoint, or one grown from the beginning.

        A checkpoint that is damaged, or that this key did not sign, is not continued.
        """
        if last is None:
            return Tree()
        is_own = is_signed(last.merkle_root, last.signature, self.public_key)
        tree = Tree.restored(last.at_sequence + 1, last.peaks) if is_own else None
        if tree is None or tree.root().hex() != last.merkle_root:
            tree = Tree()
            await self._grow(tree, last.at_sequence + 1)
        return tree

    async def _grow(self, tree: Tree, end: int) -> bool:
        """Add the entries below `end`; False when one of them is missing."""
        while tree.count < end:
            page = await self._store.audit_entries(tree.count, min(PAGE, end - tree.count))
            if not page or page[-1].sequence != tree.count + len(page) - 1:
                return False
            for row in page:
                tree.add(row.body)
        return True

    def _checkpoint(self, tree: Tree) -> CheckpointRow:
        root = tree.root()
        return CheckpointRow(
            at_sequence=tree.count - 1,
            merkle_root=root.hex(),
            signature=self._key.sign(root),
            public_key=self.public_key,
            peaks=tree.peaks,
        )
