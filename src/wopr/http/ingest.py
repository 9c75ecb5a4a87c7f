"""KAHN lines in: what producers push."""

from __future__ import annotations

from typing import Final, Literal

from wopr.http.answers import Answer, ok
from wopr.http.exchange import Exchange, WrongMediaType
from wopr.http.operation import Operation
from wopr.protocol.fleet import Ingested

NDJSON: Final = "application/x-ndjson"
MEDIA_TYPES: Final = (NDJSON, "application/json-lines", "text/plain")
_ERRORS: Final = (400, 401, 403, 409, 410, 413, 415)


async def ingest_transitions(exchange: Exchange) -> Answer:
    """Take KAHN lines of both families, one JSON object per line.

    All lines are taken or none. Lines that are held already are counted as duplicates, so that a
    push can be repeated, whole or in other pieces; one that disagrees with what is held is refused.
    """
    return await _ingest(exchange, "any")


async def ingest_agent_transitions(exchange: Exchange) -> Answer:
    """Take KAHN lines of the agent family only."""
    return await _ingest(exchange, "agent")


async def _ingest(exchange: Exchange, family: Literal["any", "agent"]) -> Answer:
    fleet = exchange.host.fleet
    fleet.pushes.spend(exchange.tenant)
    exchange.host.quotas.check_push(exchange.tenant)
    _require_media_type(exchange)
    body = await exchange.body(fleet.max_push_bytes)
    return ok(await fleet.ingest.push(exchange.tenant, body, family))


def _require_media_type(exchange: Exchange) -> None:
    declared = exchange.header(b"content-type")
    media = NDJSON if declared is None else declared.partition(";")[0].strip().lower()
    if media not in MEDIA_TYPES:
        raise WrongMediaType(
            f"Content-Type must be one of {', '.join(MEDIA_TYPES)}, not {media!r}",
            field="Content-Type",
        )


OPERATIONS = (
    Operation(
        name="ingestTransitions",
        method="POST",
        path="/v1/ingest/transitions",
        handler=ingest_transitions,
        summary="Push KAHN lines of either family",
        tag="fleet",
        scope="fleet:ingest",
        body_types=MEDIA_TYPES,
        answer=Ingested,
        errors=_ERRORS,
        is_extension=True,
    ),
    Operation(
        name="ingestAgentTransitions",
        method="POST",
        path="/v1/ingest/agent-transitions",
        handler=ingest_agent_transitions,
        summary="Push KAHN lines of the agent family",
        tag="fleet",
        scope="fleet:ingest",
        body_types=MEDIA_TYPES,
        answer=Ingested,
        errors=_ERRORS,
        is_extension=True,
    ),
)
