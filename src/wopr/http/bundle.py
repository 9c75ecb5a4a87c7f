"""The debug bundle."""

from __future__ import annotations

from wopr.http.answers import Answer
from wopr.http.exchange import Exchange
from wopr.http.operation import Operation, Parameter
from wopr.http.runs import RUN_ERRORS, run_id
from wopr.runtime.bundle import bundle

_MOST_EVENTS = 1_000_000


async def get_debug_bundle(exchange: Exchange) -> Answer:
    """Export one run for diagnosis: snapshot, log, spans, metrics and annotations."""
    name = run_id(exchange)
    host = exchange.host
    most = exchange.whole_number("maxEvents", _MOST_EVENTS, most=_MOST_EVENTS)
    async with host.heavy_reads.turn(exchange.tenant):
        body = await bundle(
            host.readers,
            host.store,
            exchange.tenant,
            name,
            now=host.sources.now(),
            most_events=most if "maxEvents" in exchange.query else None,
        )
    await host.audit.record(exchange.tenant, exchange.caller.key_id, "run.export", name)
    return Answer(200, body, headers={"cache-control": "no-store"})


OPERATIONS = (
    Operation(
        name="getDebugBundle",
        method="GET",
        path="/v1/runs/{run_id}/debug-bundle",
        handler=get_debug_bundle,
        summary="Export a run for diagnosis",
        tag="runs",
        scope="runs:read",
        errors=(400, *RUN_ERRORS),
        parameters=(
            Parameter(
                name="maxEvents",
                description="How many events at most, from the first on.",
                schema={"type": "integer", "minimum": 0, "maximum": _MOST_EVENTS},
            ),
        ),
        read="recorded",
    ),
)
