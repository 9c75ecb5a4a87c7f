"""Routes of discovery, schemas, health and metrics."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

from wopr.host.host import check_ready, update_gauges
from wopr.http.asyncapi import asyncapi_document
from wopr.http.operation import Operation
from wopr.http.request import Request
from wopr.http.response import Response, ok
from wopr.kahn.events import export_schemas as kahn_schemas
from wopr.protocol.discovery.document import Capabilities
from wopr.protocol.documents import Document, encode
from wopr.protocol.errors import NotFound, Unavailable
from wopr.protocol.json_schema.export import export
from wopr.services.discovery.agent_families import mock_agent_schemas
from wopr.version import __version__


class Health(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The health of the process."""

    status: str
    version: str


async def get_discovery(request: Request) -> Response:
    """Return the capabilities of this host."""
    host = request.host
    headers = {
        "etag": host.discovery_etag,
        "cache-control": "public, max-age=300",
        "capabilities-etag": host.discovery_etag.strip('"'),
    }
    if request.matches_etag(host.discovery_etag):
        return Response(304, headers=headers)
    return Response(200, host.discovery, headers=headers)


@cache
def _schemas() -> dict[str, bytes]:
    schemas = export() | kahn_schemas() | mock_agent_schemas()
    return {name: encode(schema) for name, schema in schemas.items()}


@cache
def _asyncapi(feedback: bool) -> bytes:
    return encode(asyncapi_document(feedback=feedback))


async def get_asyncapi(request: Request) -> Response:
    """Return the AsyncAPI description of the event streams."""
    body = _asyncapi(request.host.settings.feedback)
    return Response(200, body, headers={"cache-control": "public, max-age=300"})


async def get_schema(request: Request) -> Response:
    """Read a JSON Schema of the wire."""
    name = request.path["name"].removesuffix(".json")
    body = _schemas().get(name)
    if body is None:
        known = ", ".join(sorted(_schemas()))
        raise NotFound(f"there is no schema {name[:128]!r}; the schemas are {known}")
    headers = {"cache-control": "public, max-age=300"}
    return Response(200, body, content_type="application/schema+json", headers=headers)


async def healthz(request: Request) -> Response:
    """Report that the process is running."""
    return ok(Health(status="ok", version=__version__))


async def readyz(request: Request) -> Response:
    """Report whether this process can accept a write."""
    await check_ready(request.host)
    return ok(Health(status="ready", version=__version__))


async def metrics(request: Request) -> Response:
    """Expose counters in the Prometheus format."""
    host = request.host
    # Counters are served while the store is unavailable; gauges from the store keep their last
    # value.
    with suppress(Unavailable):
        await update_gauges(host)
    return Response(200, host.metrics.text(), content_type="text/plain; version=0.0.4")


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
        summary="Check that the process is running",
        tag="operations",
        response=Health,
        is_extension=True,
        is_unlimited=True,
    ),
    Operation(
        name="readyz",
        method="GET",
        path="/readyz",
        handler=readyz,
        summary="Check that the process can accept writes",
        tag="operations",
        response=Health,
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
        summary="Read the capabilities of this host",
        tag="discovery",
        response=Capabilities,
        other_statuses=(304,),
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
