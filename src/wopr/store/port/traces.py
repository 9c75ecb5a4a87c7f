"""The part of the store's port about traces that other systems export, until the fleet is told.

The rules of `wopr.store.port` hold here too. A trace comes in parts, in any order and any number of
times. What is told at once is an episode: it is sealed before, so that after a crash the same is
told again, and what comes meanwhile belongs to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePart:
    """The spans of one trace in one export. The digest is that of the body."""

    trace_id: str
    digest: bytes
    spans: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTrace:
    """When a trace of a tenant is to be looked at."""

    tenant: str
    trace_id: str
    due_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTrace:
    """A trace as it is held.

    `last_at` is when its latest news came, and `news` how often any did. Episodes are counted from
    1; `sealed` is the latest one, `told` the latest that the fleet has. `parts` are those of each
    episode, and under 0 those that are in none yet.
    """

    trace_id: str
    last_at: int
    sealed: int
    told: int
    news: int
    parts: dict[int, list[bytes]]


class Traces(Protocol):
    """Spans of traces on their way into the fleet."""

    async def put_spans(
        self, tenant: str, parts: Sequence[TracePart], *, now: int, due_at: int, most_spans: int
    ) -> int:
        """Keep parts durably, each once, and say how many spans were too many for their traces.

        A part that is news makes its trace due then. One that would give its trace more spans than
        `most_spans` is left out.
        """
        ...

    async def trace(self, tenant: str, trace_id: str) -> HeldTrace | None:
        """The trace with all its parts."""
        ...

    async def due_traces(self, limit: int) -> list[DueTrace]:
        """Traces of all tenants, those due first before others."""
        ...

    async def seal_trace(self, tenant: str, trace: HeldTrace) -> bool:
        """Put the loose parts into the next episode; False when there is news since `trace`."""
        ...

    async def settle_trace(self, tenant: str, trace: HeldTrace, *, told: int, due_at: int) -> None:
        """Note how much was told. It is due then, unless there is news since `trace`."""
        ...

    async def drop_trace(self, tenant: str, trace: HeldTrace) -> None:
        """Forget a trace, unless there is news since `trace`."""
        ...
