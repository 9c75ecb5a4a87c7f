"""The audit trail: hash-chained entries of actions and principals, with signed checkpoints."""

from __future__ import annotations

import getpass
import time
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import structlog

from wopr.process.background import BackgroundTask
from wopr.process.keys import load_private_file
from wopr.protocol.documents import Json, JsonObject, to_iso
from wopr.protocol.errors import WoprError
from wopr.security.audit_chain import CheckpointKey, MerkleTree, is_valid_signature, link_entry
from wopr.security.redact import Redactors
from wopr.store.port.audit import AuditDraft, AuditLog, CheckpointRow

FILE_NAME: Final = "audit.key"
INTERVAL_ENTRIES: Final = 1000
INTERVAL_SECONDS: Final = 300
# How often the length of the log is checked, so that many entries are signed before the interval
# ends.
CHECK_SECONDS: Final = 5.0
PAGE: Final = 500
# Refused requests of one caller that are recorded one by one in each window.
DENIAL_WINDOW_MS: Final = 60_000
MAX_DENIALS_PER_WINDOW: Final = 20
MAX_DENIED_CALLERS: Final = 10_000
# The tenant of entries that concern the whole host.
HOST: Final = ""

# The correlation id of the current request, if the caller sent one.
correlation: ContextVar[str] = ContextVar("correlation", default="")

log = structlog.get_logger("wopr.audit")


def audit_key(data_dir: Path) -> CheckpointKey:
    """Return the key that signs checkpoints. The first start in a data directory creates it."""
    return CheckpointKey(load_private_file(data_dir / FILE_NAME))


def local_operator() -> str:
    """Return the principal of a command that works on the database directly."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):
        return "cli"


class AuditTrail:
    """Appends entries to the audit log. An entry never contains content."""

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
        """Create an entry that the caller writes in its own transaction."""
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
        content: JsonObject = self._redactors.of_tenant(tenant).json(entry) | {"tenant": tenant}

        def link(sequence: int, previous: bytes | None) -> bytes:
            return link_entry(content | {"sequence": sequence}, previous)

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
    """Entries that are written together, and the error if that failed."""

    drafts: list[AuditDraft] = field(default_factory=list[AuditDraft])
    written: anyio.Event = field(default_factory=anyio.Event)
    fault: Exception | None = None


class AuditBatches:
    """Appends frequent entries in batches.

    Entries that arrive during a write share the next write.
    """

    def __init__(self, trail: AuditTrail) -> None:
        self._trail = trail
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
        draft = self._trail.draft(tenant, principal, action, resource, outcome, **facts)
        batch = self._open.get(tenant)
        if batch is None:
            batch = self._open[tenant] = _Batch([draft])
            # The other callers of the batch wait for this write, so it is not cancelled.
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
                await self._trail.append(*batch.drafts)
        except Exception as fault:  # each caller of the batch raises it
            batch.fault = fault
        finally:
            batch.written.set()


class Audit(AuditTrail):
    """The audit trail of a host: entries, and signed checkpoints over them."""

    def __init__(
        self, store: AuditLog, key: CheckpointKey, now: Callable[[], int], redactors: Redactors
    ) -> None:
        super().__init__(store, now, redactors)
        self.public_key = key.public_key
        self._key = key
        self._signed_at = time.monotonic()
        self.checkpoints = BackgroundTask(
            "audit checkpoints", self._sign_due, period=CHECK_SECONDS, starts_at_once=False
        )

    async def _sign_due(self) -> None:
        is_time = time.monotonic() - self._signed_at >= INTERVAL_SECONDS
        if is_time:
            self._signed_at = time.monotonic()
        await self.sign(min_entries=1 if is_time else INTERVAL_ENTRIES)

    async def sign(self, min_entries: int = 1) -> None:
        """Write the checkpoints that are due: one per thousand entries, and one at the end.

        No checkpoint is written for fewer new entries than `min_entries`.
        """
        head = await self._store.audit_head()
        last = await self._store.last_checkpoint(head + 1)
        signed = -1 if last is None else last.at_sequence
        if head - signed < min_entries:
            return
        tree = await self._tree(last)
        while tree.count <= head:
            end = min(tree.count + INTERVAL_ENTRIES, head + 1)
            if min_entries == INTERVAL_ENTRIES and end - tree.count < INTERVAL_ENTRIES:
                return
            if not await self._add_entries(tree, end):
                log.error("audit log is damaged: no checkpoint signed", sequence=tree.count)
                return
            await self._store.put_checkpoint(self._checkpoint(tree))

    async def _tree(self, last: CheckpointRow | None) -> MerkleTree:
        """Return the tree of the last checkpoint, or one built from the first entry.

        A checkpoint that is damaged, or signed with another key, is not used.
        """
        if last is None:
            return MerkleTree()
        is_own = is_valid_signature(last.merkle_root, last.signature, self.public_key)
        tree = MerkleTree.restore(last.at_sequence + 1, last.peaks) if is_own else None
        if tree is None or tree.root().hex() != last.merkle_root:
            tree = MerkleTree()
            await self._add_entries(tree, last.at_sequence + 1)
        return tree

    async def _add_entries(self, tree: MerkleTree, end: int) -> bool:
        """Add the entries below `end` to the tree; return False if one of them is missing."""
        while tree.count < end:
            page = await self._store.audit_entries(tree.count, min(PAGE, end - tree.count))
            if not page or page[-1].sequence != tree.count + len(page) - 1:
                return False
            for row in page:
                tree.add(row.body)
        return True

    def _checkpoint(self, tree: MerkleTree) -> CheckpointRow:
        root = tree.root()
        return CheckpointRow(
            at_sequence=tree.count - 1,
            merkle_root=root.hex(),
            signature=self._key.sign(root),
            public_key=self.public_key,
            peaks=tree.peaks,
        )


@dataclass(slots=True)
class _Window:
    """The refusals of a caller in the current minute, and the number not recorded before."""

    number: int
    count: int = 0
    left_out: int = 0


class Denials:
    """Records refused requests.

    For each caller, it records the first refusals of a minute, and then only their number.
    """

    def __init__(self, audit: AuditTrail, now: Callable[[], int]) -> None:
        self._audit = audit
        self._now = now
        self._windows: OrderedDict[tuple[str, str], _Window] = OrderedDict()

    async def record(
        self, tenant: str, principal: str, action: str, resource: str, **facts: Json
    ) -> None:
        """Record a refusal, unless the caller already has enough of them in this minute."""
        window = self._window((tenant, principal))
        window.count += 1
        if window.count > MAX_DENIALS_PER_WINDOW:
            window.left_out += 1
            return
        left_out, window.left_out = window.left_out, 0
        facts |= {"leftOutBefore": left_out} if left_out else {}
        try:
            await self._audit.record(tenant, principal, action, resource, "denied", **facts)
        except WoprError as error:
            # The request is refused even if the refusal could not be recorded.
            log.error("refusal not recorded", code=error.code, message=str(error))

    def _window(self, caller: tuple[str, str]) -> _Window:
        number = self._now() // DENIAL_WINDOW_MS
        window = self._windows.setdefault(caller, _Window(number))
        if window.number != number:
            window.number, window.count = number, 0
        self._windows.move_to_end(caller)
        while len(self._windows) > MAX_DENIED_CALLERS:
            self._windows.popitem(last=False)
        return window
