"""The part that keeps traces until the fleet is told of them.

Whoever changes a trace holds its row first, traces in the order of their ids: several processes take
spans at once, and none is counted twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from wopr.store.port.traces import DueTrace, HeldTrace, TracePart
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.many import columns, unnested
from wopr.store.postgres.part import Part

_BEGIN = """
INSERT INTO otlp_traces (tenant, trace_id, last_at, due_at, spans, sealed, told, news)
SELECT %s, id, %s, %s, 0, 0, 0, 0 FROM unnest(%s::text[]) AS id
ON CONFLICT (tenant, trace_id) DO UPDATE SET news = otlp_traces.news
"""
_HOLD = """
SELECT trace_id, spans FROM otlp_traces WHERE tenant = %s AND trace_id = ANY (%s::text[])
ORDER BY trace_id FOR UPDATE
"""
_HELD_PARTS = """
SELECT p.trace_id, p.digest FROM unnest(%s::text[], %s::bytea[]) AS u (trace_id, digest)
JOIN otlp_parts p ON p.tenant = %s AND p.trace_id = u.trace_id AND p.digest = u.digest
"""
_PUT_PARTS = f"""
INSERT INTO otlp_parts (tenant, episode, trace_id, digest, body)
SELECT %s, 0, u.* FROM {unnested(("text", "bytea", "bytea"))} AS u
"""
# News are counted, for two exports may come within one millisecond.
_GROW = f"""
UPDATE otlp_traces t
SET last_at = %s, due_at = %s, spans = t.spans + u.spans, news = t.news + u.news
FROM {unnested(("text", "bigint", "bigint"))} AS u (trace_id, spans, news)
WHERE t.tenant = %s AND t.trace_id = u.trace_id
"""
_FORGET_EMPTY = """
DELETE FROM otlp_traces WHERE tenant = %s AND trace_id = ANY (%s::text[]) AND news = 0
"""
_TRACE = """
SELECT last_at, sealed, told, news FROM otlp_traces WHERE tenant = %s AND trace_id = %s
"""
_PARTS = """
SELECT episode, body FROM otlp_parts WHERE tenant = %s AND trace_id = %s ORDER BY digest
"""
_DUE = "SELECT tenant, id, due_at FROM host_due_traces(%s)"
_SEAL = """
UPDATE otlp_traces SET sealed = sealed + 1
WHERE tenant = %s AND trace_id = %s AND news = %s AND sealed = %s RETURNING 1
"""
_SEAL_PARTS = """
UPDATE otlp_parts SET episode = %s WHERE tenant = %s AND trace_id = %s AND episode = 0
"""
_SETTLE = """
UPDATE otlp_traces SET told = %s, due_at = CASE WHEN news = %s THEN %s ELSE due_at END
WHERE tenant = %s AND trace_id = %s
"""
_DROP = "DELETE FROM otlp_traces WHERE tenant = %s AND trace_id = %s AND news = %s RETURNING 1"
_DROP_PARTS = "DELETE FROM otlp_parts WHERE tenant = %s AND trace_id = %s"


class PostgresTraces(Part):
    """`Traces` on PostgreSQL."""

    async def put_spans(
        self, tenant: str, parts: Sequence[TracePart], *, now: int, due_at: int, most_spans: int
    ) -> int:
        """Keep parts durably, each once, and say how many spans were too many."""
        work = partial(_put, parts=parts, times=(now, due_at), most=most_spans)
        return await self._db.run(tenant, work)

    async def trace(self, tenant: str, trace_id: str) -> HeldTrace | None:
        """The trace with all its parts."""
        return await self._db.view(tenant, partial(_trace, trace_id=trace_id))

    async def due_traces(self, limit: int) -> list[DueTrace]:
        """Traces of all tenants, those due first before others."""
        rows = await self._db.ask(_DUE, (limit,))
        return [DueTrace(tenant=row[0], trace_id=row[1], due_at=row[2]) for row in rows]

    async def seal_trace(self, tenant: str, trace: HeldTrace) -> bool:
        """Put the loose parts into the next episode; False when there is news."""
        return await self._db.run(tenant, partial(_seal, trace=trace))

    async def settle_trace(self, tenant: str, trace: HeldTrace, *, told: int, due_at: int) -> None:
        """Note how much was told. It is due then, unless there is news."""
        values = (told, trace.news, due_at, tenant, trace.trace_id)
        await self._db.change(tenant, _SETTLE, values)

    async def drop_trace(self, tenant: str, trace: HeldTrace) -> None:
        """Forget a trace, unless there is news."""
        await self._db.run(tenant, partial(_drop, trace=trace))


async def _put(
    transaction: Transaction, parts: Sequence[TracePart], times: tuple[int, int], most: int
) -> int:
    tenant, names = transaction.tenant, sorted({part.trace_id for part in parts})
    await transaction.queue(_BEGIN, (tenant, *times, names))
    sizes: dict[str, int] = dict(await transaction.rows(_HOLD, (tenant, names)))
    known = columns([(part.trace_id, part.digest) for part in parts])
    held: set[tuple[str, bytes]] = set()
    if parts:
        held.update(await transaction.rows(_HELD_PARTS, (*known, tenant)))
    new: list[TracePart] = []
    refused = 0
    for part in parts:
        if (part.trace_id, part.digest) in held:
            continue
        if sizes[part.trace_id] + part.spans > most:
            refused += part.spans
            continue
        held.add((part.trace_id, part.digest))
        sizes[part.trace_id] += part.spans
        new.append(part)
    await _write(transaction, new, times)
    await transaction.queue(_FORGET_EMPTY, (tenant, names))
    return refused


async def _write(
    transaction: Transaction, parts: Sequence[TracePart], times: tuple[int, int]
) -> None:
    if not parts:
        return
    rows = [(part.trace_id, part.digest, part.body) for part in parts]
    await transaction.queue(_PUT_PARTS, (transaction.tenant, *columns(rows)))
    grown: dict[str, tuple[int, int]] = {}
    for part in parts:
        spans, news = grown.get(part.trace_id, (0, 0))
        grown[part.trace_id] = (spans + part.spans, news + 1)
    growth = columns([(name, *counts) for name, counts in grown.items()])
    await transaction.queue(_GROW, (*times, *growth, transaction.tenant))


async def _trace(transaction: Transaction, trace_id: str) -> HeldTrace | None:
    name = (transaction.tenant, trace_id)
    found, bodies = await transaction.answers([(_TRACE, name), (_PARTS, name)])
    if not found:
        return None
    [(last_at, sealed, told, news)] = found
    parts: dict[int, list[bytes]] = {}
    for episode, body in bodies:
        parts.setdefault(episode, []).append(body)
    return HeldTrace(
        trace_id=trace_id, last_at=last_at, sealed=sealed, told=told, news=news, parts=parts
    )


async def _seal(transaction: Transaction, trace: HeldTrace) -> bool:
    name = (transaction.tenant, trace.trace_id)
    if not await transaction.rows(_SEAL, (*name, trace.news, trace.sealed)):
        return False
    await transaction.queue(_SEAL_PARTS, (trace.sealed + 1, *name))
    return True


async def _drop(transaction: Transaction, trace: HeldTrace) -> None:
    name = (transaction.tenant, trace.trace_id)
    if await transaction.rows(_DROP, (*name, trace.news)):
        await transaction.queue(_DROP_PARTS, name)
