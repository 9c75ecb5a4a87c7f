"""Runs that are due, taken by processes many at a time.

A run that no process holds is taken from its row when it is due. A job of the queue wakes a run that
a process holds, and a run that no process has taken in time.
"""

from __future__ import annotations

from wopr.store.postgres.schema_host import HostFunction
from wopr.store.postgres.schema_peers import HORIZON_MS, QUEUE, SAME_RUN, TASK
from wopr.store.postgres.security import host_functions

# How long a run that was taken is not due: its process writes when the run is due next. When the
# process dies before that, another process takes the run after this time.
TAKEN_MS = 10_000


def _taking(which: str, order: str = "") -> str:
    """Take the due runs that a condition names, and drop their jobs of the queue.

    The run is locked before its job, as an append does. The rows are found by their ids: a join
    would be planned for a tenth of the table, and read all of it.
    """
    return f"""
        WITH due AS (
            SELECT r.run_id FROM runs r
            WHERE {which} AND r.holder IS NULL AND NOT EXISTS (
                SELECT 1 FROM procrastinate_jobs j
                WHERE j.lock = {SAME_RUN} AND j.status = 'doing'
            ) {order} FOR UPDATE OF r SKIP LOCKED
        ), taken AS (
            UPDATE runs r SET wake_at = $1 + {TAKEN_MS}
            WHERE r.run_id = ANY (ARRAY (SELECT run_id FROM due)) RETURNING r.tenant, r.run_id
        ), unqueued AS (
            DELETE FROM procrastinate_jobs j
            WHERE j.queueing_lock = ANY (ARRAY (SELECT {SAME_RUN} FROM taken r))
            AND j.status = 'todo' RETURNING 1
        ) SELECT tenant, run_id FROM taken
    """


TAKE_DUE = HostFunction(
    name="host_take_due",
    takes=("bigint", "bigint"),
    gives="TABLE (tenant text, id text)",
    changes=True,
    body=_taking("r.wake_at <= $1", "ORDER BY r.wake_at, r.run_id LIMIT $2"),
)

# How long after its time a run that no process holds gets a job: then no process has taken it.
OVERDUE_MS = 2000

_QUEUE_DUE = HostFunction(
    name="host_queue_due",
    takes=("bigint", "bigint"),
    gives="bigint",
    changes=True,
    body=f"""
        WITH due AS (
            SELECT r.tenant, r.run_id, r.wake_at FROM runs r
            WHERE r.wake_at <= $1 + {HORIZON_MS}
            AND (r.holder IS NOT NULL OR r.wake_at <= $1 - {OVERDUE_MS})
            AND NOT EXISTS (
                SELECT 1 FROM procrastinate_jobs j
                WHERE j.queueing_lock = {SAME_RUN} AND j.status = 'todo'
            ) AND NOT EXISTS (
                SELECT 1 FROM procrastinate_jobs j
                WHERE j.lock = {SAME_RUN} AND j.status = 'doing'
            ) ORDER BY r.wake_at, r.run_id LIMIT $2
        ), queued AS (
            INSERT INTO procrastinate_jobs (
                queue_name, task_name, priority, lock, queueing_lock, args, scheduled_at
            )
            SELECT '{QUEUE}', '{TASK}', 0, d.run_id, d.run_id,
                jsonb_build_object('tenant', d.tenant, 'run_id', d.run_id),
                CASE WHEN d.wake_at > $1
                THEN clock_timestamp() + (d.wake_at - $1) * interval '1 millisecond' END
            FROM due d
            ON CONFLICT (queueing_lock) WHERE status = 'todo' DO NOTHING RETURNING 1
        ) SELECT count(*) FROM queued
    """,
)

# From one tenant with a timer to the next one, so that it costs the tenants and not their runs.
DUE_OF_EACH = HostFunction(
    name="host_due_of_each",
    takes=("bigint", "bigint"),
    gives="TABLE (tenant text, id text)",
    body="""
        WITH RECURSIVE owners (tenant) AS (
            (
                SELECT r.tenant FROM runs r WHERE r.wake_at IS NOT NULL AND r.holder IS NULL
                ORDER BY r.tenant LIMIT 1
            )
            UNION ALL
            SELECT (
                SELECT r.tenant FROM runs r
                WHERE r.tenant > o.tenant AND r.wake_at IS NOT NULL AND r.holder IS NULL
                ORDER BY r.tenant LIMIT 1
            ) FROM owners o WHERE o.tenant IS NOT NULL
        )
        SELECT o.tenant, d.run_id FROM owners o CROSS JOIN LATERAL (
            SELECT r.run_id FROM runs r
            WHERE r.tenant = o.tenant AND r.wake_at <= $1 AND r.wake_at IS NOT NULL
                AND r.holder IS NULL
            ORDER BY r.wake_at, r.run_id LIMIT $2
        ) d
    """,
)

TAKE = HostFunction(
    name="host_take",
    takes=("bigint", "text[]"),
    gives="TABLE (tenant text, id text)",
    changes=True,
    body=_taking("r.run_id = ANY ($2) AND r.wake_at <= $1"),
)

TIMERS = (*host_functions((TAKE_DUE,)), _QUEUE_DUE.replacement)

FAIR_TIMERS = host_functions((DUE_OF_EACH, TAKE))
FAIR_TIMERS_INDEX = (
    """
    CREATE INDEX CONCURRENTLY IF NOT EXISTS runs_due_by_tenant ON runs (tenant, wake_at, run_id)
    WHERE wake_at IS NOT NULL AND holder IS NULL
    """,
)
