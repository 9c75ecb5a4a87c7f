"""The table of the fleet's debts."""

from __future__ import annotations

# A place is never given twice: it tells what was projected from what came since. Whatever ran
# before there was a fleet is owed to it too.
PROJECTIONS = (
    """
    CREATE TABLE projections (
        place  INTEGER PRIMARY KEY AUTOINCREMENT,
        tenant TEXT NOT NULL,
        run_id TEXT NOT NULL UNIQUE
    )
    """,
    "INSERT INTO projections (tenant, run_id) SELECT tenant, run_id FROM runs",
)

# What is owed to observed runs and what is owed of the host's own are two queues in one table.
OBSERVED_PROJECTIONS = (
    "CREATE INDEX projections_observed ON projections (run_id GLOB 'kahn-*', place)",
    """
    CREATE INDEX projections_by_tenant ON projections (tenant, place)
    WHERE run_id GLOB 'kahn-*'
    """,
)
