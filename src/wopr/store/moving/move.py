"""The move itself: every table, in batches of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from wopr.protocol.errors import Refused
from wopr.store.moving.source import Source, SourceTable, opened_source
from wopr.store.moving.target import Key, Target, TargetTable, opened_target
from wopr.store.postgres.address import Address
from wopr.store.sql.dialect import Row

# Called with the table and how many of its rows were written.
Moved: TypeAlias = Callable[[str, int], None]

_BATCH_ROWS: Final = 2000
_BATCH_BYTES: Final = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How many rows each table has on both sides."""

    rows: dict[str, int]
    differing: dict[str, tuple[int, int]]


class Moving:
    """A move under way; no other process uses either database meanwhile.

    `is_complete` says that an earlier call has moved this source to its end: there is nothing left
    to copy, and hosts may have written to the target since.
    """

    def __init__(self, source: Source, target: Target) -> None:
        self._source = source
        self._target = target
        self._pairs = _pairs(source, target)
        self.is_complete = self._is_complete()
        if not self.is_complete:
            target.begin([table.name for table, _ in self._pairs])

    def _is_complete(self) -> bool:
        moved = self._target.moved()
        return moved is not None and all(
            self._source.count(table) == moved.get(table.name, 0) for table, _ in self._pairs
        )

    @property
    def total(self) -> int:
        """How many rows there are to move in all."""
        return sum(self._source.count(table) for table, _ in self._pairs)

    @property
    def moved(self) -> int:
        """How many rows an earlier attempt has moved."""
        return sum(rows for _, rows in self._target.reached.values())

    def copy(self, moved: Moved) -> None:
        """Write what the target does not have yet."""
        for table, into in self._pairs:
            after, _ = self._target.reached.get(table.name, ((), 0))
            for rows in _batches(self._source.rows(table, after)):
                reached: Key = rows[-1][: len(table.key)]
                values = [row[len(table.key) :] for row in rows]
                self._target.write(into, table.columns, values, reached)
                moved(table.name, len(rows))
            if into.numbered is not None:
                last = self._source.last_place(table.name, into.numbered)
                self._target.number_from(into, last)

    def compare(self) -> Report:
        """Count every table on both sides; after a complete move, only the source."""
        if self.is_complete:
            rows = {table.name: self._source.count(table) for table, _ in self._pairs}
            return Report(rows=rows, differing={})
        counts = {
            table.name: (self._source.count(table), self._target.count(into))
            for table, into in self._pairs
        }
        return Report(
            rows={name: there for name, (_, there) in counts.items()},
            differing={name: pair for name, pair in counts.items() if pair[0] != pair[1]},
        )

    def finish(self) -> None:
        """Let hosts open the target."""
        self._target.finish()


@contextmanager
def moving(source: Path, target: Address) -> Generator[Moving, None, None]:
    """Begin a move, or go on with one that was cut off.

    Raises `Conflict` while a host serves either side, and for a target that has rows of its own.
    """
    with opened_source(source) as read, opened_target(target) as written:
        yield Moving(read, written)


def _pairs(source: Source, target: Target) -> list[tuple[SourceTable, TargetTable]]:
    pairs: list[tuple[SourceTable, TargetTable]] = []
    for table in source.tables:
        into = target.tables.get(table.name)
        missing = set(table.columns) - (into.types.keys() if into else set())
        if into is None or missing:
            raise Refused(
                f"the target has no place for {table.name}"
                + (f" ({', '.join(sorted(missing))})" if into else ""),
                field="to",
            )
        pairs.append((table, into))
    return pairs


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Rows, a few thousand or a few megabytes at a time."""
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
