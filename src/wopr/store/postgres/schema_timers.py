"""Runs that are due, taken by a process many at a time."""

from __future__ import annotations

from wopr.store.postgres.schema_host import HostFunction
from wopr.store.postgres.schema_peers import HORIZON_MS, SAME_RUN
from wopr.store.postgres.security import host_functions

# Later than what is queued ahead of time: no job is made for a run that was taken. Its holder
# writes when the run is due next; should the holder die, the run is due at once.
_TAKEN_MS = HORIZON_MS + 5000

# The run is locked before its job, as an append does.
_TAKE_DUE = HostFunction(
    name="host_take_due",
    takes=("text", "bigint", "bigint"),
    gives="TABLE (tenant text, id text)",
    changes=True,
    body=f"""
        WITH due AS (
            SELECT r.run_id FROM runs r
            WHERE r.wake_at <= $2 AND r.holder IS NULL AND NOT EXISTS (
                SELECT 1 FROM procrastinate_jobs j
                WHERE j.lock = {SAME_RUN} AND j.status = 'doing'
            ) ORDER BY r.wake_at, r.run_id LIMIT $3 FOR UPDATE OF r SKIP LOCKED
        ), taken AS (
            UPDATE runs r SET holder = $1, wake_at = $2 + {_TAKEN_MS}
            FROM due d WHERE r.run_id = d.run_id RETURNING r.tenant, r.run_id
        ), unqueued AS (
            DELETE FROM procrastinate_jobs j USING taken r
            WHERE j.queueing_lock = {SAME_RUN} AND j.status = 'todo' RETURNING 1
        ) SELECT tenant, run_id FROM taken
    """,
)

TIMERS = host_functions((_TAKE_DUE,))
