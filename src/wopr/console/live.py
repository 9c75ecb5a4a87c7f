"""A run's page while the run goes on: the server renders what has changed, a script puts it in place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import anyio

from wopr.console.event_rows import EventFilter, event_page, rows_of
from wopr.console.page import Page
from wopr.console.run_log import Entry
from wopr.console.run_page import opened, page_values
from wopr.console.run_view import RunView, look
from wopr.console.visit import Visit
from wopr.http.answers import Stream
from wopr.http.exchange import whole_number
from wopr.http.runs import run_id
from wopr.protocol.documents import encode
from wopr.protocol.errors import Unauthenticated
from wopr.runtime.bus import Notice
from wopr.store.port import StoredEvent

# The parts of the page that follow the run, and the template of each.
PARTS: Final = {
    "head": "run_head.html",
    "sections": "run_sections.html",
    "timeline": "run_timeline.html",
    "graph": "run_graph.html",
    "story": "run_story.html",
    "values": "run_values.html",
    "notes": "run_notes.html",
}
# Events that come in quick succession are shown together.
PATIENCE_SECONDS: Final = 0.15
# How often the page of a run is drawn anew in which nothing happens but the passing of time.
QUIET_SECONDS: Final = 5.0
ROWS_AT_ONCE: Final = 500
_KEPT: Final = 64

_Key: TypeAlias = tuple[str, str, tuple[str, ...], frozenset[str]]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A run's page in parts, and when it began to be drawn."""

    view: RunView
    parts: dict[str, str]
    at: float


class LiveParts:
    """Draws a run once for all who look at it with the same rights."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, Rendered] = OrderedDict()
        self._drawing = anyio.Lock()

    async def since(self, visit: Visit, name: str, moment: float) -> Rendered:
        """The run as it stood at that moment or later."""
        key = (visit.tenant, name, opened(visit.query), visit.caller.scopes)
        async with self._drawing:
            kept = self._kept.get(key)
            if kept is None or kept.at < moment:
                kept = self._kept[key] = await _draw(visit, name)
            self._kept.move_to_end(key)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return kept


async def _draw(visit: Visit, name: str) -> Rendered:
    at = anyio.current_time()
    view = await look(visit, name, opened(visit.query))
    events = event_page(view.log, EventFilter(), view.notes, is_over=view.is_over)
    values = page_values(visit, view, events)
    drawn = {part: visit.fragment(file, **values) for part, file in PARTS.items()}
    return Rendered(view, drawn, at)


async def follow_run(visit: Visit) -> Stream:
    """Stream what changes on the page of a run until it ends, the reader leaves or signs out."""
    name = run_id(visit.exchange)
    await visit.host.readers.row(visit.tenant, name)
    after = visit.query.get("after")
    start = 0 if after is None else whole_number("after", after) + 1
    visit.host.bus.admit(name)
    return Stream(_frames(visit, name, start))


async def _frames(visit: Visit, name: str, start: int) -> AsyncIterator[bytes]:
    wanted, shown = EventFilter.of(visit.query), dict[str, str]()
    pieces = visit.host.readers.follow(visit.tenant, name, start, QUIET_SECONDS)
    async for piece in pieces:
        moment = anyio.current_time()
        await anyio.sleep(PATIENCE_SECONDS)
        if not await _is_signed_in(visit):
            yield _frame("ended", {})
            return
        drawn = await visit.desk.parts.since(visit, name, moment)
        changed = {part: html for part, html in drawn.parts.items() if shown.get(part) != html}
        shown |= changed
        yield _frame("parts", changed)
        rows = _news(drawn.view, piece, wanted)
        for first in range(0, len(rows), ROWS_AT_ONCE):
            yield _frame("rows", _rows(visit, drawn.view, rows[first : first + ROWS_AT_ONCE]))
    yield _frame("over", {})


async def _is_signed_in(visit: Visit) -> bool:
    try:
        await visit.desk.sessions(visit.host).principal(visit.session)
    except Unauthenticated:
        return False
    return True


def _news(view: RunView, piece: list[StoredEvent] | Notice, wanted: EventFilter) -> list[Entry]:
    """The events to show anew: those that came, or those that somebody has said something of."""
    entries = view.log.entries
    if isinstance(piece, Notice):
        about = [entry for entry in entries if entry.event.event_id in view.notes.by_event]
        return [entry for entry in about if wanted.takes(entry)]
    known = [event.sequence for event in piece if event.sequence < len(entries)]
    return [entries[sequence] for sequence in known if wanted.takes(entries[sequence])]


def _rows(visit: Visit, view: RunView, entries: Sequence[Entry]) -> dict[str, str]:
    """Lines by the id of their element."""
    rows = rows_of(view.log, entries, view.notes)
    return {
        f"e{row.entry.sequence}": visit.fragment("run_row.html", row=row, run_id=view.run_id)
        for row in rows
    }


def _frame(event: str, document: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.encode(), encode(document))


PAGES: Final = (Page(name="live", path="/runs/{run_id}/live", get=follow_run, scope="runs:read"),)
