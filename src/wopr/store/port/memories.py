"""The agents' long-term memory."""

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
    """Long-term memory. A reference that is malformed or another tenant's reads as empty.

    A run sees what was there when it started, what it wrote itself, and what the runs that it
    started wrote, once they have completed: with `visible_to_run`, entries that other runs wrote
    after `run_started_at` are left out. An entry that has expired
    is never seen, whether or not it has been deleted.
    """

    async def put_memory(self, tenant: str, row: MemoryRow) -> bool:
        """Keep an entry; False when its id is taken by one that has not expired: that one stays.

        Raises `Refused` for a reference or an id that could not be read again.
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
        """The entries under a reference, newest first."""
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
        """One entry, or None."""
        ...
