"""Long-term memory of agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """An entry of an agent's long-term memory, and the run that wrote it."""

    memory_ref: str
    memory_id: str
    content: str
    created_at: int
    run_id: str
    tags: tuple[str, ...] = ()
    expires_at: int | None = None


class Memories(Protocol):
    """Long-term memory. A reference that is invalid, or of another tenant, has no entries.

    A run sees the entries that were stored when it started, its own entries, and the entries of its
    completed child runs. So with `visible_to_run`, entries that other runs wrote after
    `run_started_at` are left out. Expired entries are never returned.
    """

    async def put_memory(self, tenant: str, row: MemoryRow) -> bool:
        """Store an entry; False when an entry that has not expired has its id.

        Raises `Refused` for a reference or an id that is not valid.
        """
        ...

    async def memories(
        self,
        tenant: str,
        memory_ref: str,
        *,
        now: int,
        visible_to_run: str | None = None,
        run_started_at: int | None = None,
        tag: str | None = None,
        limit: int = 100,
    ) -> list[MemoryRow]:
        """Return the entries under a reference, newest first."""
        ...

    async def memory(
        self,
        tenant: str,
        memory_ref: str,
        memory_id: str,
        now: int,
        *,
        visible_to_run: str | None = None,
        run_started_at: int | None = None,
    ) -> MemoryRow | None:
        """Return one entry."""
        ...
