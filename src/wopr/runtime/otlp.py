"""Traces that other systems exported, told to the fleet once they are whole or have gone quiet.

An export is answered when its spans are durable. A trace is told when every span about agents hangs on
a root and nothing has come for a moment, or when nothing has come for long. What is told is sealed
first: a host that is killed in between tells the same lines again, and the fleet finds that it has them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import anyio
import anyio.to_thread
import structlog

from wopr.fleet.ingest import Ingest
from wopr.fleet.otlp_facts import SpanFacts
from wopr.fleet.otlp_intake import OtlpIntake, Taken
from wopr.fleet.otlp_lines import translate
from wopr.fleet.otlp_tree import Tree, read_spans
from wopr.fleet.otlp_wire import Encoding
from wopr.protocol.errors import Conflict, Gone, Refused, Unavailable, WoprError
from wopr.runtime.fleet_debts import SWEEP_SECONDS
from wopr.runtime.settings import DAY_MS
from wopr.store.port.fleet import Fleet
from wopr.store.port.traces import DueTrace, HeldTrace, Traces

__all__ = ["Encoding", "OtlpIntake", "Taken", "TraceTeller"]

# How long a trace is remembered after it was told, so that late and repeated spans find it.
KEPT_MS: Final = DAY_MS
AT_ONCE: Final = 64
STORE_AWAY_SECONDS: Final = 1.0
# When to try again after something went wrong that no other try may mend.
FAILED_MS: Final = 60_000

log = structlog.get_logger("wopr.fleet")


class TracesStore(Traces, Fleet, Protocol):
    """What telling the fleet of traces needs of the store."""


class TraceTeller:
    """Tells the fleet of traces, each episode once."""

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
        # How long at most it sleeps: spans may have come to another process.
        self._sweep_seconds = sweep_seconds
        self._news = anyio.Event()

    def wake(self) -> None:
        """Hear that spans came."""
        self._news.set()

    async def run_forever(self) -> None:
        """Tell until cancelled."""
        while True:
            self._news = anyio.Event()
            try:
                pause = await self.catch_up()
            except WoprError as error:
                log.error("traces wait for the store", code=error.code, message=str(error))
                pause = STORE_AWAY_SECONDS
            with anyio.move_on_after(pause):
                await self._news.wait()

    async def catch_up(self) -> float:
        """Tell all that is due, and say in how many seconds something will be."""
        while True:
            page = await self._store.due_traces(AT_ONCE)
            now = self._now()
            due = [each for each in page if each.due_at <= now]
            for each in due:
                await self._attempt(each)
            if len(due) == len(page) == AT_ONCE:
                continue
            later = [each.due_at for each in page if each.due_at > now]
            seconds = (min(later) - now) / 1000 if later else self._sweep_seconds
            return 0.0 if due else min(seconds, self._sweep_seconds)

    async def _attempt(self, due: DueTrace) -> None:
        trace = await self._store.trace(due.tenant, due.trace_id)
        if trace is None:
            return
        try:
            await self._look_at(due.tenant, trace)
        except Unavailable:
            raise
        except Exception as error:  # the outer edge of a task
            log.error("trace not told", trace_id=due.trace_id, exc_info=error)
            later = self._now() + FAILED_MS
            await self._store.settle_trace(due.tenant, trace, told=trace.told, due_at=later)

    async def _look_at(self, tenant: str, trace: HeldTrace) -> None:
        if trace.sealed > trace.told:
            await self._tell(tenant, trace)
        elif 0 not in trace.parts:
            await self._store.drop_trace(tenant, trace)
        else:
            await self._seal(tenant, trace)

    async def _seal(self, tenant: str, trace: HeldTrace) -> None:
        """Seal what came, if nothing more is to be waited for."""
        spans = await anyio.to_thread.run_sync(partial(_episodes, trace))
        tree = Tree({span_id: each for episode in spans for span_id, each in episode.items()})
        quiet_at = trace.last_at + self._quiet_ms
        is_quiet = quiet_at <= self._now()
        if not any(tree.told()) and is_quiet:
            await self._store.drop_trace(tenant, trace)
        elif is_quiet or (any(tree.told()) and tree.is_whole):
            # With news in between it is due anew.
            await self._store.seal_trace(tenant, trace)
        else:
            await self._store.settle_trace(tenant, trace, told=trace.told, due_at=quiet_at)

    async def _tell(self, tenant: str, trace: HeldTrace) -> None:
        """Give the fleet the lines of the sealed episode."""
        episodes = await anyio.to_thread.run_sync(partial(_episodes, trace, sealed=True))
        own = {span.run_id for span in episodes[-1].values() if span.run_id}
        # What this host exported itself the fleet knows already.
        if not own or not await self._store.fleet_namesakes(tenant, sorted(own)):
            lines = await anyio.to_thread.run_sync(translate, trace.trace_id, episodes)
            await self._push(tenant, trace, lines)
        has_news = 0 in trace.parts
        due_at = trace.last_at + self._settle_ms if has_news else self._now() + KEPT_MS
        await self._store.settle_trace(tenant, trace, told=trace.sealed, due_at=due_at)

    async def _push(self, tenant: str, trace: HeldTrace, lines: list[bytes]) -> None:
        if not lines:
            return
        try:
            await self._ingest.push(tenant, b"\n".join([*lines, b""]), "agent")
        except (Refused, Conflict, Gone) as refusal:
            # The fleet has another history of this trace, or none any more: no try will help.
            log.error("trace refused", trace_id=trace.trace_id, code=refusal.code)


def _episodes(trace: HeldTrace, *, sealed: bool = False) -> list[dict[str, SpanFacts]]:
    """The spans of each episode; the last are those that are in none yet, if they are wanted."""
    numbers = [*range(1, trace.sealed + 1), *([] if sealed else [0])]
    return [read_spans(trace.parts.get(number, ())) for number in numbers]
