"""Spans as a reader sees them: where each is counted from, and where it should begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from wopr.store.port.fleet import ALL, Since
from wopr.store.sql.fleet_counting import NO_MARK

MARKS: Final = "SELECT span, since FROM fleet_spans WHERE tenant = ?"


class Span(NamedTuple):
    """A span as a reader sees it: its mark, and where it should begin."""

    name: str
    mark: int
    since: int

    @property
    def between(self) -> tuple[int, int]:
        """From where to where the totals are wrong."""
        return min(self.mark, self.since), max(self.mark, self.since)

    @property
    def by(self) -> int:
        """What makes up for each run there."""
        return -1 if self.since > self.mark else 1


def span_of(marks: Mapping[str, int], span: str, since: Since) -> Span:
    """A span of a tenant whose marks are these."""
    mark = marks.get(span, NO_MARK)
    return Span(span, mark, mark if span == ALL else since[span])
