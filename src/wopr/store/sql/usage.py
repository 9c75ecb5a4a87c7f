"""What both SQL stores count in `other_bytes`: the bytes of stored content beside the runs."""

from __future__ import annotations

from typing import Final

from wopr.store.port.usage import StoredUsage
from wopr.store.sql.dialect import Row

# The columns of each table whose bytes are counted. Migrations are made from this: a change here
# needs a new migration that makes the triggers again and counts again.
OTHER_CONTENT: Final = {
    "workflows": ("body",),
    "agents": ("body",),
    "annotations": ("body",),
    "answers": ("body",),
    "memories": ("content", "tags"),
    "queues": ("body",),
    "judges": ("body",),
    "dead_letters": ("type", "reason", "place"),
    "fleet_chunks": ("hashes", "body"),
    "otlp_parts": ("body",),
}
# Tables whose rows are counted too, and the column of `stored_bytes` that has the number.
ROW_COUNTS: Final = {"workflows": "workflow_versions", "agents": "agents"}
OTHER_COLUMNS: Final = ("other_bytes", *ROW_COUNTS.values())
USAGE_COLUMNS: Final = ("event_bytes", "artifact_bytes", *OTHER_COLUMNS)


def other_amounts(table: str, size: str, rows: str) -> str:
    """Return the values of `OTHER_COLUMNS` for rows of one table."""
    counts = (rows if counted == table else "0" for counted in ROW_COUNTS)
    return ", ".join((size, *counts))


def usage_of(row: Row) -> StoredUsage:
    """Read a row of active runs, queued runs and `USAGE_COLUMNS`."""
    return StoredUsage(
        active_runs=row[0],
        queued_runs=row[1],
        event_bytes=row[2],
        artifact_bytes=row[3],
        other_bytes=row[4],
        workflow_versions=row[5],
        agents=row[6],
    )
