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
