"""The part that takes KAHN lines: what is held of their runs, and the lines that are new."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

from wopr.protocol.errors import SequenceTaken
from wopr.store.port.fleet import AgentRun, Growth, HeldRun, IngestBatch, Touch
from wopr.store.sql.fleet_counting import Counting
from wopr.store.sql.fleet_rows import (
    AGENT_COLUMNS,
    RUN_COLUMNS,
    agent_run,
    agent_values,
    run_values,
)
from wopr.store.sqlite.fleet_counting import begin_spans, write_totals
from wopr.store.sqlite.fleet_runs import as_array, runs_of
from wopr.store.sqlite.part import Part
from wopr.store.sqlite.projections import put_projections

_HASHES = "SELECT hashes FROM fleet_chunks WHERE tenant = ? AND run_id = ? ORDER BY first"
_AGENTS = f"""
SELECT {AGENT_COLUMNS} FROM json_each(?) AS known
CROSS JOIN fleet_agent_runs ON tenant = ? AND run_id = known.value
"""

_PUT_RUN = f"""
INSERT INTO fleet_runs (tenant, {RUN_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, run_id) DO UPDATE SET
    kind = excluded.kind,
    lines = excluded.lines,
    last_event = excluded.last_event,
    ended_at = excluded.ended_at,
    outcome = excluded.outcome,
    pushed_at = excluded.pushed_at
"""
_TOUCH = """
UPDATE fleet_runs SET pushed_at = ? WHERE tenant = ? AND run_id = ? AND hidden_at IS NULL
"""
_PUT_CHUNK = """
INSERT INTO fleet_chunks (tenant, run_id, first, lines, hashes, body) VALUES (?, ?, ?, ?, ?, ?)
"""
# All of the row: a statement that names what changes would be longer and no cheaper.
_PUT_AGENT = f"""
INSERT INTO fleet_agent_runs (tenant, {AGENT_COLUMNS}, duration_bin, score_units)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, run_id, agent_id) DO UPDATE SET
    last_event = excluded.last_event,
    status = excluded.status,
    task = excluded.task,
    model = excluded.model,
    step = excluded.step,
    tool_calls = excluded.tool_calls,
    audits_passed = excluded.audits_passed,
    audits_failed = excluded.audits_failed,
    audits_warned = excluded.audits_warned,
    blocked_at = excluded.blocked_at,
    ended_at = excluded.ended_at,
    outcome = excluded.outcome,
    duration_s = excluded.duration_s,
    score = excluded.score,
    totals = excluded.totals,
    duration_bin = excluded.duration_bin,
    score_units = excluded.score_units
"""
_PUT_AUDIT = """
INSERT INTO fleet_audits (tenant, run_id, line, at, checkpoint_id, result)
VALUES (?, ?, ?, ?, ?, ?)
"""
_COUNT_RUNS = """
INSERT INTO fleet_tenants (tenant, runs) VALUES (?, ?)
ON CONFLICT (tenant) DO UPDATE SET runs = runs + excluded.runs
"""


class SqliteFleetIngest(Part):
    """What is held and what is new of `Fleet`, on SQLite."""

    async def fleet_held(self, tenant: str, run_ids: Sequence[str]) -> dict[str, HeldRun]:
        """What is held of each of these runs."""
        return await self._reader.together(partial(_held, tenant=tenant, run_ids=run_ids))

    async def fleet_ingest(self, tenant: str, batch: IngestBatch) -> None:
        """Write lines and totals, all or nothing, durably."""
        await self._writer.submit(partial(_ingest, tenant=tenant, batch=batch))

    async def fleet_touch(self, tenant: str, touch: Touch) -> None:
        """Write down that runs were pushed again, unless they are hidden."""
        rows = [(touch.at, tenant, run_id) for run_id in touch.run_ids]
        await self._writer.submit(partial(_touch, rows=rows))


def _touch(connection: sqlite3.Connection, rows: Sequence[tuple[int, str, str]]) -> None:
    connection.executemany(_TOUCH, rows)


def count_runs(connection: sqlite3.Connection, tenant: str, by: int) -> None:
    """Count so many more runs of a tenant."""
    connection.execute(_COUNT_RUNS, (tenant, by))


def _held(
    connection: sqlite3.Connection, tenant: str, run_ids: Sequence[str]
) -> dict[str, HeldRun]:
    runs = runs_of(connection, tenant, run_ids)
    if not runs:
        return {}
    agents: dict[str, dict[str, AgentRun]] = {run_id: {} for run_id in runs}
    for row in connection.execute(_AGENTS, (as_array(runs), tenant)):
        agent = agent_run(row)
        agents[agent.run_id][agent.agent_id] = agent
    return {
        run_id: HeldRun(run=run, hashes=_hashes(connection, tenant, run_id), agents=agents[run_id])
        for run_id, run in runs.items()
    }


def _hashes(connection: sqlite3.Connection, tenant: str, run_id: str) -> bytes:
    return b"".join(row[0] for row in connection.execute(_HASHES, (tenant, run_id)))


def _ingest(connection: sqlite3.Connection, tenant: str, batch: IngestBatch) -> None:
    _pass_fence(connection, tenant, batch.growths)
    counting = Counting(begin_spans(connection, tenant, batch.since))
    for growth in batch.growths:
        counting.growth(growth)
    _write_lines(connection, tenant, batch.growths)
    write_totals(connection, tenant, counting)
    put_projections(connection, tenant, batch.shown_by)


def _pass_fence(connection: sqlite3.Connection, tenant: str, growths: Sequence[Growth]) -> None:
    """Raise `SequenceTaken` unless every run is as the lines were aligned with it."""
    found = runs_of(connection, tenant, [growth.run.run_id for growth in growths])
    for growth in growths:
        if found.get(growth.run.run_id) != growth.before:
            raise SequenceTaken("the run has other lines by now", runId=growth.run.run_id)


def _write_lines(connection: sqlite3.Connection, tenant: str, growths: Sequence[Growth]) -> None:
    connection.executemany(_PUT_RUN, [(tenant, *run_values(growth.run)) for growth in growths])
    connection.executemany(_PUT_CHUNK, [_chunk_values(tenant, growth) for growth in growths])
    connection.executemany(
        _PUT_AGENT,
        [(tenant, *agent_values(after)) for growth in growths for _, after in growth.agents],
    )
    connection.executemany(
        _PUT_AUDIT,
        [
            (tenant, growth.run.run_id, audit.line, audit.at, audit.checkpoint_id, audit.result)
            for growth in growths
            for audit in growth.audits
        ],
    )
    count_runs(connection, tenant, sum(growth.before is None for growth in growths))


def _chunk_values(tenant: str, growth: Growth) -> tuple[str | int | bytes, ...]:
    name = growth.run.run_id
    return tenant, name, growth.first, growth.new_lines, growth.hashes, growth.body
