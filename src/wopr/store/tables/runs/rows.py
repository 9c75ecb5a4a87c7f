"""Columns of the table `runs`."""

from __future__ import annotations

import msgspec

from wopr.store.port import RunRow
from wopr.store.tables.dialect import Row, decode_names

_types = msgspec.json.Decoder(dict[str, str])

# The column `wish` has the pending command.
RUN_COLUMNS = (
    "r.run_id, r.workflow_id, r.workflow_version, r.status, r.created_at, r.updated_at, "
    "r.last_sequence, r.ended_at, r.wake_at, r.parent_run_id, r.parent_node_id, r.tags, "
    "r.wish, r.sealed, r.snapshot, r.source_run_id, r.fork, r.missing_types, "
    "r.root_run_id, r.descendants, r.crashes, r.quarantined_at"
)
# The columns of listings, which have no snapshots: a snapshot can have megabytes.
LISTED_COLUMNS = RUN_COLUMNS.replace("r.snapshot", "NULL AS snapshot")


def run_row(row: Row) -> RunRow:
    """Return the run in a row of `RUN_COLUMNS`."""
    return RunRow(
        run_id=row[0],
        workflow_id=row[1],
        workflow_version=row[2],
        status=row[3],
        created_at=row[4],
        updated_at=row[5],
        last_sequence=row[6],
        ended_at=row[7],
        wake_at=row[8],
        parent_run_id=row[9],
        parent_node_id=row[10],
        tags=decode_names(row[11]),
        pending_command=row[12],
        sealed=row[13],
        snapshot=row[14],
        source_run_id=row[15],
        fork=row[16],
        missing_types={} if row[17] is None else _types.decode(row[17]),
        root_run_id=row[18],
        descendants=row[19],
        crashes=row[20],
        quarantined_at=row[21],
    )
