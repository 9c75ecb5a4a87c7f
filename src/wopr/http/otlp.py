"""OTLP over HTTP in: where other systems export their traces to."""

from __future__ import annotations

import zlib
from typing import Final

from wopr.http.answers import JSON, Answer, error_answer, error_envelope, ok
from wopr.http.exchange import Exchange, WrongMediaType
from wopr.http.operation import Operation
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import Refused, TooLarge, WoprError
from wopr.runtime.otlp import Encoding, Taken

PROTOBUF: Final = "application/x-protobuf"
MEDIA_TYPES: Final[dict[str, Encoding]] = {PROTOBUF: "protobuf", JSON: "json"}
# Each member of a gzip costs a copy of the rest; exporters write one.
MOST_MEMBERS: Final = 16
_GZIP: Final = 16 + zlib.MAX_WBITS
# The statuses of this host as the codes that protocol buffers have for them; others are internal.
_CODES: Final = {400: 3, 413: 3, 415: 3, 429: 8, 503: 14}
_INTERNAL: Final = 13


async def export_traces(exchange: Exchange) -> Answer:
    """Take an OTLP export of traces; spans about agents become observed runs of the fleet.

    The answer has the encoding of the request. Spans that are not about agents are taken and not
    told. The same export may come again, and spans in any order.
    """
    encoding = _encoding(exchange)
    try:
        taken = await _take(exchange, encoding)
    except WoprError as error:
        if encoding == "json":
            raise
        return _refusal(exchange, error)
    return _taken(taken, encoding)


def _encoding(exchange: Exchange) -> Encoding:
    declared = exchange.header(b"content-type") or PROTOBUF
    media = declared.partition(";")[0].strip().lower()
    if media not in MEDIA_TYPES:
        raise WrongMediaType(
            f"Content-Type must be {PROTOBUF} or {JSON}, not {media!r}", field="Content-Type"
        )
    return MEDIA_TYPES[media]


async def _take(exchange: Exchange, encoding: Encoding) -> Taken:
    fleet = exchange.host.fleet
    fleet.pushes.spend(exchange.tenant)
    exchange.host.quotas.check_push(exchange.tenant)
    body = await exchange.body()
    packing = (exchange.header(b"content-encoding") or "identity").strip().lower()
    if packing == "gzip":
        body = unpack(body, exchange.host.settings.max_body_bytes)
    elif packing != "identity":
        raise WrongMediaType(
            f"Content-Encoding must be gzip or identity, not {packing!r}", field="Content-Encoding"
        )
    return await fleet.otlp.take(exchange.tenant, body, encoding)


def unpack(packed: bytes, limit: int) -> bytes:
    """Unpack gzip, and stop as soon as there is more than the limit allows."""
    pieces: list[bytes] = []
    left = limit + 1
    for _ in range(MOST_MEMBERS):
        stream = zlib.decompressobj(_GZIP)
        try:
            piece = stream.decompress(packed, left)
        except zlib.error as fault:
            raise Refused("the body is not gzip", field="body") from fault
        pieces.append(piece)
        left -= len(piece)
        if left <= 0:
            raise TooLarge(
                f"the unpacked body may have at most {limit} bytes", field="body", limit=limit
            )
        if not stream.eof:
            raise Refused("the gzip of the body is cut off", field="body")
        packed = stream.unused_data
        if not packed:
            return b"".join(pieces)
    raise Refused(f"the gzip of the body may have {MOST_MEMBERS} members at most", field="body")


def _taken(taken: Taken, encoding: Encoding) -> Answer:
    if encoding == "json":
        partial: JsonObject = {
            # Whole numbers of 64 bits are texts in this encoding.
            "rejectedSpans": str(taken.rejected),
            "errorMessage": taken.message,
        }
        return ok({"partialSuccess": partial} if taken.rejected else {})
    if not taken.rejected:
        # A message without fields has no bytes, and a type all the same.
        return Answer(200, headers={"content-type": PROTOBUF})
    # Imported when it is needed: the library is slow to import.
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = taken.rejected
    response.partial_success.error_message = taken.message
    return Answer(200, response.SerializeToString(), PROTOBUF)


def _refusal(exchange: Exchange, error: WoprError) -> Answer:
    """The refusal as a `google.rpc.Status`, with the status and headers that it always has."""
    from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # it has no stubs

    plain = error_answer(error, exchange.redactor)
    code = _CODES.get(error.status, _INTERNAL)
    message = error_envelope(error, exchange.redactor).message
    body: bytes = Status(code=code, message=message).SerializeToString()
    return Answer(plain.status, body, PROTOBUF, plain.headers)


OPERATIONS = (
    Operation(
        name="exportTraces",
        method="POST",
        path="/v1/fleet/otlp/v1/traces",
        handler=export_traces,
        summary="Export OpenTelemetry traces into the fleet",
        tag="fleet",
        scope="fleet:ingest",
        body_types=tuple(MEDIA_TYPES),
        content_type=PROTOBUF,
        other_content_types=(JSON,),
        error_types=(PROTOBUF,),
        errors=(400, 413, 415),
        is_extension=True,
    ),
)
