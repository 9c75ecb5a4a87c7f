"""Discovery, OpenAPI, schemas and health, which need no key, and metrics."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

from wopr import __version__
from wopr.http.answers import Answer, ok
from wopr.http.asyncapi import asyncapi_document
from wopr.http.exchange import Exchange
from wopr.http.operation import Operation
from wopr.protocol.capabilities import Capabilities
from wopr.protocol.documents import Document, encode
from wopr.protocol.errors import NotFound, Unavailable
from wopr.protocol.schemas import export
from wopr.runtime.advertise_agents import mock_agent_schemas
from wopr.runtime.advertise_fleet import kahn_schemas
from wopr.runtime.readiness import check_ready, measure


class Health(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The process lives."""

    status: str
    version: str


async def get_discovery(exchange: Exchange) -> Answer:
    """Tell what this host can do."""
    host = exchange.host
    headers = {
        "etag": host.discovery_etag,
        "cache-control": "public, max-age=300",
        "capabilities-etag": host.discovery_etag.strip('"'),
    }
    if exchange.already_has(host.discovery_etag):
        return Answer(304, headers=headers)
    return Answer(200, host.discovery, headers=headers)


@cache
def _schemas() -> dict[str, bytes]:
    schemas = export() | kahn_schemas() | mock_agent_schemas()
    return {name: encode(schema) for name, schema in schemas.items()}


@cache
def _asyncapi(feedback: bool) -> bytes:
    return encode(asyncapi_document(feedback=feedback))


async def get_asyncapi(exchange: Exchange) -> Answer:
    """Describe the event streams: every mode, every notice and every event."""
    body = _asyncapi(exchange.host.settings.feedback)
    return Answer(200, body, headers={"cache-control": "public, max-age=300"})


async def get_schema(exchange: Exchange) -> Answer:
    """Read a JSON Schema of the wire."""
    name = exchange.path["name"].removesuffix(".json")
    body = _schemas().get(name)
    if body is None:
        raise NotFound(f"the schemas are {', '.join(sorted(_schemas()))}")
    headers = {"cache-control": "public, max-age=300"}
    return Answer(200, body, content_type="application/schema+json", headers=headers)


async def healthz(exchange: Exchange) -> Answer:
    """Say that the process lives."""
    return ok(Health(status="ok", version=__version__))


async def readyz(exchange: Exchange) -> Answer:
    """Say whether a write would be taken now, by this process."""
    await check_ready(exchange.host)
    return ok(Health(status="ready", version=__version__))


async def metrics(exchange: Exchange) -> Answer:
    """Expose counters in the Prometheus format."""
    host = exchange.host
    # Counters are told also while the store is away; what is measured there is as it was last.
    with suppress(Unavailable):
        await measure(host)
    return Answer(200, host.metrics.text(), content_type="text/plain; version=0.0.4")


METRICS = Operation(
    name="metrics",
    method="GET",
    path="/metrics",
    handler=metrics,
    summary="Counters in the Prometheus format",
    tag="operations",
    scope="metrics:read",
    is_open=lambda settings: settings.metrics_open,
    content_type="text/plain",
    is_extension=True,
)
# Health endpoints. A worker process serves only these.
PROBES = (
    Operation(
        name="healthz",
        method="GET",
        path="/healthz",
        handler=healthz,
        summary="Whether the process lives",
        tag="operations",
        answer=Health,
        is_extension=True,
        is_unlimited=True,
    ),
    Operation(
        name="readyz",
        method="GET",
        path="/readyz",
        handler=readyz,
        summary="Whether a write would be taken now",
        tag="operations",
        answer=Health,
        errors=(503,),
        is_extension=True,
        is_unlimited=True,
    ),
    METRICS,
)

OPERATIONS = (
    Operation(
        name="getDiscovery",
        method="GET",
        path="/.well-known/openwop",
        handler=get_discovery,
        summary="Read what this host can do",
        tag="discovery",
        answer=Capabilities,
        other_answers=(304,),
    ),
    Operation(
        name="getSchema",
        method="GET",
        path="/v1/schemas/{name}",
        handler=get_schema,
        summary="Read a JSON Schema of the wire",
        tag="discovery",
        content_type="application/schema+json",
        errors=(404,),
        is_extension=True,
    ),
    Operation(
        name="getAsyncapi",
        method="GET",
        path="/v1/asyncapi.json",
        handler=get_asyncapi,
        summary="Read the AsyncAPI 3 description of the event streams",
        tag="discovery",
        is_extension=True,
    ),
    *PROBES,
)
