"""A run's log as KAHN lines."""

from __future__ import annotations

from wopr.http.answers import Stream
from wopr.http.exchange import Exchange
from wopr.http.operation import Operation
from wopr.http.runs import RUN_ERRORS, run_id

NDJSON = "application/x-ndjson"


async def get_transitions(exchange: Exchange) -> Stream:
    """Read a run as KAHN lines: what its agents did, how they ended, and what was said of it.

    The lines of a run that goes on are the first of those it will have. An observed run answers
    with exactly the lines that were pushed, and may be named by its producer's id too.
    """
    transitions = exchange.host.fleet.transitions
    run = await transitions.find(exchange.tenant, run_id(exchange))
    return Stream(transitions.chunks(exchange.tenant, run.run_id), NDJSON, is_document=True)


OPERATIONS = (
    Operation(
        name="getTransitions",
        method="GET",
        path="/v1/runs/{run_id}/transitions",
        handler=get_transitions,
        summary="Read a run as KAHN lines",
        tag="fleet",
        scope="runs:read",
        content_type=NDJSON,
        errors=RUN_ERRORS,
        is_extension=True,
        read="sensitive",
    ),
)
