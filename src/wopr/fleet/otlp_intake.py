"""Takes OTLP exports: reads them, and keeps their spans durably until the fleet is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Final

import anyio.to_thread

from wopr.fleet.otlp_facts import SpanFacts, UnusableSpan, WireSpan, facts_of
from wopr.fleet.otlp_tree import write_spans
from wopr.fleet.otlp_wire import Encoding, read_export
from wopr.store.port.traces import TracePart, Traces

# From so many bytes on, an export is read beside the event loop.
NEAR_BYTES: Final = 16 * 1024
# A trace that never ends must not grow for ever.
MOST_SPANS: Final = 10_000
_TOO_MANY: Final = f"a trace may have at most {MOST_SPANS} spans"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """How many spans of an export were left out, and why; the rest is durable."""

    rejected: int = 0
    message: str = ""


class OtlpIntake:
    """Keeps what other systems export.

    `clean` takes a tenant and a text, and returns the text without secrets. `wake` calls the task
    that tells the fleet.
    """

    def __init__(
        self,
        store: Traces,
        now: Callable[[], int],
        clean: Callable[[str, str], str],
        *,
        settle_ms: int,
        keeps_content: bool,
    ) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._store = store
        self._now = now
        self._settle_ms = settle_ms
        self._clean = clean
        self._keeps_content = keeps_content

    async def take(self, tenant: str, body: bytes, encoding: Encoding) -> Taken:
        """Take the spans of an export. Raises `Refused` for a body that is none."""
        reduce = partial(
            facts_of, keeps_content=self._keeps_content, clean=partial(self._clean, tenant)
        )
        work = partial(_parts, body, encoding, reduce)
        is_short = len(body) < NEAR_BYTES
        parts, faults = work() if is_short else await anyio.to_thread.run_sync(work)
        refused = 0
        if parts:
            now = self._now()
            refused = await self._store.put_spans(
                tenant, parts, now=now, due_at=now + self._settle_ms, most_spans=MOST_SPANS
            )
            self.wake()
        reasons = [*dict.fromkeys(faults), *([_TOO_MANY] if refused else [])]
        return Taken(rejected=len(faults) + refused, message="; ".join(reasons))


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
        # A span that is not about agents is kept only where it has a place in its trace.
        if span.has_place:
            by_trace.setdefault(span.trace_id, []).append(facts)
    return [_part(trace_id, spans) for trace_id, spans in by_trace.items()], faults


def _part(trace_id: str, spans: Iterable[SpanFacts]) -> TracePart:
    held = list(spans)
    body = write_spans(held)
    digest = sha256(body).digest()
    return TracePart(trace_id=trace_id, digest=digest, spans=len(held), body=body)
