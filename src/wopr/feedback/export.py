"""Export of runs with their annotations as JSON lines, CSV or Parquet, page by page."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Protocol

import anyio.to_thread
import msgspec

from wopr.feedback.selection import each_run
from wopr.feedback.snapshots import RunSnapshots
from wopr.protocol.documents import Json, JsonObject, to_iso
from wopr.protocol.errors import NotProvided
from wopr.protocol.resources.reviews import ExportFormat
from wopr.store.port import RunFilter, RunLog, RunRow
from wopr.store.port.feedback import AnnotationRow, Annotations

# The Arrow types of columns.
_TYPES = {"str": "string", "int": "int64", "int | None": "int64", "float | None": "float64"}


class ParquetFile:
    """Writes rows with the same columns, and returns the bytes as they are written."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        # pyarrow has no type annotations, so it is used only in this class.
        arrow: Any = _import_module("pyarrow")
        parquet: Any = _import_module("pyarrow.parquet")
        self._arrow = arrow
        self._schema: Any = arrow.schema(
            [(name, getattr(arrow, _TYPES[kind])()) for name, kind in columns.items()]
        )
        self._sink = _Sink()
        self._writer: Any = parquet.ParquetWriter(self._sink, self._schema)

    async def write(self, rows: list[dict[str, object]]) -> bytes:
        """Write rows as one row group."""
        return await anyio.to_thread.run_sync(self._write, rows)

    async def close(self) -> bytes:
        """Write the end of the file."""
        await anyio.to_thread.run_sync(self._writer.close)
        return self._sink.take_written()

    def _write(self, rows: list[dict[str, object]]) -> bytes:
        self._writer.write_table(self._arrow.Table.from_pylist(rows, schema=self._schema))
        return self._sink.take_written()


class _Sink(io.RawIOBase):
    """Buffers written bytes until `take_written`; the position counts all bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, piece: Any, /) -> int:
        data = bytes(piece)
        self._pieces.append(data)
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        return self._position

    def take_written(self) -> bytes:
        """Return the bytes that were written since the last call."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def _import_module(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise NotProvided(
            "Parquet needs pyarrow, which is not installed: install wopr[parquet], "
            "or use the format jsonl or csv",
            requiredCapability="export.parquet",
        ) from None


PAGE: Final = 200
# Number of rows in a row group of a Parquet file.
PARQUET_ROWS: Final = 500
# A larger snapshot is decoded in a thread.
LARGE_BYTES: Final = 256 * 1024
# A spreadsheet interprets a cell that begins with one of these as a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


class ExportStore(RunLog, Annotations, Protocol):
    """The parts of the store that an export uses."""


class _Outcome(msgspec.Struct, rename="camel"):
    """The part of a snapshot that is read for a row."""

    inputs: Json = None
    outputs: Json = None
    error: JsonObject = {}
    agent: JsonObject = {}


_OUTCOME: Final = msgspec.json.Decoder(_Outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatRun:
    """A run as one row. Missing texts are empty, and missing numbers are None."""

    run_id: str
    workflow_id: str
    workflow_version: str
    status: str
    agent_id: str
    created_at: str
    ended_at: str
    duration_ms: int | None
    parent_run_id: str
    tags: str
    error_code: str
    error_message: str
    inputs: str
    outputs: str
    annotations: int
    ratings: int
    mean_rating: float | None
    corrections: int
    labels: str
    flags: int


COLUMNS: Final = {field.name: str(field.type) for field in fields(FlatRun)}


class Exports:
    """Exports runs. Texts in snapshots and annotations were redacted when they were stored."""

    def __init__(self, store: ExportStore, snapshots: RunSnapshots) -> None:
        self._store = store
        self._snapshots = snapshots

    def chunks(
        self, tenant: str, where: RunFilter, format_name: ExportFormat
    ) -> AsyncIterator[bytes]:
        """Return the file in pieces. Raises `NotProvided` at once if pyarrow is missing."""
        match format_name:
            case "jsonl":
                return self._jsonl(tenant, where)
            case "csv":
                return self._csv(tenant, where)
            case "parquet":
                return self._parquet(ParquetFile(COLUMNS), tenant, where)

    async def _jsonl(self, tenant: str, where: RunFilter) -> AsyncIterator[bytes]:
        async for run in each_run(self._store, tenant, where):
            yield b'{"run":%b,"annotations":[' % await self._snapshots.read_whole(tenant, run)
            separator = b""
            async for page in self._annotations(tenant, run.run_id):
                yield separator + b",".join(row.body for row in page)
                separator = b","
            yield b"]}\n"

    async def _csv(self, tenant: str, where: RunFilter) -> AsyncIterator[bytes]:
        yield _csv_line(tuple(COLUMNS))
        async for run in each_run(self._store, tenant, where):
            flat = await self._flat_run(tenant, run)
            yield _csv_line(tuple(_escape_formula(getattr(flat, name)) for name in COLUMNS))

    async def _parquet(
        self, file: ParquetFile, tenant: str, where: RunFilter
    ) -> AsyncIterator[bytes]:
        rows: list[dict[str, object]] = []
        async for run in each_run(self._store, tenant, where):
            rows.append(asdict(await self._flat_run(tenant, run)))
            if len(rows) == PARQUET_ROWS:
                yield await file.write(rows)
                rows.clear()
        if rows:
            yield await file.write(rows)
        yield await file.close()

    async def _annotations(self, tenant: str, run_id: str) -> AsyncIterator[list[AnnotationRow]]:
        after: tuple[int, str] | None = None
        while page := await self._store.annotations(tenant, run_id, after, PAGE):
            yield page
            if len(page) < PAGE:
                return
            after = page[-1].created_at, page[-1].annotation_id

    async def _flat_run(self, tenant: str, run: RunRow) -> FlatRun:
        body = await self._snapshots.read_whole(tenant, run)
        if len(body) < LARGE_BYTES:
            outcome = _OUTCOME.decode(body)
        else:
            outcome = await anyio.to_thread.run_sync(_OUTCOME.decode, body)
        counts: dict[str, int] = dict.fromkeys(("rating", "correction", "label", "flag"), 0)
        rating_sum = 0
        labels: dict[str, None] = {}
        async for page in self._annotations(tenant, run.run_id):
            for row in page:
                if row.source == "audit":
                    continue
                counts[row.kind] += 1
                rating_sum += row.rating or 0
                if row.kind == "label":
                    labels[_label(row)] = None
        ratings = counts["rating"]
        return FlatRun(
            run_id=run.run_id,
            workflow_id=run.workflow_id,
            workflow_version=run.workflow_version,
            status=run.status,
            agent_id=str(outcome.agent.get("agentId", "")),
            created_at=to_iso(run.created_at),
            ended_at="" if run.ended_at is None else to_iso(run.ended_at),
            duration_ms=None if run.ended_at is None else run.ended_at - run.created_at,
            parent_run_id=run.parent_run_id or "",
            tags=" ".join(run.tags),
            error_code=str(outcome.error.get("code", "")),
            error_message=str(outcome.error.get("message", "")),
            inputs=_json_text(outcome.inputs),
            outputs=_json_text(outcome.outputs),
            annotations=sum(counts.values()),
            ratings=ratings,
            mean_rating=round(rating_sum / ratings, 4) if ratings else None,
            corrections=counts["correction"],
            labels="; ".join(labels),
            flags=counts["flag"],
        )


class _Labelled(msgspec.Struct):
    signal: dict[str, Json]


def _label(row: AnnotationRow) -> str:
    return str(msgspec.json.decode(row.body, type=_Labelled).signal.get("label", ""))


def _json_text(value: Json) -> str:
    return "" if value is None else msgspec.json.encode(value).decode()


def _escape_formula(value: str | float | None) -> str | float | None:
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


def _csv_line(cells: tuple[object, ...]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue().encode()
