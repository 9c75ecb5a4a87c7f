"""Port of OpenTelemetry traces that other systems export, stored until they are projected.

The rules of `wopr.store.port` apply. The parts of a trace arrive in any order, and may arrive
several times. The parts that are projected together into KAHN lines are an episode. An episode is
closed before it is projected, so that after a crash the same parts are projected again. Later parts
belong to the next episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePart:
    """The spans of one trace in one export, with the digest of the body."""

    trace_id: str
    digest: bytes
    spans: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTrace:
    """A trace of a tenant, and the time when it is due."""

    tenant: str
    trace_id: str
    due_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrace:
    """A stored trace.

    `last_at` is the time of its latest part, and `part_count` the number of its parts. Episodes are
    numbered from 1: `closed` is the last closed episode, and `projected` the last projected one.
    `parts` has the parts of each episode; 0 is the key of parts that are in no episode yet.
    """

    trace_id: str
    last_at: int
    closed: int
    projected: int
    part_count: int
    parts: dict[int, list[bytes]]


class Traces(Protocol):
    """Spans of traces that are not projected yet."""

    async def put_spans(
        self, tenant: str, parts: Sequence[TracePart], *, now: int, due_at: int, most_spans: int
    ) -> int:
        """Store parts durably, each once, and return the number of spans beyond the limit.

        A new part sets the due time of its trace. A part that would give its trace more spans than
        `most_spans` is left out.
        """
        ...

    async def trace(self, tenant: str, trace_id: str) -> StoredTrace | None:
        """Return the trace with all its parts, or None if it does not exist."""
        ...

    async def due_traces(self, limit: int) -> list[DueTrace]:
        """Return traces of all tenants, ordered by the time when they are due."""
        ...

    async def close_episode(self, tenant: str, trace: StoredTrace) -> bool:
        """Close the next episode with the new parts; False if parts have arrived since `trace`."""
        ...

    async def record_projected_episode(
        self, tenant: str, trace: StoredTrace, *, episode: int, due_at: int
    ) -> None:
        """Record the last projected episode.

        Set the due time, unless parts have arrived since `trace`.
        """
        ...

    async def delete_trace(self, tenant: str, trace: StoredTrace) -> None:
        """Delete a trace, unless parts have arrived since `trace`."""
        ...
