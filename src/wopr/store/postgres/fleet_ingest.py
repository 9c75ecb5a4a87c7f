"""The part that takes KAHN lines: what is held of their runs, and the lines that are new.

Runs are held in the order of their ids, then the spans, then the totals in the order of their keys
and the tenant's own number last: several processes take lines at once and seldom wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from wopr.protocol.errors import SequenceTaken
from wopr.store.port.fleet import AgentRun, FleetRun, Growth, HeldRun, IngestBatch, Touch
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.fleet_counting import begin_spans, write_totals
from wopr.store.postgres.many import columns, unnested
from wopr.store.postgres.part import Part
from wopr.store.postgres.projections import put_projections
from wopr.store.sql.fleet_counting import Counting
from wopr.store.sql.fleet_rows import (
    AGENT_COLUMNS,
    RUN_COLUMNS,
    agent_run,
    agent_values,
    fleet_run,
    run_values,
)

_RUNS = f"SELECT {RUN_COLUMNS} FROM fleet_runs WHERE tenant = %s AND run_id = ANY (%s::text[])"
_HOLD_RUNS = f"{_RUNS} ORDER BY run_id FOR UPDATE"
_HASHES = """
SELECT run_id, hashes FROM fleet_chunks WHERE tenant = %s AND run_id = ANY (%s::text[])
ORDER BY run_id, first
"""
_AGENTS = f"""
SELECT {AGENT_COLUMNS} FROM fleet_agent_runs WHERE tenant = %s AND run_id = ANY (%s::text[])
"""

_RUN_TYPES = "text text text bigint bigint bigint bigint text bigint bigint".split()
_AGENT_TYPES = (
    "text text bigint bigint text text text bigint bigint bigint bigint bigint bigint bigint text "
    "float8 float8 text bigint bigint"
).split()
_CHANGING = [
    name for name in AGENT_COLUMNS.split(", ") if name not in ("run_id", "agent_id", "started_at")
]

# A run that another process has begun meanwhile is in the way of a new one.
_NEW_RUNS = f"""
INSERT INTO fleet_runs (tenant, {RUN_COLUMNS}) SELECT %s, u.* FROM {unnested(_RUN_TYPES)} AS u
ON CONFLICT DO NOTHING RETURNING 1
"""
_MOVE_RUNS = f"""
UPDATE fleet_runs t SET kind = u.kind, lines = u.lines, last_event = u.last_event,
    ended_at = u.ended_at, outcome = u.outcome, pushed_at = u.pushed_at
FROM {unnested(_RUN_TYPES)} AS u ({RUN_COLUMNS})
WHERE t.tenant = %s AND t.run_id = u.run_id
"""
_TOUCH = """
UPDATE fleet_runs SET pushed_at = %s
WHERE tenant = %s AND run_id = ANY (%s::text[]) AND hidden_at IS NULL
"""
_PUT_CHUNKS = f"""
INSERT INTO fleet_chunks (tenant, run_id, first, lines, hashes, body)
SELECT %s, u.* FROM {unnested(("text", "bigint", "bigint", "bytea", "bytea"))} AS u
"""
_PUT_AGENTS = f"""
INSERT INTO fleet_agent_runs (tenant, {AGENT_COLUMNS}, duration_bin, score_units)
SELECT %s, u.* FROM {unnested(_AGENT_TYPES)} AS u
ON CONFLICT (tenant, run_id, agent_id) DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in (*_CHANGING, "duration_bin", "score_units"))}
"""
_PUT_AUDITS = f"""
INSERT INTO fleet_audits (tenant, run_id, line, at, checkpoint_id, result)
SELECT %s, u.* FROM {unnested(("text", "bigint", "bigint", "text", "text"))} AS u
"""
_COUNT_RUNS = """
INSERT INTO fleet_tenants AS t (tenant, runs) VALUES (%s, %s)
ON CONFLICT (tenant) DO UPDATE SET runs = t.runs + excluded.runs
"""


class PostgresFleetIngest(Part):
    """What is held and what is new of `Fleet`, on PostgreSQL."""

    async def fleet_held(self, tenant: str, run_ids: Sequence[str]) -> dict[str, HeldRun]:
        """What is held of each of these runs."""
        return await self._db.view(tenant, partial(_held, run_ids=list(run_ids)))

    async def fleet_ingest(self, tenant: str, batch: IngestBatch) -> None:
        """Write lines and totals, all or nothing, durably."""
        await self._db.run(tenant, partial(_ingest, batch=batch))

    async def fleet_touch(self, tenant: str, touch: Touch) -> None:
        """Write down that runs were pushed again, unless they are hidden."""
        await self._db.run(tenant, partial(_touch, touch=touch))


async def _touch(transaction: Transaction, touch: Touch) -> None:
    # Held in the order of their ids, as every push holds them.
    names = sorted(touch.run_ids)
    await transaction.rows(_HOLD_RUNS, (transaction.tenant, names))
    await transaction.queue(_TOUCH, (touch.at, transaction.tenant, names))


async def count_runs(transaction: Transaction, by: int) -> None:
    """Count so many more runs of the tenant. Everybody counts here, so it comes last."""
    if by:
        await transaction.queue(_COUNT_RUNS, (transaction.tenant, by))


async def _held(transaction: Transaction, run_ids: list[str]) -> dict[str, HeldRun]:
    known = (transaction.tenant, run_ids)
    runs, chunks, rows = await transaction.answers(
        [(_RUNS, known), (_HASHES, known), (_AGENTS, known)]
    )
    agents: dict[str, dict[str, AgentRun]] = defaultdict(dict)
    for agent in map(agent_run, rows):
        agents[agent.run_id][agent.agent_id] = agent
    hashes: dict[str, bytearray] = defaultdict(bytearray)
    for run_id, piece in chunks:
        hashes[run_id] += piece
    return {
        run.run_id: HeldRun(run=run, hashes=bytes(hashes[run.run_id]), agents=agents[run.run_id])
        for run in map(fleet_run, runs)
    }


async def _ingest(transaction: Transaction, batch: IngestBatch) -> None:
    growths = sorted(batch.growths, key=lambda growth: growth.run.run_id)
    await _pass_fence(transaction, growths)
    await _put_runs(transaction, growths)
    counting = Counting(await begin_spans(transaction, batch.since))
    for growth in growths:
        counting.growth(growth)
    await _put_lines(transaction, growths)
    await write_totals(transaction, counting)
    await count_runs(transaction, sum(growth.before is None for growth in growths))
    if batch.shown_by:
        await put_projections(transaction, batch.shown_by)


async def _pass_fence(transaction: Transaction, growths: Sequence[Growth]) -> None:
    """Hold every run. Raises `SequenceTaken` unless each is as the lines were aligned with it."""
    names = [growth.run.run_id for growth in growths]
    rows = await transaction.rows(_HOLD_RUNS, (transaction.tenant, names))
    found = {run.run_id: run for run in map(fleet_run, rows)}
    for growth in growths:
        if found.get(growth.run.run_id) != growth.before:
            raise _taken(growth.run)


async def _put_runs(transaction: Transaction, growths: Sequence[Growth]) -> None:
    new = [growth.run for growth in growths if growth.before is None]
    moved = [growth.run for growth in growths if growth.before is not None]
    if new:
        values = (transaction.tenant, *columns([run_values(run) for run in new]))
        if len(await transaction.rows(_NEW_RUNS, values)) < len(new):
            raise _taken(new[0])
    if moved:
        values = (*columns([run_values(run) for run in moved]), transaction.tenant)
        await transaction.queue(_MOVE_RUNS, values)


async def _put_lines(transaction: Transaction, growths: Sequence[Growth]) -> None:
    agents = [agent_values(after) for growth in growths for _, after in growth.agents]
    audits = [
        (growth.run.run_id, audit.line, audit.at, audit.checkpoint_id, audit.result)
        for growth in growths
        for audit in growth.audits
    ]
    for sql, rows in (
        (_PUT_CHUNKS, [_chunk(growth) for growth in growths]),
        (_PUT_AGENTS, agents),
        (_PUT_AUDITS, audits),
    ):
        if rows:
            await transaction.queue(sql, (transaction.tenant, *columns(rows)))


def _chunk(growth: Growth) -> tuple[str, int, int, bytes, bytes]:
    return growth.run.run_id, growth.first, growth.new_lines, growth.hashes, growth.body


def _taken(run: FleetRun) -> SequenceTaken:
    return SequenceTaken("the run has other lines by now", runId=run.run_id)
