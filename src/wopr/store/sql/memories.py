"""Memory entries: how every adapter reads them, and what it asks of one before it keeps it."""

from __future__ import annotations

from typing import ClassVar

from wopr.protocol.errors import Refused
from wopr.protocol.memory import is_memory_id, is_memory_ref, is_memory_tag, is_text
from wopr.store.port import MemoryRow
from wopr.store.sql.dialect import Dialect, Parameter
from wopr.store.sql.reads import Reads
from wopr.store.sql.rows import MEMORY_COLUMNS, memory_row

_ALIVE = "(m.expires_at IS NULL OR m.expires_at > ?)"

# The runs that a run started, and those that they started, as far as they have completed.
_COMPLETED_BELOW = """
WITH RECURSIVE below (run_id) AS (
    SELECT run_id FROM runs WHERE tenant = ? AND parent_run_id = ? AND status = 'completed'
    UNION ALL
    SELECT r.run_id FROM below JOIN runs r ON r.parent_run_id = below.run_id
    WHERE r.tenant = ? AND r.status = 'completed'
) SELECT run_id FROM below
"""

# Without a run to be visible to, the bound is the end of time and every entry is below it.
_SEEN = f"(m.created_at <= ? OR m.run_id = ? OR m.run_id IN ({_COMPLETED_BELOW}))"

_ENTRY = f"""
SELECT {MEMORY_COLUMNS} FROM memories m
WHERE m.tenant = ? AND m.memory_ref = ? AND m.memory_id = ? AND {_ALIVE} AND {_SEEN}
"""

_END_OF_TIME = 2**63 - 1


def newest(dialect: Dialect) -> str:
    """The statement that lists a reference's entries."""
    return f"""
SELECT {MEMORY_COLUMNS} FROM memories m{dialect.by("memories_newest")}
WHERE m.tenant = ? AND m.memory_ref = ? AND {_ALIVE} AND {_SEEN}
ORDER BY m.created_at DESC, m.place DESC LIMIT ?
"""


def tagged(dialect: Dialect) -> str:
    """The statement that lists those of a reference's entries that have a tag."""
    return f"""
SELECT {MEMORY_COLUMNS} FROM memory_tags t {dialect.ordered_join} memories m ON m.place = t.place
WHERE t.tenant = ? AND t.memory_ref = ? AND t.tag = ? AND {_ALIVE} AND {_SEEN}
ORDER BY t.created_at DESC, t.place DESC LIMIT ?
"""


class MemoryReads(Reads):
    """The reads of `Memories`; the adapter's own are its two listings."""

    _newest: ClassVar[str]
    _tagged: ClassVar[str]

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
        if not is_memory_ref(memory_ref) or not (tag is None or is_memory_tag(tag)):
            return []
        view = _view(tenant, now, visible_to_run, run_started_at)
        if tag is None:
            rows = await self._read_many(tenant, self._newest, (tenant, memory_ref, *view, limit))
        else:
            rows = await self._read_many(
                tenant, self._tagged, (tenant, memory_ref, tag, *view, limit)
            )
        return [memory_row(row) for row in rows]

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
        if not is_memory_ref(memory_ref) or not is_memory_id(memory_id):
            return None
        view = _view(tenant, now, visible_to_run, run_started_at)
        rows = await self._read_few(tenant, _ENTRY, (tenant, memory_ref, memory_id, *view))
        return memory_row(rows[0]) if rows else None


def _view(
    tenant: str, now: int, run_id: str | None, started_at: int | None
) -> tuple[Parameter, ...]:
    """The parameters of `_ALIVE` and `_SEEN`."""
    bound = _END_OF_TIME if run_id is None or started_at is None else started_at
    return (now, bound, run_id, tenant, run_id, tenant)


def check_memory(row: MemoryRow) -> None:
    """Refuse what could be written and then not be asked for."""
    for name, is_fine in (
        ("memoryRef", is_memory_ref(row.memory_ref)),
        ("id", is_memory_id(row.memory_id)),
        ("tags", all(is_memory_tag(tag) for tag in row.tags)),
        ("content", is_text(row.content)),
    ):
        if not is_fine:
            raise Refused(f"{name} is not what a memory entry can have", field=name)
