"""Runs are counted by status as far as they are open: ended ones are counters of each process."""

from __future__ import annotations

from wopr.store.postgres.schema_host import HostFunction

# The index `runs_unfinished` holds these and no others.
OPEN_COUNTS = HostFunction(
    name="host_counts",
    gives="TABLE (status text, runs bigint)",
    body="SELECT status, count(*) FROM runs WHERE ended_at IS NULL GROUP BY status",
)

COUNTS = (OPEN_COUNTS.replacement,)
