"""The events of a run as rows, with filters and pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from wopr.console.formatting import compact
from wopr.console.runs.annotations import AnnotationLine, RunAnnotations
from wopr.console.runs.log import DecodedLog, Entry
from wopr.http.request import whole_number
from wopr.protocol.documents import Json, object_of

PAGE_ROWS: Final = 250
_SUMMARY: Final = 180
# Members that the row shows in another place, or that are the same in every row.
_SHOWN: Final = frozenset({"nodeId", "runId", "agentId", "parentRunId", "interruptId", "callId"})
_TONES: Final = {
    "completed": "good",
    "granted": "good",
    "failed": "bad",
    "rejected": "bad",
    "breached": "bad",
    "diverged": "bad",
    "suspended": "waiting",
    "requested": "waiting",
    "cancelled": "quiet",
    "skipped": "quiet",
}


@dataclass(frozen=True, slots=True)
class EventFilter:
    """The filter of the events, and the first sequence to show."""

    type: str = ""
    node: str = ""
    agent: str = ""
    text: str = ""
    start: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> EventFilter:
        """Return the filter of a query."""
        start = query.get("from")
        return cls(
            type=query.get("type", ""),
            node=query.get("node", ""),
            agent=query.get("agent", ""),
            text=query.get("q", "").lower(),
            start=None if start is None else whole_number("from", start),
        )

    def matches(self, entry: Entry) -> bool:
        """Return whether an event matches the filter."""
        kind = entry.event.type
        return (
            (not self.type or kind == self.type or kind.startswith(f"{self.type}."))
            and (not self.node or entry.node_id == self.node)
            and (not self.agent or entry.agent_id == self.agent)
            and (not self.text or self.text in entry.text)
        )

    def query(self, **changes: object) -> str:
        """Return the query of this filter with changes."""
        fields = {"type": self.type, "node": self.node, "agent": self.agent, "q": self.text}
        return urlencode({n: v for n, v in (fields | changes).items() if v not in ("", None)})

    @property
    def is_empty(self) -> bool:
        """Return whether all events match."""
        return not (self.type or self.node or self.agent or self.text)


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event as a row."""

    entry: Entry
    offset: int
    summary: str
    tone: str
    caused_by: int | None
    notes: Sequence[AnnotationLine]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRowPage:
    """A page of rows with its filter, the choices of the filter, and links to other pages."""

    rows: Sequence[EventRow]
    filter: EventFilter
    total: int
    matching: int
    types: Sequence[str]
    nodes: Sequence[str]
    agents: Sequence[str]
    before: int | None
    after: int | None


def event_page(
    log: DecodedLog, wanted: EventFilter, notes: RunAnnotations, *, is_over: bool
) -> EventRowPage:
    """Return a page of the events that match a filter; for an active run, the last page."""
    matching = [entry for entry in log.entries if wanted.matches(entry)]
    first = 0 if is_over else max(len(matching) - PAGE_ROWS, 0)
    if wanted.start is not None:
        first = sum(1 for entry in matching if entry.sequence < wanted.start)
    shown = matching[first : first + PAGE_ROWS]
    rest = matching[first + PAGE_ROWS :]
    earlier = matching[max(first - PAGE_ROWS, 0) : first]
    return EventRowPage(
        rows=list(rows_of(log, shown, notes)),
        filter=wanted,
        total=len(log.entries),
        matching=len(matching),
        types=sorted({entry.event.type for entry in log.entries}),
        nodes=list(dict.fromkeys(e.node_id for e in log.entries if e.node_id)),
        agents=list(dict.fromkeys(e.agent_id for e in log.entries if e.agent_id)),
        before=earlier[0].sequence if earlier else None,
        after=rest[0].sequence if rest else None,
    )


def no_rows(log: DecodedLog) -> EventRowPage:
    """Return a page without rows, for templates that do not show the list of events."""
    return EventRowPage(
        rows=(),
        filter=EventFilter(),
        total=len(log.entries),
        matching=0,
        types=(),
        nodes=(),
        agents=(),
        before=None,
        after=None,
    )


def rows_of(log: DecodedLog, entries: Sequence[Entry], notes: RunAnnotations) -> Iterator[EventRow]:
    """Return events as rows."""
    began = log.entries[0].at if log.entries else 0
    for entry in entries:
        cause = log.by_id.get(entry.cause)
        yield EventRow(
            entry=entry,
            offset=entry.at - began,
            summary=summary(entry.event.payload),
            tone=_TONES.get(entry.event.type.rpartition(".")[2], ""),
            caused_by=None if cause is None else cause.sequence,
            notes=notes.by_event.get(entry.event.event_id, ()),
        )


def summary(payload: Json) -> str:
    """Return the members of a payload on one line."""
    members = object_of(payload)
    if not members:
        return "" if payload in (None, {}) else compact(payload)
    text = "  ".join(
        f"{name}={compact(value)}"
        for name, value in members.items()
        if name not in _SHOWN and value not in ({}, [], None)
    )
    return text if len(text) <= _SUMMARY else text[: _SUMMARY - 1] + "…"
