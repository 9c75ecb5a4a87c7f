"""The page of a run while the run goes on: a stream of what has changed on it.

The timeline, the graph and the story of the agents consist of items with keys: a lane, a box, an
arrow, a step. A reader gets only the items that differ from what it was sent before, and only the
newest rows of the log. A drawing is made once for all readers with the same rights, in a worker
thread, and at most so often that it takes a small share of one core: watching a run must not slow
it down.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from time import thread_time
from typing import Final, TypeAlias

import anyio
import anyio.to_thread

from wopr.console.event_rows import EventFilter, no_rows, rows_of
from wopr.console.page import Page
from wopr.console.render import redacted_frame
from wopr.console.run_log import Entry
from wopr.console.run_page import only_newest, opened, page_values
from wopr.console.run_view import RunFacts, RunView, gather, view_of
from wopr.console.spans import GrowingSpans
from wopr.console.story import Beat, Turn
from wopr.console.visit import Fragments, Visit
from wopr.http.answers import Stream
from wopr.http.exchange import whole_number
from wopr.http.runs import run_id
from wopr.protocol.documents import JsonObject
from wopr.runtime.heavy_reads import LARGE_BYTES
from wopr.security.redact import Redactor

# The parts of the page that are sent as a whole when they change, and the template of each.
PARTS: Final = {
    "head": "run_head.html",
    "sections": "run_sections.html",
    "values": "run_values.html",
    "notes": "run_notes.html",
    "legend": "graph_legend.html",
    "lanes": "lanes_shown.html",
}
# Events that come in quick succession are shown together.
PATIENCE_SECONDS: Final = 0.15
# A run with more events than this is large: it is drawn at most twice a second.
LARGE_EVENTS: Final = 300
LARGE_SECONDS: Final = 0.5
# Drawing takes at most this share of the time, however large the run is. Reading what is drawn
# takes about as much again.
MOST_SHARE: Final = 0.015
# The largest number of new events that one update sends as rows.
MOST_NEW_ROWS: Final = 100
# How often the page of a quiet run is drawn: durations move on.
QUIET_SECONDS: Final = 5.0
# Bytes of logs and markup that are kept of the drawings that are being watched.
MOST_BYTES: Final = 32 * 1024 * 1024

_Key: TypeAlias = tuple[str, str, tuple[str, ...], bool, frozenset[str]]
# The items of one container by their keys, in order.
Items: TypeAlias = dict[str, str]


@dataclass(slots=True)
class Memo:
    """What is kept for the next drawing: spans, and the markup of items with what they are made of.

    Items are found by their container and key.
    """

    known: dict[tuple[str, str], tuple[object, str]] = field(
        default_factory=dict[tuple[str, str], tuple[object, str]]
    )
    fresh: dict[tuple[str, str], tuple[object, str]] = field(
        default_factory=dict[tuple[str, str], tuple[object, str]]
    )

    spans: GrowingSpans = field(default_factory=GrowingSpans)

    def item(self, container: str, key: str, made_of: object, draw: Callable[[], str]) -> str:
        """The markup of an item, rendered again only when its data has changed."""
        kept = self.known.get((container, key))
        if kept is None or kept[0] != made_of:
            kept = (made_of, draw())
        self.fresh[container, key] = kept
        return kept[1]

    def turn_over(self) -> None:
        """Forget the items that the last drawing did not have."""
        self.known, self.fresh = self.fresh, {}


@dataclass(frozen=True, slots=True)
class Rendered:
    """A drawing of a run, when it was begun, and how long to wait before the next one."""

    view: RunView
    parts: dict[str, str]
    items: dict[str, Items]
    at: float
    pace: float

    @property
    def size(self) -> int:
        """The bytes of the log and of the markup."""
        texts = [self.parts, *self.items.values()]
        return self.view.log.size + sum(len(html) for text in texts for html in text.values())


@dataclass(slots=True)
class Watched:
    """A run that is watched: how many readers watch it, and the last drawing if it is kept."""

    readers: int = 0
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    kept: tuple[Rendered, Memo] | None = None
    # The bytes of the last drawing, also of one that is not kept; None before the first.
    size: int | None = None


class LiveParts:
    """Draws a run once for all who look at it with the same rights, for as long as they do."""

    def __init__(self) -> None:
        # The run that was drawn last is at the end.
        self._watched: OrderedDict[_Key, Watched] = OrderedDict()

    @property
    def size(self) -> int:
        """The bytes of the drawings that are kept."""
        return sum(each.size or 0 for each in self._watched.values() if each.kept is not None)

    @contextmanager
    def watching(self, visit: Visit, name: str) -> Generator[None, None, None]:
        """Keep drawings of a run during the block."""
        key = _key(visit, name)
        watched = self._watched.setdefault(key, Watched())
        watched.readers += 1
        try:
            yield
        finally:
            watched.readers -= 1
            if not watched.readers:
                del self._watched[key]

    async def since(self, visit: Visit, name: str, moment: float) -> Rendered:
        """The run as it stood at that moment or later. The caller watches it."""
        key = _key(visit, name)
        watched = self._watched[key]
        async with watched.lock:
            kept = watched.kept
            if kept is None or kept[0].at < moment:
                memo = Memo() if kept is None else kept[1]
                is_large = watched.size is None or watched.size >= LARGE_BYTES
                turns = visit.host.heavy_reads
                async with turns.turn(visit.tenant, must=True) if is_large else nullcontext():
                    kept = watched.kept = (await _draw(visit, name, memo), memo)
                watched.size = kept[0].size
            self._watched.move_to_end(key)
            self._make_room()
        return kept[0]

    def _make_room(self) -> None:
        """Give up the oldest drawings beyond the limit. The newest is kept, however large it is."""
        size = self.size
        for watched in list(self._watched.values())[:-1]:
            if size <= MOST_BYTES:
                break
            if watched.kept is not None:
                watched.kept = None
                size -= watched.size or 0


def _key(visit: Visit, name: str) -> _Key:
    query, scopes = visit.query, visit.caller.scopes
    return (visit.tenant, name, opened(query), only_newest(query), scopes)


async def _draw(visit: Visit, name: str, memo: Memo) -> Rendered:
    at = anyio.current_time()
    facts = await gather(visit, name, opened(visit.query), may_lag=True)
    return await anyio.to_thread.run_sync(partial(_drawn, visit, facts, memo, at))


def _drawn(visit: Visit, facts: RunFacts, memo: Memo, at: float) -> Rendered:
    began = thread_time()
    view = view_of(facts, only_newest=only_newest(visit.query), spans=memo.spans)
    fragments = visit.fragments(**page_values(visit, view, no_rows(view.log)))
    parts = {part: fragments.render(file) for part, file in PARTS.items()}
    items = {
        "timeline": _lanes(view, fragments, memo),
        "graph": _graph(view, fragments, memo),
        **_story(view, fragments, memo),
    }
    memo.turn_over()
    pace = LARGE_SECONDS if len(view.log.entries) > LARGE_EVENTS else 0.0
    pace = max(pace, (thread_time() - began) / MOST_SHARE)
    return Rendered(view, parts, items, at, pace)


def _lanes(view: RunView, fragments: Fragments, memo: Memo) -> Items:
    found: Items = {"axis": fragments.render("lane_axis.html")}
    draw_lane = fragments.macro("lane.html", "lane_row")
    for lane in view.lanes:
        notes = len(view.notes.by_node.get(lane.node_id, ()))
        draw = partial(draw_lane, lane)
        found[lane.key] = memo.item("timeline", lane.key, (lane, notes), draw)
    return found


def _graph(view: RunView, fragments: Fragments, memo: Memo) -> Items:
    if view.drawing is None:
        return {}
    found: Items = {}
    values = {"drawing": view.drawing, "node_path": view.node_path, "query": "", "is_plain": False}
    for arrow in view.drawing.arrows:
        draw = partial(fragments.render, "graph_arrow.html", arrow=arrow, **values)
        found[arrow.key] = memo.item("graph", arrow.key, arrow, draw)
    for box in view.drawing.boxes:
        draw = partial(fragments.render, "graph_box.html", box=box, **values)
        found[box.key] = memo.item("graph", box.key, box, draw)
    return found


def _story(view: RunView, fragments: Fragments, memo: Memo) -> dict[str, Items]:
    """The turns without their steps, and the steps of each turn."""
    told = view.newest_turns
    if not told:
        return {"story": {}}
    values = {"run_id": view.run_id, "notes": view.notes, "is_live": True}
    turns: Items = {"head": fragments.render("story_head.html", turns=told)}
    found = {"story": turns}
    for turn in told:
        name = f"turn-{turn.sequence}"
        shell = replace(turn, beats=[])
        draw = partial(fragments.render, "turn.html", turn=shell, **values)
        turns[str(turn.sequence)] = memo.item("story", name, turn.agent_id, draw)
        found[name] = {
            str(beat.entry.sequence): memo.item(
                name,
                str(beat.entry.sequence),
                _made_of(view, turn, beat),
                partial(fragments.render, "beat.html", beat=beat, turn=turn, **values),
            )
            for beat in turn.beats
        }
    return found


def _made_of(view: RunView, turn: Turn, beat: Beat) -> object:
    """What can change about a step of a turn."""
    notes = len(view.notes.by_event.get(beat.entry.event.event_id, ()))
    told = (beat.kind, beat.title, len(beat.text), beat.status, beat.returned_at, beat.sureness)
    return (turn.agent_id, *told, notes)


# The stream of one reader


@dataclass(slots=True)
class Reader:
    """What one reader of the page has been sent."""

    wanted: EventFilter
    redactor: Redactor
    # The sequence of the next row to send.
    next_row: int
    parts: dict[str, str] = field(default_factory=dict[str, str])
    items: dict[str, Items] = field(default_factory=dict[str, Items])
    # Numbers of notes that the rows were sent with, by event.
    noted: dict[str, int] = field(default_factory=dict[str, int])

    def frames(self, drawn: Rendered, fragments: Fragments) -> list[bytes]:
        """What the reader lacks of a drawing."""
        parts = {part: html for part, html in drawn.parts.items() if self.parts.get(part) != html}
        self.parts = drawn.parts
        found = [redacted_frame("parts", parts, self.redactor)] if parts else []
        items = {
            name: change for name, new in drawn.items.items() if (change := self._news(name, new))
        }
        self.items = drawn.items
        if items:
            found.append(redacted_frame("items", items, self.redactor))
        return found + self._rows(drawn.view, fragments)

    def _news(self, name: str, new: Items) -> JsonObject:
        """The items of a container that differ, and their order when it does."""
        old = self.items.get(name, {})
        html = {key: markup for key, markup in new.items() if old.get(key) != markup}
        order = {} if list(old) == list(new) else {"order": list(new)}
        return {"html": html, **order} if html or order else {}

    def _rows(self, view: RunView, fragments: Fragments) -> list[bytes]:
        """The rows of new events, the newest of many, and of those with new notes."""
        entries = view.log.entries
        new = [entry for entry in entries[self.next_row :] if self.wanted.takes(entry)]
        self.next_row = max(self.next_row, len(entries))
        skipped = len(new) - MOST_NEW_ROWS
        found = [redacted_frame("skipped", {"rows": skipped}, self.redactor)] if skipped > 0 else []
        again = [] if not view.notes.by_event else self._noted_anew(view)
        shown = [*again, *new[-MOST_NEW_ROWS:]]
        if shown:
            found.append(redacted_frame("rows", _row_items(view, shown, fragments), self.redactor))
        return found

    def _noted_anew(self, view: RunView) -> list[Entry]:
        """Events of rows that the reader has, with other notes than before."""
        counts = {name: len(notes) for name, notes in view.notes.by_event.items()}
        changed = [name for name, count in counts.items() if self.noted.get(name) != count]
        self.noted = counts
        known = [entry for name in changed if (entry := view.log.by_id.get(name)) is not None]
        return [entry for entry in known if self.wanted.takes(entry)]


def _row_items(view: RunView, entries: Sequence[Entry], fragments: Fragments) -> dict[str, str]:
    """Rows by the id of their element."""
    draw = fragments.macro("run_row.html", "event_row")
    return {
        f"e{row.entry.sequence}": draw(row, view.run_id)
        for row in rows_of(view.log, entries, view.notes)
    }


async def follow_run(visit: Visit) -> Stream:
    """Stream what changes on the page of a run until it ends, the reader leaves or signs out."""
    name = run_id(visit.exchange)
    await visit.host.readers.row(visit.tenant, name)
    after = visit.query.get("after")
    start = 0 if after is None else whole_number("after", after) + 1
    visit.host.bus.admit(name)
    redactor = visit.exchange.redactor
    reader = Reader(EventFilter.of(visit.query), redactor, start)
    farewell = redacted_frame("ended", {}, redactor)
    return Stream(_frames(visit, name, reader), farewell=farewell)


async def _frames(visit: Visit, name: str, reader: Reader) -> AsyncIterator[bytes]:
    fragments = visit.fragments()
    parts = visit.desk.parts
    with visit.host.bus.subscribe(name) as topic, parts.watching(visit, name):
        while True:
            news, moment = topic.news, anyio.current_time()
            await visit.exchange.catch_up(name)
            drawn = await parts.since(visit, name, moment)
            frames, cost = await anyio.to_thread.run_sync(_timed, reader, drawn, fragments)
            is_over = drawn.view.is_told_to_the_end
            drawn_at, pace = drawn.at, drawn.pace
            # A reader that waits holds no drawing.
            del drawn
            for frame in frames:
                yield frame
            if is_over:
                yield redacted_frame("over", {}, reader.redactor)
                return
            with anyio.move_on_after(QUIET_SECONDS):
                await news.wait()
            # More events may come at once, and drawing may take only so much of the time.
            due = drawn_at + min(pace + cost / MOST_SHARE, QUIET_SECONDS)
            await anyio.sleep(max(PATIENCE_SECONDS, due - anyio.current_time()))


def _timed(reader: Reader, drawn: Rendered, fragments: Fragments) -> tuple[list[bytes], float]:
    """What a reader lacks of a drawing, and the seconds of CPU that it took to render."""
    began = thread_time()
    return reader.frames(drawn, fragments), thread_time() - began


PAGES: Final = (Page(name="live", path="/runs/{run_id}/live", get=follow_run, scope="runs:read"),)
