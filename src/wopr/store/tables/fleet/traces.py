"""OpenTelemetry traces, stored until they are projected into KAHN lines.

A transaction that changes a trace locks its row first, and several traces in the order of their
ids: several processes may receive spans of a trace at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from wopr.store.port.traces import DueTrace, StoredTrace, TracePart
from wopr.store.tables.database import Table
from wopr.store.tables.dialect import Variants, bulk_insert
from wopr.store.tables.statements import (
    Lookup,
    LookupPlan,
    Operation,
    execute,
    execute_bulk,
    execute_many,
    query,
    query_each,
)

# The column `sealed` has the last closed episode, `told` the last projected one, and `news` the
# number of parts.

# Locks the row on PostgreSQL, and creates it for a new trace. SQLite has one writer.
_LOCK = Variants(
    sqlite="",
    postgres="""
INSERT INTO otlp_traces (tenant, trace_id, last_at, due_at, spans, sealed, told, news)
VALUES (?, ?, 0, 0, 0, 0, 0, 0)
ON CONFLICT (tenant, trace_id) DO UPDATE SET news = otlp_traces.news
""",
)
_DELETE_EMPTY = Variants(
    sqlite="",
    postgres="DELETE FROM otlp_traces WHERE tenant = ? AND trace_id = ? AND news = 0",
)
_SIZE = "SELECT spans FROM otlp_traces WHERE tenant = ? AND trace_id = ?"
_IS_STORED = "SELECT 1 FROM otlp_parts WHERE tenant = ? AND trace_id = ? AND digest = ?"
_INSERT_PARTS = bulk_insert(
    "otlp_parts (tenant, trace_id, digest, episode, body)", "text text bytea bigint bytea"
)
# `news` shows that parts have arrived since a read. `last_at` does not, because two parts may
# arrive within one millisecond.
_ADD_SPANS = """
INSERT INTO otlp_traces (tenant, trace_id, last_at, due_at, spans, sealed, told, news)
VALUES (?, ?, ?, ?, ?, 0, 0, ?)
ON CONFLICT (tenant, trace_id) DO UPDATE SET
    last_at = excluded.last_at,
    due_at = excluded.due_at,
    spans = otlp_traces.spans + excluded.spans,
    news = otlp_traces.news + excluded.news
"""
_TRACE = """
SELECT last_at, sealed, told, news FROM otlp_traces WHERE tenant = ? AND trace_id = ?
"""
_PARTS = """
SELECT episode, body FROM otlp_parts WHERE tenant = ? AND trace_id = ? ORDER BY digest
"""
# The condition is always true. It makes SQLite search the index instead of scanning it.
_DUE = Variants(
    sqlite="""
SELECT tenant, trace_id, due_at FROM otlp_traces WHERE due_at >= 0 ORDER BY due_at LIMIT ?
""",
    postgres="SELECT tenant, id, due_at FROM host_due_traces(?)",
)
_CLOSE_EPISODE = """
UPDATE otlp_traces SET sealed = sealed + 1
WHERE tenant = ? AND trace_id = ? AND news = ? AND sealed = ? RETURNING 1
"""
_CLOSE_EPISODE_PARTS = """
UPDATE otlp_parts SET episode = ? WHERE tenant = ? AND trace_id = ? AND episode = 0
"""
_RECORD_EPISODE = """
UPDATE otlp_traces SET told = ?, due_at = CASE WHEN news = ? THEN ? ELSE due_at END
WHERE tenant = ? AND trace_id = ?
"""
_DELETE = "DELETE FROM otlp_traces WHERE tenant = ? AND trace_id = ? AND news = ? RETURNING 1"
_DELETE_PARTS = "DELETE FROM otlp_parts WHERE tenant = ? AND trace_id = ?"


class TraceTable(Table):
    """`Traces` in SQL."""

    async def put_spans(
        self, tenant: str, parts: Sequence[TracePart], *, now: int, due_at: int, most_spans: int
    ) -> int:
        """Store parts durably, each once, and return the number of spans beyond the limit."""
        work = partial(_put, tenant, parts, times=(now, due_at), most=most_spans)
        return await self._sql.transact(tenant, work)

    async def trace(self, tenant: str, trace_id: str) -> StoredTrace | None:
        """Return the trace with all its parts."""
        return await self._sql.read_snapshot(tenant, _trace(tenant, trace_id))

    async def due_traces(self, limit: int) -> list[DueTrace]:
        """Return traces of all tenants, ordered by the time when they are due."""
        rows = await self._sql.read_host_few(_DUE, (limit,))
        return [DueTrace(tenant=row[0], trace_id=row[1], due_at=row[2]) for row in rows]

    async def close_episode(self, tenant: str, trace: StoredTrace) -> bool:
        """Put new parts into the next episode and close it; False if spans have arrived since."""
        return await self._sql.transact(tenant, partial(_close_episode, tenant, trace))

    async def record_projected_episode(
        self, tenant: str, trace: StoredTrace, *, episode: int, due_at: int
    ) -> None:
        """Record the last projected episode. Set the due time, unless spans have arrived since."""
        values = (episode, trace.part_count, due_at, tenant, trace.trace_id)
        await self._sql.change(tenant, _RECORD_EPISODE, values)

    async def delete_trace(self, tenant: str, trace: StoredTrace) -> None:
        """Delete a trace, unless spans have arrived since."""
        await self._sql.transact(tenant, partial(_delete, tenant, trace))


def _put(
    tenant: str, parts: Sequence[TracePart], times: tuple[int, int], most: int
) -> Operation[int]:
    names = sorted({part.trace_id for part in parts})
    keys = [(tenant, name) for name in names]
    yield execute_many(_LOCK, keys)
    sizes = dict.fromkeys(names, 0)
    for number, spans in (yield query_each(_SIZE, keys)):
        sizes[names[number]] = spans
    digests = [(tenant, part.trace_id, part.digest) for part in parts]
    found = yield query_each(_IS_STORED, digests)
    stored: set[tuple[str, str, bytes]] = {digests[row[0]] for row in found}
    new: list[TracePart] = []
    refused = 0
    for part, digest in zip(parts, digests, strict=True):
        if digest in stored:
            continue
        if sizes[part.trace_id] + part.spans > most:
            refused += part.spans
            continue
        stored.add(digest)
        sizes[part.trace_id] += part.spans
        new.append(part)
    yield execute_bulk(
        _INSERT_PARTS, [(tenant, part.trace_id, part.digest, 0, part.body) for part in new]
    )
    yield execute_many(_ADD_SPANS, [(tenant, name, *times, *sums) for name, sums in _sums(new)])
    yield execute_many(_DELETE_EMPTY, keys)
    return refused


def _sums(parts: Sequence[TracePart]) -> list[tuple[str, tuple[int, int]]]:
    """Return the number of spans and of parts of each trace."""
    sums: dict[str, tuple[int, int]] = {}
    for part in parts:
        spans, count = sums.get(part.trace_id, (0, 0))
        sums[part.trace_id] = (spans + part.spans, count + 1)
    return sorted(sums.items())


def _trace(tenant: str, trace_id: str) -> LookupPlan[StoredTrace | None]:
    name = [(tenant, trace_id)]
    [found], [bodies] = yield [Lookup(_TRACE, name), Lookup(_PARTS, name)]
    if not found:
        return None
    [(last_at, closed, projected, part_count)] = found
    parts: dict[int, list[bytes]] = {}
    for episode, body in bodies:
        parts.setdefault(episode, []).append(body)
    return StoredTrace(
        trace_id=trace_id,
        last_at=last_at,
        closed=closed,
        projected=projected,
        part_count=part_count,
        parts=parts,
    )


def _close_episode(tenant: str, trace: StoredTrace) -> Operation[bool]:
    name = (tenant, trace.trace_id)
    if not (yield query(_CLOSE_EPISODE, (*name, trace.part_count, trace.closed))):
        return False
    yield execute(_CLOSE_EPISODE_PARTS, (trace.closed + 1, *name))
    return True


def _delete(tenant: str, trace: StoredTrace) -> Operation[None]:
    name = (tenant, trace.trace_id)
    if (yield query(_DELETE, (*name, trace.part_count))):
        yield execute(_DELETE_PARTS, name)
