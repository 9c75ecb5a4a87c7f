"""Long-term memory as agents use it: redacted when written, within one tenant when read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from wopr.protocol.documents import UNSET
from wopr.protocol.errors import Refused
from wopr.protocol.memory import MemoryEntry, MemoryListOptions
from wopr.protocol.times import to_iso
from wopr.security.redact import Redactor
from wopr.store.port import Memories, MemoryRow

LIST_DEFAULT: Final = 100
LIST_MOST: Final = 1000
MAX_ENTRY_BYTES: Final = 256 * 1024
# 31 December 9999: no timestamp can name a later instant.
END_OF_CALENDAR: Final = 253_402_300_799_999
_EVERYTHING: Final = MemoryListOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryScope:
    """One memory as one run sees it; without a start, as an onlooker does.

    The tenant is the run's own. A reference says which memory of that tenant, never whose.
    """

    tenant: str
    memory_ref: str
    run_id: str
    run_started_at: int | None = None


class Memory:
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
        """Remember something without its secrets; the answer is the entry that is kept.

        Writing under an id that is taken changes nothing, so that a step that runs twice writes
        once. Give ids that are made from the run and the node.
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
        """What the run remembers, newest first; a limit of 0 is the host's own."""
        limit = LIST_DEFAULT if options.limit is UNSET else options.limit or LIST_DEFAULT
        rows = await self._store.memories(
            scope.tenant,
            scope.memory_ref,
            now=self._now(),
            visible_to_run=_viewer(scope),
            run_started_at=scope.run_started_at,
            tag=None if options.tag is UNSET else options.tag,
            limit=min(limit, LIST_MOST),
        )
        return [_entry(row) for row in rows]

    async def get(self, scope: MemoryScope, memory_id: str) -> MemoryEntry | None:
        """One entry, or None when there is none that the run can see."""
        row = await self._store.memory(
            scope.tenant,
            scope.memory_ref,
            memory_id,
            self._now(),
            visible_to_run=_viewer(scope),
            run_started_at=scope.run_started_at,
        )
        return None if row is None else _entry(row)


def _check(row: MemoryRow) -> None:
    if len(row.content.encode("utf-8", "replace")) > MAX_ENTRY_BYTES:
        raise Refused(f"a memory entry may have at most {MAX_ENTRY_BYTES} bytes", field="content")
    if row.expires_at is not None and not 0 <= row.expires_at <= END_OF_CALENDAR:
        raise Refused("expiresAt must be an instant of the calendar", field="expiresAt")


def _viewer(scope: MemoryScope) -> str | None:
    return None if scope.run_started_at is None else scope.run_id


def _entry(row: MemoryRow) -> MemoryEntry:
    return MemoryEntry(
        id=row.memory_id,
        content=row.content,
        tags=[*row.tags],
        created_at=to_iso(row.created_at),
        expires_at=UNSET if row.expires_at is None else to_iso(row.expires_at),
    )
