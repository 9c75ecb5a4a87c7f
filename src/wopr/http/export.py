"""Runs as a file, with their annotations."""

from __future__ import annotations

from wopr.http.answers import Stream
from wopr.http.exchange import Exchange
from wopr.http.operation import Operation, Parameter
from wopr.http.run_filters import RUN_FILTERS, run_filter
from wopr.protocol.errors import Refused
from wopr.protocol.reviews import EXPORT_FORMATS, ExportFormat

_FORMATS: dict[str, ExportFormat] = {name: name for name in EXPORT_FORMATS}


async def export_runs(exchange: Exchange) -> Stream:
    """Export runs, newest first: JSON lines with snapshot and annotations, or flat rows.

    The file is sent while it is written, so its size does not matter. Parquet needs the extra
    `parquet` and is answered 501 without it. A connection that breaks off means half a file.
    """
    asked = exchange.query.get("format", "jsonl")
    name = _FORMATS.get(asked)
    if name is None:
        raise Refused(f"format must be one of {', '.join(EXPORT_FORMATS)}", field="format")
    chunks = exchange.host.feedback.exports.chunks(exchange.tenant, run_filter(exchange), name)
    return Stream(chunks, EXPORT_FORMATS[name], is_document=True)


OPERATIONS = (
    Operation(
        name="exportRuns",
        method="GET",
        path="/v1/export/runs",
        handler=export_runs,
        summary="Export runs with their annotations",
        tag="feedback",
        scope="runs:read",
        content_type=EXPORT_FORMATS["jsonl"],
        other_content_types=(EXPORT_FORMATS["csv"], EXPORT_FORMATS["parquet"]),
        errors=(400, 401, 403, 501),
        parameters=(
            Parameter(
                name="format",
                description=f"One of {', '.join(EXPORT_FORMATS)}.",
                schema={"type": "string", "enum": list(EXPORT_FORMATS), "default": "jsonl"},
            ),
            *RUN_FILTERS,
        ),
        is_extension=True,
        read="sensitive",
    ),
)
