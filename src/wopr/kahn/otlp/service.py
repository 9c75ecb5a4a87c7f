"""Exported traces: stored, and projected onto KAHN lines when they are complete or idle.

The response to an export is sent when its spans are durable. An episode is closed before it is
projected, so that a host that is killed in between projects the same lines again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Final, Protocol

import anyio
import anyio.to_thread
import structlog

from wopr.kahn.ingest import Ingest, in_thread_if_large
from wopr.kahn.otlp.lines import project_trace
from wopr.kahn.otlp.spans import Encoding, SpanFacts, UnusableSpan, WireSpan, facts_of, read_export
from wopr.kahn.otlp.tree import SpanTree, read_spans, write_spans
from wopr.kahn.projection_queue import SWEEP_SECONDS
from wopr.process.background import BackgroundTask
from wopr.process.settings import DAY_MS
from wopr.protocol.errors import Conflict, Gone, Refused, Unavailable
from wopr.store.port.fleet import Fleet
from wopr.store.port.traces import DueTrace, StoredTrace, TracePart, Traces

# The limit of a trace, because a trace may never end.
MAX_SPANS: Final = 10_000
_TOO_MANY: Final = f"a trace may have at most {MAX_SPANS} spans"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """The number of rejected spans of an export, and the reasons. The other spans are durable."""

    rejected: int = 0
    message: str = ""


class TraceIntake:
    """Stores the spans that other systems export.

    `redact` takes a tenant and a text, and returns the text without secrets. `wake` wakes the task
    that projects traces.
    """

    def __init__(
        self,
        store: Traces,
        now: Callable[[], int],
        redact: Callable[[str, str], str],
        *,
        settle_ms: int,
        keeps_content: bool,
        wake: Callable[[], None],
    ) -> None:
        self._wake = wake
        self._store = store
        self._now = now
        self._settle_ms = settle_ms
        self._redact = redact
        self._keeps_content = keeps_content

    async def take(self, tenant: str, body: bytes, encoding: Encoding) -> ExportResult:
        """Store the spans of an export. Raises `Refused` if the body is not a valid export."""
        reduce = partial(
            facts_of, keeps_content=self._keeps_content, redact=partial(self._redact, tenant)
        )
        work = partial(_parts, body, encoding, reduce)
        parts, faults = await in_thread_if_large(work, len(body))
        refused = 0
        if parts:
            now = self._now()
            refused = await self._store.put_spans(
                tenant, parts, now=now, due_at=now + self._settle_ms, most_spans=MAX_SPANS
            )
            self._wake()
        reasons = [*dict.fromkeys(faults), *([_TOO_MANY] if refused else [])]
        return ExportResult(rejected=len(faults) + refused, message="; ".join(reasons))


def _parts(
    body: bytes, encoding: Encoding, reduce: Callable[[WireSpan], SpanFacts]
) -> tuple[list[TracePart], list[str]]:
    faults: list[str] = []
    by_trace: dict[str, list[SpanFacts]] = {}
    for span in read_export(body, encoding):
        try:
            facts = reduce(span)
        except UnusableSpan as fault:
            faults.append(str(fault))
            continue
        # A span that is not about agents needs valid ids.
        if span.has_valid_ids:
            by_trace.setdefault(span.trace_id, []).append(facts)
    return [_part(trace_id, spans) for trace_id, spans in by_trace.items()], faults


def _part(trace_id: str, spans: Iterable[SpanFacts]) -> TracePart:
    listed = list(spans)
    body = write_spans(listed)
    digest = sha256(body).digest()
    return TracePart(trace_id=trace_id, digest=digest, spans=len(listed), body=body)


# How long a projected trace is stored, for late and repeated spans.
RETENTION_MS: Final = DAY_MS
BATCH_TRACES: Final = 64
# When to retry after an error that may be permanent.
FAILED_MS: Final = 60_000

log = structlog.get_logger("wopr.fleet")


class TracesStore(Traces, Fleet, Protocol):
    """The parts of the store that `TraceProjection` uses."""


class TraceProjection:
    """Projects traces onto KAHN lines, each episode once."""

    def __init__(
        self,
        store: TracesStore,
        ingest: Ingest,
        now: Callable[[], int],
        *,
        settle_ms: int,
        quiet_ms: int,
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        self._store = store
        self._ingest = ingest
        self._now = now
        self._settle_ms = settle_ms
        self._quiet_ms = quiet_ms
        # The longest time between two reads, because another process may have received spans.
        self._sweep_seconds = sweep_seconds
        self.task = BackgroundTask("traces", self.catch_up, max_retry_seconds=1.0)

    def wake(self) -> None:
        """Check at once whether a trace with new spans is complete."""
        self.task.trigger()

    async def catch_up(self) -> float:
        """Process all traces that are due, and return the seconds until the next trace is due."""
        while True:
            page = await self._store.due_traces(BATCH_TRACES)
            now = self._now()
            due = [each for each in page if each.due_at <= now]
            for each in due:
                await self._attempt(each)
            if len(due) == len(page) == BATCH_TRACES:
                continue
            later = [each.due_at for each in page if each.due_at > now]
            seconds = (min(later) - now) / 1000 if later else self._sweep_seconds
            return 0.0 if due else min(seconds, self._sweep_seconds)

    async def _attempt(self, due: DueTrace) -> None:
        trace = await self._store.trace(due.tenant, due.trace_id)
        if trace is None:
            return
        try:
            await self._process(due.tenant, trace)
        except Unavailable:
            raise
        except Exception as error:  # the outer edge of a task
            log.error("trace not projected", trace_id=due.trace_id, exc_info=error)
            later = self._now() + FAILED_MS
            await self._store.record_projected_episode(
                due.tenant, trace, episode=trace.projected, due_at=later
            )

    async def _process(self, tenant: str, trace: StoredTrace) -> None:
        if trace.closed > trace.projected:
            await self._project(tenant, trace)
        elif 0 not in trace.parts:
            await self._store.delete_trace(tenant, trace)
        else:
            await self._close_episode(tenant, trace)

    async def _close_episode(self, tenant: str, trace: StoredTrace) -> None:
        """Close an episode with the new parts if the trace is complete or idle."""
        spans = await anyio.to_thread.run_sync(partial(_episodes, trace))
        tree = SpanTree({span_id: each for episode in spans for span_id, each in episode.items()})
        idle_at = trace.last_at + self._quiet_ms
        is_idle = idle_at <= self._now()
        if not any(tree.agent_spans()) and is_idle:
            await self._store.delete_trace(tenant, trace)
        elif is_idle or (any(tree.agent_spans()) and tree.is_whole):
            # If spans have arrived meanwhile, they have set a new due time.
            await self._store.close_episode(tenant, trace)
        else:
            await self._store.record_projected_episode(
                tenant, trace, episode=trace.projected, due_at=idle_at
            )

    async def _project(self, tenant: str, trace: StoredTrace) -> None:
        """Store the lines of the closed episode."""
        episodes = await anyio.to_thread.run_sync(partial(_episodes, trace, closed=True))
        own = {span.run_id for span in episodes[-1].values() if span.run_id}
        # Runs of this host are projected from their logs.
        if not own or not await self._store.fleet_host_run_ids(tenant, sorted(own)):
            lines = await anyio.to_thread.run_sync(project_trace, trace.trace_id, episodes)
            await self._push(tenant, trace, lines)
        has_new_parts = 0 in trace.parts
        due_at = trace.last_at + self._settle_ms if has_new_parts else self._now() + RETENTION_MS
        await self._store.record_projected_episode(
            tenant, trace, episode=trace.closed, due_at=due_at
        )

    async def _push(self, tenant: str, trace: StoredTrace, lines: list[bytes]) -> None:
        if not lines:
            return
        try:
            await self._ingest.push(tenant, b"\n".join([*lines, b""]), "agent")
        except (Refused, Conflict, Gone) as refusal:
            # The fleet has other lines of this trace, or has deleted them: a retry cannot succeed.
            log.error("trace refused", trace_id=trace.trace_id, code=refusal.code)


def _episodes(trace: StoredTrace, *, closed: bool = False) -> list[dict[str, SpanFacts]]:
    """Return the spans of each episode, and then new spans unless `closed` is set."""
    numbers = [*range(1, trace.closed + 1), *([] if closed else [0])]
    return [read_spans(trace.parts.get(number, ())) for number in numbers]
