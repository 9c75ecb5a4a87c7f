"""Long-term memory of agents: redacted when written, read within one tenant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from wopr.protocol.documents import UNSET, to_iso
from wopr.protocol.errors import Refused
from wopr.protocol.resources.memory import MemoryEntry, MemoryListOptions
from wopr.security.redact import Redactor
from wopr.store.port import Memories, MemoryRow

LIST_DEFAULT: Final = 100
LIST_MOST: Final = 1000
MAX_ENTRY_BYTES: Final = 256 * 1024
# 31 December 9999, the latest time that a timestamp can represent.
END_OF_CALENDAR: Final = 253_402_300_799_999
_EVERYTHING: Final = MemoryListOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryScope:
    """A memory as a run sees it, or without a start time as a reader outside of a run sees it.

    A reference names a memory within the tenant.
    """

    tenant: str
    memory_ref: str
    run_id: str
    run_started_at: int | None = None


class AgentMemory:
    """The memory adapter."""

    def __init__(
        self,
        store: Memories,
        now: Callable[[], int],
        check_quota: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._now = now
        # Raises `QuotaExceeded` for a tenant that may store no more.
        self._check_quota = check_quota

    async def put(
        self,
        scope: MemoryScope,
        memory_id: str,
        content: str,
        *,
        redactor: Redactor,
        tags: Sequence[str] = (),
        expires_at: int | None = None,
    ) -> MemoryEntry:
        """Store an entry without its secrets and return the stored entry.

        An entry whose id exists is not written again, so that a repeated step writes once. Derive
        the id from the run and the node.
        """
        row = MemoryRow(
            memory_ref=scope.memory_ref,
            memory_id=memory_id,
            content=redactor.text(content),
            tags=tuple(dict.fromkeys(redactor.text(tag) for tag in tags if tag)),
            created_at=self._now(),
            expires_at=expires_at,
            run_id=scope.run_id,
        )
        _check(row)
        if self._check_quota is not None:
            await self._check_quota(scope.tenant)
        if await self._store.put_memory(scope.tenant, row):
            return _entry(row)
        kept = await self._store.memory(scope.tenant, row.memory_ref, memory_id, row.created_at)
        return _entry(kept or row)

    async def list(
        self, scope: MemoryScope, options: MemoryListOptions = _EVERYTHING
    ) -> list[MemoryEntry]:
        """Return the entries, newest first. A limit of 0 is the default limit."""
        limit = LIST_DEFAULT if options.limit is UNSET else options.limit or LIST_DEFAULT
        rows = await self._store.memories(
            scope.tenant,
            scope.memory_ref,
            now=self._now(),
            visible_to_run=_viewing_run(scope),
            run_started_at=scope.run_started_at,
            tag=None if options.tag is UNSET else options.tag,
            limit=min(limit, LIST_MOST),
        )
        return [_entry(row) for row in rows]

    async def get(self, scope: MemoryScope, memory_id: str) -> MemoryEntry | None:
        """Return one entry, or None if the run cannot see it."""
        row = await self._store.memory(
            scope.tenant,
            scope.memory_ref,
            memory_id,
            self._now(),
            visible_to_run=_viewing_run(scope),
            run_started_at=scope.run_started_at,
        )
        return None if row is None else _entry(row)


def _check(row: MemoryRow) -> None:
    if len(row.content.encode("utf-8", "replace")) > MAX_ENTRY_BYTES:
        raise Refused(f"a memory entry may have at most {MAX_ENTRY_BYTES} bytes", field="content")
    if row.expires_at is not None and not 0 <= row.expires_at <= END_OF_CALENDAR:
        raise Refused("expiresAt must be between 1970-01-01 and 9999-12-31", field="expiresAt")


def _viewing_run(scope: MemoryScope) -> str | None:
    return None if scope.run_started_at is None else scope.run_id


def _entry(row: MemoryRow) -> MemoryEntry:
    return MemoryEntry(
        id=row.memory_id,
        content=row.content,
        tags=[*row.tags],
        created_at=to_iso(row.created_at),
        expires_at=UNSET if row.expires_at is None else to_iso(row.expires_at),
    )
