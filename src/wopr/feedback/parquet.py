"""A Parquet file that leaves piece by piece. Needs pyarrow, which is an extra of the package."""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping
from typing import Any

import anyio.to_thread

from wopr.protocol.errors import NotProvided

# How the types of columns are called in Arrow.
_TYPES = {"str": "string", "int": "int64", "int | None": "int64", "float | None": "float64"}


class ParquetFile:
    """Writes rows of the same columns, and hands out the bytes as they are written."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        # pyarrow has no types of its own: this class is the edge that it is used at.
        arrow: Any = _module("pyarrow")
        parquet: Any = _module("pyarrow.parquet")
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
        return self._sink.taken()

    def _write(self, rows: list[dict[str, object]]) -> bytes:
        self._writer.write_table(self._arrow.Table.from_pylist(rows, schema=self._schema))
        return self._sink.taken()


class _Sink(io.RawIOBase):
    """Keeps what is written until it is taken; the position counts all of it."""

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

    def taken(self) -> bytes:
        """All that was written since the last time."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def _module(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise NotProvided(
            "Parquet needs pyarrow, which is not installed here: install wopr[parquet], "
            "or ask for jsonl or csv",
            requiredCapability="export.parquet",
        ) from None
