"""Copies every table in batches of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from wopr.protocol.errors import Refused
from wopr.store.migrate.source import SourceDatabase, SourceTable, open_source
from wopr.store.migrate.target import Key, TargetDatabase, TargetTable, open_target
from wopr.store.postgres.pool import Address
from wopr.store.tables.dialect import Row

# Called with the name of a table and the number of rows that were written.
OnCopied: TypeAlias = Callable[[str, int], None]

_BATCH_ROWS: Final = 2000
_BATCH_BYTES: Final = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """The number of rows of each table, and the tables whose numbers differ."""

    rows: dict[str, int]
    differing: dict[str, tuple[int, int]]


class DatabaseCopy:
    """A copy in progress. No other process uses either database meanwhile.

    `is_complete` is true if an earlier call has copied this source completely. Hosts may have
    written to the target since.
    """

    def __init__(self, source: SourceDatabase, target: TargetDatabase) -> None:
        self._source = source
        self._target = target
        self._pairs = _pairs(source, target)
        self.is_complete = self._is_complete()
        if not self.is_complete:
            target.begin([table.name for table, _ in self._pairs])

    def _is_complete(self) -> bool:
        copied = self._target.completed_copy()
        return copied is not None and all(
            self._source.count(table) == copied.get(table.name, 0) for table, _ in self._pairs
        )

    @property
    def total(self) -> int:
        """Return the number of rows of the source."""
        return sum(self._source.count(table) for table, _ in self._pairs)

    @property
    def copied_rows(self) -> int:
        """Return the number of rows that an earlier attempt has copied."""
        return sum(rows for _, rows in self._target.reached.values())

    def copy(self, on_copied: OnCopied) -> None:
        """Copy the rows that the target does not have yet."""
        for table, into in self._pairs:
            after, _ = self._target.reached.get(table.name, ((), 0))
            for rows in _batches(self._source.rows(table, after)):
                reached: Key = rows[-1][: len(table.key)]
                values = [row[len(table.key) :] for row in rows]
                self._target.write(into, table.columns, values, reached)
                on_copied(table.name, len(rows))
            if into.identity_column is not None:
                last = self._source.last_place(table.name, into.identity_column)
                self._target.set_identity(into, last)

    def compare(self) -> CopyReport:
        """Count the rows of every table in both databases; after a complete copy, in the source."""
        if self.is_complete:
            rows = {table.name: self._source.count(table) for table, _ in self._pairs}
            return CopyReport(rows=rows, differing={})
        counts = {
            table.name: (self._source.count(table), self._target.count(into))
            for table, into in self._pairs
        }
        return CopyReport(
            rows={name: copied for name, (_, copied) in counts.items()},
            differing={name: pair for name, pair in counts.items() if pair[0] != pair[1]},
        )

    def finish(self) -> None:
        """Allow hosts to open the target."""
        self._target.finish()


@contextmanager
def open_copy(source: Path, target: Address) -> Generator[DatabaseCopy, None, None]:
    """Begin a copy, or continue an interrupted one.

    Raises `Conflict` if a host serves either database, or if the target has other rows.
    """
    with open_source(source) as read, open_target(target) as written:
        yield DatabaseCopy(read, written)


def _pairs(source: SourceDatabase, target: TargetDatabase) -> list[tuple[SourceTable, TargetTable]]:
    pairs: list[tuple[SourceTable, TargetTable]] = []
    for table in source.tables:
        into = target.tables.get(table.name)
        missing = set(table.columns) - (into.types.keys() if into else set())
        if into is None or missing:
            raise Refused(
                f"the target has no table or columns for {table.name}"
                + (f" ({', '.join(sorted(missing))})" if into else ""),
                field="to",
            )
        pairs.append((table, into))
    return pairs


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Group rows into batches of at most `_BATCH_ROWS` rows and about `_BATCH_BYTES` bytes."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(value) for value in row if isinstance(value, (str, bytes)))
        if len(batch) == _BATCH_ROWS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
