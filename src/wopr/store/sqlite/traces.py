"""The part that keeps traces until the fleet is told of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

from wopr.store.port.traces import DueTrace, HeldTrace, TracePart
from wopr.store.sqlite.part import Part

_SIZE = "SELECT spans FROM otlp_traces WHERE tenant = ? AND trace_id = ?"
_IS_HELD = "SELECT 1 FROM otlp_parts WHERE tenant = ? AND trace_id = ? AND digest = ?"
_PUT_PART = """
INSERT INTO otlp_parts (tenant, trace_id, digest, episode, body) VALUES (?, ?, ?, 0, ?)
"""
# News are counted, for two exports may come within one millisecond.
_PUT_TRACE = """
INSERT INTO otlp_traces (tenant, trace_id, last_at, due_at, spans, sealed, told, news)
VALUES (?, ?, ?, ?, ?, 0, 0, 1)
ON CONFLICT (tenant, trace_id) DO UPDATE SET
    last_at = excluded.last_at,
    due_at = excluded.due_at,
    spans = otlp_traces.spans + excluded.spans,
    news = otlp_traces.news + 1
"""
_TRACE = """
SELECT last_at, sealed, told, news FROM otlp_traces WHERE tenant = ? AND trace_id = ?
"""
_PARTS = """
SELECT episode, body FROM otlp_parts WHERE tenant = ? AND trace_id = ? ORDER BY digest
"""
# The condition holds for all; with it the index is searched and not walked.
_DUE = """
SELECT tenant, trace_id, due_at FROM otlp_traces WHERE due_at >= 0 ORDER BY due_at LIMIT ?
"""
_SEAL = """
UPDATE otlp_traces SET sealed = sealed + 1
WHERE tenant = ? AND trace_id = ? AND news = ? AND sealed = ?
"""
_SEAL_PARTS = """
UPDATE otlp_parts SET episode = ? WHERE tenant = ? AND trace_id = ? AND episode = 0
"""
_SETTLE = """
UPDATE otlp_traces SET told = ?, due_at = CASE WHEN news = ? THEN ? ELSE due_at END
WHERE tenant = ? AND trace_id = ?
"""
_DROP = "DELETE FROM otlp_traces WHERE tenant = ? AND trace_id = ? AND news = ?"
_DROP_PARTS = "DELETE FROM otlp_parts WHERE tenant = ? AND trace_id = ?"


class SqliteTraces(Part):
    """`Traces` on SQLite."""

    async def put_spans(
        self, tenant: str, parts: Sequence[TracePart], *, now: int, due_at: int, most_spans: int
    ) -> int:
        """Keep parts durably, each once, and say how many spans were too many."""
        work = partial(_put, tenant=tenant, parts=parts, times=(now, due_at), most=most_spans)
        return await self._writer.submit(work)

    async def trace(self, tenant: str, trace_id: str) -> HeldTrace | None:
        """The trace with all its parts."""
        return await self._reader.together(partial(_trace, tenant=tenant, trace_id=trace_id))

    async def due_traces(self, limit: int) -> list[DueTrace]:
        """Traces of all tenants, those due first before others."""
        rows = self._reader.near(_DUE, (limit,))
        return [DueTrace(tenant=row[0], trace_id=row[1], due_at=row[2]) for row in rows]

    async def seal_trace(self, tenant: str, trace: HeldTrace) -> bool:
        """Put the loose parts into the next episode; False when there is news."""
        return await self._writer.submit(partial(_seal, tenant=tenant, trace=trace))

    async def settle_trace(self, tenant: str, trace: HeldTrace, *, told: int, due_at: int) -> None:
        """Note how much was told. It is due then, unless there is news."""
        await self._change(_SETTLE, (told, trace.news, due_at, tenant, trace.trace_id))

    async def drop_trace(self, tenant: str, trace: HeldTrace) -> None:
        """Forget a trace, unless there is news."""
        await self._writer.submit(partial(_drop, tenant=tenant, trace=trace))


def _put(
    connection: sqlite3.Connection,
    tenant: str,
    parts: Sequence[TracePart],
    times: tuple[int, int],
    most: int,
) -> int:
    refused = 0
    for part in parts:
        name = (tenant, part.trace_id)
        if connection.execute(_IS_HELD, (*name, part.digest)).fetchone():
            continue
        size = connection.execute(_SIZE, name).fetchone()
        if part.spans + (size[0] if size else 0) > most:
            refused += part.spans
            continue
        connection.execute(_PUT_PART, (*name, part.digest, part.body))
        connection.execute(_PUT_TRACE, (*name, *times, part.spans))
    return refused


def _trace(connection: sqlite3.Connection, tenant: str, trace_id: str) -> HeldTrace | None:
    row = connection.execute(_TRACE, (tenant, trace_id)).fetchone()
    if row is None:
        return None
    parts: dict[int, list[bytes]] = {}
    for episode, body in connection.execute(_PARTS, (tenant, trace_id)):
        parts.setdefault(episode, []).append(body)
    return HeldTrace(
        trace_id=trace_id, last_at=row[0], sealed=row[1], told=row[2], news=row[3], parts=parts
    )


def _seal(connection: sqlite3.Connection, tenant: str, trace: HeldTrace) -> bool:
    name = (tenant, trace.trace_id)
    if not connection.execute(_SEAL, (*name, trace.news, trace.sealed)).rowcount:
        return False
    connection.execute(_SEAL_PARTS, (trace.sealed + 1, *name))
    return True


def _drop(connection: sqlite3.Connection, tenant: str, trace: HeldTrace) -> None:
    name = (tenant, trace.trace_id)
    if connection.execute(_DROP, (*name, trace.news)).rowcount:
        connection.execute(_DROP_PARTS, name)
