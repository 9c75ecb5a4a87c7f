"""Ingest of KAHN lines: a push is stored completely or not at all, and each line once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

import anyio.to_thread

from wopr.kahn.lines import number_lines
from wopr.kahn.new_lines import AlignedPush, Family, Push, align_push, read_body, read_lines
from wopr.kahn.observed.service import ObservedRuns
from wopr.kahn.retention import RetentionPolicy
from wopr.kahn.run_fold import PushContext
from wopr.kahn.statistics import window_starts
from wopr.kahn.timestamps import from_millis
from wopr.protocol.errors import SequenceTaken, Unavailable
from wopr.protocol.observed_ids import observed_run_id
from wopr.protocol.resources.fleet import ExpiringRun, Ingested
from wopr.store.port.fleet import Fleet, FleetRunSource, IngestBatch, RepeatedPush

T = TypeVar("T")

# A larger push or export is processed in a thread.
INLINE_BYTES: Final = 16 * 1024
# The response to a push lists the runs that expire within this time, up to this number.
EXPIRING_SOON_MS: Final = 7 * 86_400_000
MAX_EXPIRING: Final = 100
# How often a push is aligned again because another push of the same runs was stored first.
MAX_TRIES: Final = 20


class LineWriter:
    """Compares lines with the stored lines and stores the new lines.

    `redact` takes a tenant and a text, and returns the text without secrets.
    """

    def __init__(
        self,
        store: Fleet,
        now: Callable[[], int],
        redact: Callable[[str, str], str] | None = None,
    ) -> None:
        self.store = store
        self.now = now
        self._redact = redact

    async def put_own(self, tenant: str, lines: Sequence[bytes]) -> None:
        """Store lines of the host's own runs, given without their newlines."""
        size = sum(map(len, lines))
        push = await in_thread_if_large(partial(read_lines, number_lines(lines)), size)
        await self.put(tenant, push, "host", size)

    async def put(
        self,
        tenant: str,
        push: Push,
        source: FleetRunSource,
        size: int,
        own_runs: Callable[[Sequence[str]], Awaitable[Collection[str]]] | None = None,
    ) -> AlignedPush:
        """Store the new lines of a push. `size` is the number of its bytes.

        `own_runs` returns those of the given ids that belong to runs of this host, after it has
        stored the lines of these runs. If it is given, the new lines are queued for their observed
        runs.
        """
        for _ in range(MAX_TRIES):
            stored = await self.store.fleet_stored_runs(tenant, list(push.runs))
            own: Collection[str] = ()
            if own_runs is not None and len(stored) < len(push.runs):
                own = await own_runs([run_id for run_id in push.runs if run_id not in stored])
                if own:
                    stored = await self.store.fleet_stored_runs(tenant, list(push.runs))
            redact = str if self._redact is None else partial(self._redact, tenant)
            push_context = PushContext(source=source, at=self.now(), redact=redact)
            align = partial(align_push, push, stored, push_context, own)
            aligned = await in_thread_if_large(align, size)
            try:
                await self._write(tenant, aligned, has_observed_runs=own_runs is not None)
            except SequenceTaken:
                continue  # another push of one of these runs was stored first
            return aligned
        raise Unavailable("Other pushes of the same runs were stored first. Push the lines again.")

    async def _write(self, tenant: str, aligned: AlignedPush, *, has_observed_runs: bool) -> None:
        if not aligned.new_lines:
            return
        observed_run_ids = tuple(
            observed_run_id(tenant, added.run.run_id)
            for added in aligned.new_lines
            if has_observed_runs
        )
        batch = IngestBatch(
            new_lines=aligned.new_lines,
            since=window_starts(self.now()),
            observed_run_ids=observed_run_ids,
        )
        await self.store.fleet_ingest(tenant, batch)


class Ingest:
    """Stores the lines that producers push, and has their observed runs built."""

    def __init__(
        self,
        writer: LineWriter,
        observed: ObservedRuns | None = None,
        *,
        policy: RetentionPolicy | None = None,
    ) -> None:
        self._writer = writer
        self._store = writer.store
        self._now = writer.now
        self._observed = observed
        self._kept_after_push = (policy or RetentionPolicy()).pushed

    async def push(self, tenant: str, body: bytes, family: Family = "any") -> Ingested:
        """Store the lines of a body.

        Raises `Refused`, `Conflict` or `Gone` as `align_push` does, and nothing is stored.
        """
        observed = self._observed
        with nullcontext() if observed is None else observed.during_push():
            push = await in_thread_if_large(partial(read_body, body, family), len(body))
            own_runs = None if observed is None else partial(observed.project_own, tenant)
            aligned = await self._writer.put(tenant, push, "push", len(body), own_runs)
            if aligned.new_lines and observed is not None:
                observed.on_pushed(
                    [observed_run_id(tenant, added.run.run_id) for added in aligned.new_lines]
                )
            return Ingested(
                accepted=aligned.accepted,
                duplicate=aligned.duplicates,
                runs=list(push.runs),
                expiring=await self._list_expiring(tenant, push, aligned),
            )

    async def _list_expiring(
        self, tenant: str, push: Push, aligned: AlignedPush
    ) -> list[ExpiringRun]:
        """List the tenant's pushed runs that expire soon.

        A push of lines that are already stored also renews the retention of its runs.
        """
        if self._kept_after_push is None:
            return []
        kept_ms = self._kept_after_push // timedelta(milliseconds=1)
        now = self._now()
        written = {added.run.run_id for added in aligned.new_lines}
        repeated = tuple(run_id for run_id in push.runs if run_id not in written)
        if repeated:
            await self._store.fleet_repeat_push(tenant, RepeatedPush(run_ids=repeated, at=now))
        found = await self._store.fleet_expiring_runs(
            tenant, now - kept_ms + EXPIRING_SOON_MS, MAX_EXPIRING
        )
        return [
            ExpiringRun(run_id=run_id, drops_at=from_millis(pushed_at + kept_ms))
            for run_id, pushed_at in found
            if run_id not in push.runs
        ]


async def in_thread_if_large(work: Callable[[], T], size: int) -> T:
    """Run `work` on `size` bytes, in a thread if they are many, so that other requests continue."""
    return work() if size < INLINE_BYTES else await anyio.to_thread.run_sync(work)
