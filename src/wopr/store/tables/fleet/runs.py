"""KAHN runs: their rows and lines, ingest and reads.

Ingest locks the runs in the order of their ids, then the spans, then the totals in the order of
their keys, and the counter of the tenant last: several processes ingest at once and seldom wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Final

from wopr.protocol.errors import SequenceTaken
from wopr.store.port.fleet import (
    AgentRun,
    AgentTotals,
    CheckpointResult,
    CheckpointTotals,
    FleetRun,
    IngestBatch,
    NewLines,
    RepeatedPush,
    Since,
    StoredFleetRun,
    TotalsPage,
)
from wopr.store.tables.database import Table
from wopr.store.tables.dialect import (
    AFTER_ALL_ROWS,
    SMALLEST_INTEGER,
    Parameter,
    Row,
    Value,
    bulk_insert,
    variants,
)
from wopr.store.tables.fleet.counters import TotalsChange, begin_spans, write_totals
from wopr.store.tables.fleet.projections import enqueue_projections
from wopr.store.tables.fleet.totals import read_checkpoints, read_totals
from wopr.store.tables.statements import (
    Lookup,
    LookupPlan,
    Operation,
    execute,
    execute_bulk,
    query,
    query_bulk,
)

RUN_COLUMNS: Final = (
    "run_id, kind, source, lines, started_at, last_event, ended_at, outcome, hidden_at, pushed_at"
)
AGENT_COLUMNS: Final = (
    "run_id, agent_id, started_at, last_event, status, task, model, step, tool_calls, "
    "audits_passed, audits_failed, audits_warned, blocked_at, ended_at, outcome, duration_s, "
    "score, totals"
)

AUDIT_COLUMNS: Final = "line, at, checkpoint_id, result"

AgentValue = Parameter | float


_RUN = f"SELECT {RUN_COLUMNS} FROM fleet_runs WHERE tenant = ? AND run_id = ?"
_NEWEST = f"""
SELECT {RUN_COLUMNS} FROM fleet_runs
WHERE tenant = ? AND hidden_at IS NULL AND (last_event, run_id) < (?, ?)
ORDER BY last_event DESC, run_id DESC LIMIT ?
"""
_EXPIRING = """
SELECT run_id, pushed_at FROM fleet_runs
WHERE tenant = ? AND source = 'push' AND hidden_at IS NULL AND pushed_at <= ?
ORDER BY pushed_at LIMIT ?
"""
_EXPORTED = f"""
SELECT {RUN_COLUMNS} FROM fleet_runs WHERE tenant = ? AND run_id > ? ORDER BY run_id LIMIT ?
"""
_OF_AGENT = f"""
SELECT {AGENT_COLUMNS} FROM fleet_agent_runs
WHERE tenant = ? AND agent_id = ? AND last_event >= ? AND (last_event, run_id) < (?, ?)
ORDER BY last_event DESC, run_id DESC LIMIT ?
"""
_WAITING = f"""
SELECT {AGENT_COLUMNS} FROM fleet_agent_runs
WHERE tenant = ? AND blocked_at IS NOT NULL ORDER BY blocked_at, run_id, agent_id LIMIT ?
"""
_OF_RUN = f"SELECT {AGENT_COLUMNS} FROM fleet_agent_runs WHERE tenant = ? AND run_id = ?"
# Begins with the chunk that contains the wanted line.
_CHUNKS = """
SELECT first, body FROM fleet_chunks
WHERE tenant = ? AND run_id = ? AND first >= coalesce(
    (SELECT max(first) FROM fleet_chunks WHERE tenant = ? AND run_id = ? AND first <= ?), 0
) ORDER BY first LIMIT ?
"""
_SIZE = "SELECT runs FROM fleet_tenants WHERE tenant = ?"

_CHUNKS_AT_ONCE: Final = 16


_LOCK_RUNS = variants(
    lambda dialect: (
        f"SELECT {RUN_COLUMNS} FROM fleet_runs "
        f"WHERE tenant = ? AND {dialect.in_array('run_id', 'text')}"
        f"{dialect.lock('ORDER BY run_id FOR UPDATE')}"
    )
)
_HASHES = "SELECT first, hashes FROM fleet_chunks WHERE tenant = ? AND run_id = ? ORDER BY first"
_CHUNK_SIZES = """
SELECT first, length(body) FROM fleet_chunks
WHERE tenant = ? AND run_id = ? AND first >= ? ORDER BY first
"""
_CHUNK = "SELECT body FROM fleet_chunks WHERE tenant = ? AND run_id = ? AND first = ?"
_HOST_RUNS = variants(
    lambda dialect: (
        f"SELECT run_id FROM runs WHERE tenant = ? AND {dialect.in_array('run_id', 'text')}"
    )
)

_RUN_TYPES = "text text text text bigint bigint bigint bigint text bigint bigint"
# Inserts no row for a run that another process has inserted meanwhile.
_INSERT_RUNS = bulk_insert(
    f"fleet_runs (tenant, {RUN_COLUMNS})", _RUN_TYPES, "ON CONFLICT DO NOTHING RETURNING 1"
)
_UPDATE_RUNS = bulk_insert(
    f"fleet_runs (tenant, {RUN_COLUMNS})",
    _RUN_TYPES,
    """ON CONFLICT (tenant, run_id) DO UPDATE SET
    kind = excluded.kind, lines = excluded.lines, last_event = excluded.last_event,
    ended_at = excluded.ended_at, outcome = excluded.outcome, pushed_at = excluded.pushed_at""",
)
_SET_PUSHED_AT = variants(
    lambda dialect: (
        "UPDATE fleet_runs SET pushed_at = ? "
        f"WHERE tenant = ? AND {dialect.in_array('run_id', 'text')} AND hidden_at IS NULL"
    )
)
_INSERT_CHUNKS = bulk_insert(
    "fleet_chunks (tenant, run_id, first, lines, hashes, body)",
    "text text bigint bigint bytea bytea",
)
_AGENT_TYPES = (
    "text text text bigint bigint text text text bigint bigint bigint bigint bigint bigint bigint "
    "text float8 float8 text bigint bigint"
)
_CHANGING = (
    *(
        name
        for name in AGENT_COLUMNS.split(", ")
        if name not in ("run_id", "agent_id", "started_at")
    ),
    "duration_bin",
    "score_units",
)
_PUT_AGENTS = bulk_insert(
    f"fleet_agent_runs (tenant, {AGENT_COLUMNS}, duration_bin, score_units)",
    _AGENT_TYPES,
    "ON CONFLICT (tenant, run_id, agent_id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _CHANGING),
)
_INSERT_AUDITS = bulk_insert(
    "fleet_audits (tenant, run_id, line, at, checkpoint_id, result)",
    "text text bigint bigint text text",
)
_COUNT_RUNS = """
INSERT INTO fleet_tenants AS t (tenant, runs) VALUES (?, ?)
ON CONFLICT (tenant) DO UPDATE SET runs = t.runs + excluded.runs
"""


class FleetRunTable(Table):
    """`Fleet` in SQL."""

    async def fleet_stored_runs(
        self, tenant: str, run_ids: Sequence[str]
    ) -> dict[str, StoredFleetRun]:
        """Return those of these runs that are stored."""
        return await self._sql.read_snapshot(tenant, _stored_runs(tenant, run_ids))

    async def fleet_ingest(self, tenant: str, batch: IngestBatch) -> None:
        """Write lines and totals, all or nothing, durably."""
        names = self._sql.dialect.array([lines.run.run_id for lines in batch.new_lines])
        await self._sql.transact(tenant, partial(_ingest, tenant, batch, names))

    async def fleet_repeat_push(self, tenant: str, push: RepeatedPush) -> None:
        """Record that runs were pushed again, unless they are hidden."""
        names = self._sql.dialect.array(sorted(push.run_ids))
        await self._sql.transact(tenant, partial(_repeat_push, tenant, names, push.at))

    async def fleet_new_chunks(
        self, tenant: str, starts: Mapping[str, int], most_bytes: int
    ) -> dict[str, list[bytes]]:
        """Return the chunks of each of these runs from a line on, up to a number of bytes."""
        return await self._sql.read_snapshot(tenant, _chunks(tenant, starts, most_bytes))

    async def fleet_host_run_ids(self, tenant: str, run_ids: Sequence[str]) -> set[str]:
        """Return those of these ids that belong to a run of the tenant on this host."""
        values = (tenant, self._sql.dialect.array(run_ids))
        return {row[0] for row in await self._sql.read_many(tenant, _HOST_RUNS, values)}

    async def fleet_run(self, tenant: str, run_id: str) -> FleetRun | None:
        """Return the run, also if it is hidden, or None if it does not exist."""
        rows = await self._sql.read_few(tenant, _RUN, (tenant, run_id))
        return fleet_run(rows[0]) if rows else None

    async def fleet_runs(
        self, tenant: str, after: tuple[int, str] | None, limit: int
    ) -> list[FleetRun]:
        """List runs, newest first, without hidden runs."""
        rows = await self._sql.read_many(
            tenant, _NEWEST, (tenant, *(after or AFTER_ALL_ROWS), limit)
        )
        return [fleet_run(row) for row in rows]

    async def fleet_runs_to_export(self, tenant: str, after: str, limit: int) -> list[FleetRun]:
        """List all runs by id, including hidden runs."""
        rows = await self._sql.read_many(tenant, _EXPORTED, (tenant, after, limit))
        return [fleet_run(row) for row in rows]

    async def fleet_agent_runs(
        self,
        tenant: str,
        agent_id: str,
        since: int | None,
        after: tuple[int, str] | None,
        limit: int,
    ) -> list[AgentRun]:
        """List the runs of an agent, newest first."""
        start = SMALLEST_INTEGER if since is None else since
        rows = await self._sql.read_many(
            tenant, _OF_AGENT, (tenant, agent_id, start, *(after or AFTER_ALL_ROWS), limit)
        )
        return [agent_run(row) for row in rows]

    async def fleet_waiting_agents(self, tenant: str, limit: int) -> list[AgentRun]:
        """List the agents that wait for an operator, the longest wait first."""
        rows = await self._sql.read_many(tenant, _WAITING, (tenant, limit))
        return [agent_run(row) for row in rows]

    async def fleet_run_agents(self, tenant: str, run_id: str) -> list[AgentRun]:
        """Return the agents of a run in the order of their start."""
        found = [
            agent_run(row) for row in await self._sql.read_many(tenant, _OF_RUN, (tenant, run_id))
        ]
        return sorted(found, key=lambda agent: (agent.started_at, agent.agent_id))

    async def fleet_lines(self, tenant: str, run_id: str, start: int = 0) -> AsyncIterator[bytes]:
        """Read the lines of a run from that line on, in pieces of whole lines."""
        while chunks := await self._sql.read_many(
            tenant, _CHUNKS, (tenant, run_id, tenant, run_id, start, _CHUNKS_AT_ONCE)
        ):
            for first, body in chunks:
                skipped = max(0, start - first)
                rest = body.split(b"\n", skipped)[-1] if skipped else body
                if rest:
                    yield rest
                start = first + body.count(b"\n")
            if len(chunks) < _CHUNKS_AT_ONCE:
                return

    async def fleet_expiring_runs(
        self, tenant: str, pushed_before: int, limit: int
    ) -> list[tuple[str, int]]:
        """List runs last pushed at or before a time, the oldest first."""
        rows = await self._sql.read_many(tenant, _EXPIRING, (tenant, pushed_before, limit))
        return [(row[0], row[1]) for row in rows]

    async def fleet_size(self, tenant: str) -> int:
        """Return the number of KAHN runs of the tenant, without hidden runs."""
        rows = await self._sql.read_few(tenant, _SIZE, (tenant,))
        return rows[0][0] if rows else 0

    async def fleet_totals(
        self,
        tenant: str,
        span: str,
        since: Since,
        page: TotalsPage,
        *,
        quantiles: Sequence[float],
        scores: int,
    ) -> list[AgentTotals]:
        """Return the totals of a page of the agents with a run in the span."""
        plan = read_totals(tenant, span, since, page, quantiles, scores)
        return await self._sql.read_snapshot(tenant, plan)

    async def fleet_checkpoints(
        self, tenant: str, span: str, since: Since, *, limit: int, start: int = 0
    ) -> list[CheckpointTotals]:
        """Return the totals of a page of the checkpoints with a result in the span."""
        plan = read_checkpoints(tenant, span, since, limit, start)
        return await self._sql.read_snapshot(tenant, plan)


def count_runs(tenant: str, by: int) -> Operation[None]:
    """Add to the number of runs of the tenant. Call it last, because all writers lock this row."""
    if by:
        yield execute(_COUNT_RUNS, (tenant, by))


def _stored_runs(tenant: str, run_ids: Sequence[str]) -> LookupPlan[dict[str, StoredFleetRun]]:
    keys = [(tenant, run_id) for run_id in run_ids]
    runs, chunks, agents = yield [Lookup(_RUN, keys), Lookup(_HASHES, keys), Lookup(_OF_RUN, keys)]
    stored: dict[str, StoredFleetRun] = {}
    for found, pieces, members in zip(runs, chunks, agents, strict=True):
        for run in map(fleet_run, found):
            stored[run.run_id] = StoredFleetRun(
                run=run,
                hashes=b"".join(hashes for _, hashes in sorted(pieces)),
                agents={agent.agent_id: agent for agent in map(agent_run, members)},
            )
    return stored


def _chunks(
    tenant: str, starts: Mapping[str, int], most_bytes: int
) -> LookupPlan[dict[str, list[bytes]]]:
    keys = [(tenant, run_id, start) for run_id, start in starts.items()]
    [sizes] = yield [Lookup(_CHUNK_SIZES, keys)]
    wanted: list[tuple[str, str, int]] = []
    for run_id, found in zip(starts, sizes, strict=True):
        for first, size in sorted(found):
            if most_bytes > 0:
                wanted.append((tenant, run_id, first))
                most_bytes -= size
    [bodies] = yield [Lookup(_CHUNK, wanted)]
    chunks: dict[str, list[bytes]] = {}
    for (_, run_id, _), rows in zip(wanted, bodies, strict=True):
        chunks.setdefault(run_id, []).extend(body for (body,) in rows)
    return chunks


def _repeat_push(tenant: str, names: Value, at: int) -> Operation[None]:
    yield query(_LOCK_RUNS, (tenant, names))
    yield execute(_SET_PUSHED_AT, (at, tenant, names))


def _ingest(tenant: str, batch: IngestBatch, names: Value) -> Operation[None]:
    added = sorted(batch.new_lines, key=lambda lines: lines.run.run_id)
    found = {run.run_id: run for run in map(fleet_run, (yield query(_LOCK_RUNS, (tenant, names))))}
    for lines in added:
        if found.get(lines.run.run_id) != lines.before:
            raise _lines_changed_error(lines.run)
    yield from _put_runs(tenant, added)
    change = TotalsChange((yield from begin_spans(tenant, batch.since)))
    for lines in added:
        change.add_lines(lines)
    yield from _put_lines(tenant, added)
    yield from write_totals(tenant, change)
    yield from count_runs(tenant, sum(lines.before is None for lines in added))
    yield from enqueue_projections(tenant, batch.observed_run_ids)


def _put_runs(tenant: str, added: Sequence[NewLines]) -> Operation[None]:
    new = [lines.run for lines in added if lines.before is None]
    rows = [(tenant, *_run_values(run)) for run in new]
    if len((yield query_bulk(_INSERT_RUNS, rows))) < len(new):
        raise _lines_changed_error(new[0])
    changed = [(tenant, *_run_values(lines.run)) for lines in added if lines.before is not None]
    yield execute_bulk(_UPDATE_RUNS, changed)


def _put_lines(tenant: str, added: Sequence[NewLines]) -> Operation[None]:
    yield execute_bulk(
        _INSERT_CHUNKS,
        [
            (tenant, lines.run.run_id, lines.first, lines.count, lines.hashes, lines.body)
            for lines in added
        ],
    )
    yield execute_bulk(
        _PUT_AGENTS,
        [(tenant, *_agent_values(after)) for lines in added for _, after in lines.agents],
    )
    yield execute_bulk(
        _INSERT_AUDITS,
        [
            (tenant, lines.run.run_id, audit.line, audit.at, audit.checkpoint_id, audit.result)
            for lines in added
            for audit in lines.audits
        ],
    )


def _lines_changed_error(run: FleetRun) -> SequenceTaken:
    return SequenceTaken(
        "the stored lines of the run have changed: compare again", runId=run.run_id
    )


def fleet_run(row: Row) -> FleetRun:
    """Read a row of `RUN_COLUMNS`."""
    return FleetRun(
        run_id=row[0],
        kind=row[1],
        source=row[2],
        lines=row[3],
        started_at=row[4],
        last_event=row[5],
        ended_at=row[6],
        outcome=row[7],
        hidden_at=row[8],
        pushed_at=row[9],
    )


def _run_values(run: FleetRun) -> tuple[Parameter, ...]:
    """Return the values of `RUN_COLUMNS`."""
    return (
        run.run_id,
        run.kind,
        run.source,
        run.lines,
        run.started_at,
        run.last_event,
        run.ended_at,
        run.outcome,
        run.hidden_at,
        run.pushed_at,
    )


def agent_run(row: Row) -> AgentRun:
    """Read a row of `AGENT_COLUMNS`."""
    return AgentRun(
        run_id=row[0],
        agent_id=row[1],
        started_at=row[2],
        last_event=row[3],
        status=row[4],
        task=row[5],
        model=row[6],
        step=row[7],
        tool_calls=row[8],
        audits_passed=row[9],
        audits_failed=row[10],
        audits_warned=row[11],
        blocked_at=row[12],
        ended_at=row[13],
        outcome=row[14],
        duration_s=row[15],
        score=row[16],
        totals=row[17],
    )


def _agent_values(agent: AgentRun) -> tuple[AgentValue, ...]:
    """Return the values of `AGENT_COLUMNS`, and then the derived columns of the indexes."""
    return (
        agent.run_id,
        agent.agent_id,
        agent.started_at,
        agent.last_event,
        agent.status,
        agent.task,
        agent.model,
        agent.step,
        agent.tool_calls,
        agent.audits_passed,
        agent.audits_failed,
        agent.audits_warned,
        agent.blocked_at,
        agent.ended_at,
        agent.outcome,
        agent.duration_s,
        agent.score,
        agent.totals,
        agent.duration_bin,
        agent.score_units,
    )


def audit_row(row: Row) -> CheckpointResult:
    """Read a row of `AUDIT_COLUMNS`."""
    return CheckpointResult(line=row[0], at=row[1], checkpoint_id=row[2], result=row[3])
