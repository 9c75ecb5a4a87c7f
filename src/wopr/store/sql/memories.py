"""What every adapter asks of a memory entry before it keeps it."""

from __future__ import annotations

from wopr.protocol.errors import Refused
from wopr.protocol.memory import is_memory_id, is_memory_ref, is_memory_tag, is_text
from wopr.store.port import MemoryRow


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
