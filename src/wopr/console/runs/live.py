"""Live updates of the page of an active run: a stream of changes.

The timeline, the graph and the steps of the agents consist of items with keys: lanes, boxes, arrows
and steps. A reader gets only the items that have changed since its last update, and only the newest
rows of the log. One rendering serves all readers with the same rights. A worker thread renders, and
the rate is limited to a small share of one core: watching a run must not slow the run down.
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

from wopr.console.page import Fragments, Page, PageRequest
from wopr.console.render import redacted_frame
from wopr.console.runs.agent_steps import AgentStep, AgentTurn
from wopr.console.runs.events import EventFilter, no_rows, rows_of
from wopr.console.runs.log import Entry
from wopr.console.runs.page import opened_children, page_values, shows_only_newest
from wopr.console.runs.timeline import GrowingSpans
from wopr.console.runs.view import RunFacts, RunPageView, load_run_facts, view_of
from wopr.http.request import whole_number
from wopr.http.response import StreamResponse
from wopr.http.routes.runs import run_id_of
from wopr.process.tenant_slots import LARGE_RUN_BYTES
from wopr.protocol.documents import JsonObject
from wopr.security.redact import Redactor

# The parts of the page that are sent as a whole when they change, with their templates.
PARTS: Final = {
    "head": "run_head.html",
    "sections": "run_sections.html",
    "values": "run_values.html",
    "notes": "run_notes.html",
    "legend": "graph_legend.html",
    "lanes": "lanes_shown.html",
}
# Events within this time are sent in one update.
BATCH_SECONDS: Final = 0.15
# A run with more events than this is rendered at most twice a second.
LARGE_EVENTS: Final = 300
LARGE_SECONDS: Final = 0.5
# The largest share of one core that rendering takes. Reading the run takes about as much again.
MAX_SHARE: Final = 0.015
# The largest number of new events that one update sends as rows.
MAX_NEW_ROWS: Final = 100
# How often a run without new events is rendered, so that durations stay current.
IDLE_SECONDS: Final = 5.0
# The largest size of cached renderings, in bytes of logs and markup.
MAX_BYTES: Final = 32 * 1024 * 1024

_Key: TypeAlias = tuple[str, str, tuple[str, ...], bool, frozenset[str]]
# The items of one container by their keys, in order.
Items: TypeAlias = dict[str, str]


@dataclass(slots=True)
class MarkupCache:
    """The spans of the last rendering, and its items: the inputs and the markup of each item.

    Items are stored by container and key.
    """

    previous: dict[tuple[str, str], tuple[object, str]] = field(
        default_factory=dict[tuple[str, str], tuple[object, str]]
    )
    current: dict[tuple[str, str], tuple[object, str]] = field(
        default_factory=dict[tuple[str, str], tuple[object, str]]
    )
    spans: GrowingSpans = field(default_factory=GrowingSpans)

    def item(self, container: str, key: str, inputs: object, render: Callable[[], str]) -> str:
        """Return the markup of an item. It is rendered again only if its inputs have changed."""
        kept = self.previous.get((container, key))
        if kept is None or kept[0] != inputs:
            kept = (inputs, render())
        self.current[container, key] = kept
        return kept[1]

    def drop_unused(self) -> None:
        """Remove the items that the last rendering did not use."""
        self.previous, self.current = self.current, {}


@dataclass(frozen=True, slots=True)
class RunRendering:
    """The rendered parts and items of a run's page.

    `at` is the time at which the rendering began, `min_interval` the seconds from then to the
    earliest next rendering.
    """

    view: RunPageView
    parts: dict[str, str]
    items: dict[str, Items]
    at: float
    min_interval: float

    @property
    def size(self) -> int:
        """The size of the log and the markup in bytes."""
        texts = [self.parts, *self.items.values()]
        return self.view.log.size + sum(len(html) for text in texts for html in text.values())


@dataclass(slots=True)
class WatchedRun:
    """A run with readers: their number, and the last rendering if it is cached."""

    readers: int = 0
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    kept: tuple[RunRendering, MarkupCache] | None = None
    # The size of the last rendering, also if it is no longer cached; None before the first.
    size: int | None = None


class RunRenderings:
    """Caches one rendering of a run for all its readers with the same rights."""

    def __init__(self) -> None:
        # In the order of the last use.
        self._watched: OrderedDict[_Key, WatchedRun] = OrderedDict()

    @property
    def size(self) -> int:
        """The size of the cached renderings in bytes."""
        return sum(each.size or 0 for each in self._watched.values() if each.kept is not None)

    @contextmanager
    def watching(self, request: PageRequest, run_id: str) -> Generator[None, None, None]:
        """Cache renderings of a run during the block."""
        key = _key(request, run_id)
        watched = self._watched.setdefault(key, WatchedRun())
        watched.readers += 1
        try:
            yield
        finally:
            watched.readers -= 1
            if not watched.readers:
                del self._watched[key]

    async def rendering_since(
        self, request: PageRequest, run_id: str, moment: float
    ) -> RunRendering:
        """Return a rendering of the run at that time or later. The caller is in `watching`."""
        key = _key(request, run_id)
        watched = self._watched[key]
        async with watched.lock:
            kept = watched.kept
            if kept is None or kept[0].at < moment:
                cache = MarkupCache() if kept is None else kept[1]
                is_large = watched.size is None or watched.size >= LARGE_RUN_BYTES
                reads = request.host.heavy_reads
                async with (
                    reads.slot(request.tenant, always_waits=True) if is_large else nullcontext()
                ):
                    kept = watched.kept = (await _render(request, run_id, cache), cache)
                watched.size = kept[0].size
            self._watched.move_to_end(key)
            self._make_room()
        return kept[0]

    def _make_room(self) -> None:
        """Drop the oldest renderings beyond the limit. The newest stays, even if it is larger."""
        size = self.size
        for watched in list(self._watched.values())[:-1]:
            if size <= MAX_BYTES:
                break
            if watched.kept is not None:
                watched.kept = None
                size -= watched.size or 0


def _key(request: PageRequest, run_id: str) -> _Key:
    query, scopes = request.query, request.caller.scopes
    return (request.tenant, run_id, opened_children(query), shows_only_newest(query), scopes)


async def _render(request: PageRequest, run_id: str, cache: MarkupCache) -> RunRendering:
    at = anyio.current_time()
    facts = await load_run_facts(request, run_id, opened_children(request.query), may_lag=True)
    return await anyio.to_thread.run_sync(partial(_render_now, request, facts, cache, at))


def _render_now(
    request: PageRequest, facts: RunFacts, cache: MarkupCache, at: float
) -> RunRendering:
    began = thread_time()
    view = view_of(facts, only_newest=shows_only_newest(request.query), spans=cache.spans)
    fragments = request.fragments(**page_values(request, view, no_rows(view.log)))
    parts = {part: fragments.render(file) for part, file in PARTS.items()}
    items = {
        "timeline": _lanes(view, fragments, cache),
        "graph": _graph(view, fragments, cache),
        **_agent_steps(view, fragments, cache),
    }
    cache.drop_unused()
    min_interval = LARGE_SECONDS if len(view.log.entries) > LARGE_EVENTS else 0.0
    min_interval = max(min_interval, (thread_time() - began) / MAX_SHARE)
    return RunRendering(view, parts, items, at, min_interval)


def _lanes(view: RunPageView, fragments: Fragments, cache: MarkupCache) -> Items:
    found: Items = {"axis": fragments.render("lane_axis.html")}
    render_lane = fragments.macro("lane.html", "lane_row")
    for lane in view.lanes:
        notes = len(view.notes.by_node.get(lane.node_id, ()))
        render = partial(render_lane, lane)
        found[lane.key] = cache.item("timeline", lane.key, (lane, notes), render)
    return found


def _graph(view: RunPageView, fragments: Fragments, cache: MarkupCache) -> Items:
    if view.drawing is None:
        return {}
    found: Items = {}
    values = {"drawing": view.drawing, "node_path": view.node_path, "query": "", "is_plain": False}
    for arrow in view.drawing.arrows:
        render = partial(fragments.render, "graph_arrow.html", arrow=arrow, **values)
        found[arrow.key] = cache.item("graph", arrow.key, arrow, render)
    for box in view.drawing.boxes:
        render = partial(fragments.render, "graph_box.html", box=box, **values)
        found[box.key] = cache.item("graph", box.key, box, render)
    return found


def _agent_steps(view: RunPageView, fragments: Fragments, cache: MarkupCache) -> dict[str, Items]:
    """Return the turns without their steps, and the steps of each turn."""
    shown = view.newest_turns
    if not shown:
        return {"agent-steps": {}}
    values = {"run_id": view.run_id, "notes": view.notes, "is_live": True}
    turns: Items = {"head": fragments.render("agent_steps_head.html", turns=shown)}
    found = {"agent-steps": turns}
    for turn in shown:
        name = f"turn-{turn.sequence}"
        empty_turn = replace(turn, steps=[])
        render = partial(fragments.render, "agent_turn.html", turn=empty_turn, **values)
        turns[str(turn.sequence)] = cache.item("agent-steps", name, turn.agent_id, render)
        found[name] = {
            str(step.entry.sequence): cache.item(
                name,
                str(step.entry.sequence),
                _render_inputs(view, turn, step),
                partial(fragments.render, "agent_step.html", step=step, turn=turn, **values),
            )
            for step in turn.steps
        }
    return found


def _render_inputs(view: RunPageView, turn: AgentTurn, step: AgentStep) -> object:
    """Return the inputs of a step's markup that can change."""
    notes = len(view.notes.by_event.get(step.entry.event.event_id, ()))
    shown = (step.kind, step.title, len(step.text), step.status, step.returned_at, step.confidence)
    return (turn.agent_id, *shown, notes)


# The stream of one reader


@dataclass(slots=True)
class LiveReader:
    """The state of one reader: what has been sent to it."""

    wanted: EventFilter
    redactor: Redactor
    # The sequence of the next event to send as a row.
    next_row: int
    parts: dict[str, str] = field(default_factory=dict[str, str])
    items: dict[str, Items] = field(default_factory=dict[str, Items])
    # The number of annotations in the sent row of each event.
    note_counts: dict[str, int] = field(default_factory=dict[str, int])

    def frames(self, rendering: RunRendering, fragments: Fragments) -> list[bytes]:
        """Return the changes of a rendering since the last call."""
        parts = {
            part: html for part, html in rendering.parts.items() if self.parts.get(part) != html
        }
        self.parts = rendering.parts
        found = [redacted_frame("parts", parts, self.redactor)] if parts else []
        items = {
            name: change
            for name, new in rendering.items.items()
            if (change := self._item_changes(name, new))
        }
        self.items = rendering.items
        if items:
            found.append(redacted_frame("items", items, self.redactor))
        return found + self._rows(rendering.view, fragments)

    def _item_changes(self, name: str, new: Items) -> JsonObject:
        """Return the changed items of a container, and the order of the items if it has changed."""
        old = self.items.get(name, {})
        html = {key: markup for key, markup in new.items() if old.get(key) != markup}
        order = {} if list(old) == list(new) else {"order": list(new)}
        return {"html": html, **order} if html or order else {}

    def _rows(self, view: RunPageView, fragments: Fragments) -> list[bytes]:
        """Return the rows of the newest new events, and of events with new annotations."""
        entries = view.log.entries
        new = [entry for entry in entries[self.next_row :] if self.wanted.matches(entry)]
        self.next_row = max(self.next_row, len(entries))
        skipped = len(new) - MAX_NEW_ROWS
        found = [redacted_frame("skipped", {"rows": skipped}, self.redactor)] if skipped > 0 else []
        again = [] if not view.notes.by_event else self._rows_with_new_notes(view)
        shown = [*again, *new[-MAX_NEW_ROWS:]]
        if shown:
            found.append(redacted_frame("rows", _row_items(view, shown, fragments), self.redactor))
        return found

    def _rows_with_new_notes(self, view: RunPageView) -> list[Entry]:
        """Return the events whose annotations have changed."""
        counts = {name: len(notes) for name, notes in view.notes.by_event.items()}
        changed = [name for name, count in counts.items() if self.note_counts.get(name) != count]
        self.note_counts = counts
        known = [entry for name in changed if (entry := view.log.by_id.get(name)) is not None]
        return [entry for entry in known if self.wanted.matches(entry)]


def _row_items(view: RunPageView, entries: Sequence[Entry], fragments: Fragments) -> dict[str, str]:
    """Return rows by the id of their element."""
    render = fragments.macro("run_row.html", "event_row")
    return {
        f"e{row.entry.sequence}": render(row, view.run_id)
        for row in rows_of(view.log, entries, view.notes)
    }


async def follow_run(request: PageRequest, renderings: RunRenderings) -> StreamResponse:
    """Stream the changes of a run's page until the run, the session or the connection ends."""
    run_id = run_id_of(request.http)
    await request.host.run_reader.row(request.tenant, run_id)
    after = request.query.get("after")
    start = 0 if after is None else whole_number("after", after) + 1
    request.host.bus.admit(run_id)
    redactor = request.http.redactor
    reader = LiveReader(EventFilter.of(request.query), redactor, start)
    last_chunk = redacted_frame("ended", {}, redactor)
    return StreamResponse(_frames(request, run_id, reader, renderings), last_chunk=last_chunk)


async def _frames(
    request: PageRequest, run_id: str, reader: LiveReader, renderings: RunRenderings
) -> AsyncIterator[bytes]:
    fragments = request.fragments()
    with request.host.bus.subscribe(run_id) as topic, renderings.watching(request, run_id):
        while True:
            changed, moment = topic.changed, anyio.current_time()
            await request.http.catch_up(run_id)
            rendering = await renderings.rendering_since(request, run_id, moment)
            frames, cost = await anyio.to_thread.run_sync(
                _timed_frames, reader, rendering, fragments
            )
            is_over = rendering.view.is_complete
            rendered_at, min_interval = rendering.at, rendering.min_interval
            # A waiting reader must not keep a rendering in memory.
            del rendering
            for frame in frames:
                yield frame
            if is_over:
                yield redacted_frame("over", {}, reader.redactor)
                return
            with anyio.move_on_after(IDLE_SECONDS):
                await changed.wait()
            # More events may follow soon, and the share of time for rendering is limited.
            due = rendered_at + min(min_interval + cost / MAX_SHARE, IDLE_SECONDS)
            await anyio.sleep(max(BATCH_SECONDS, due - anyio.current_time()))


def _timed_frames(
    reader: LiveReader, rendering: RunRendering, fragments: Fragments
) -> tuple[list[bytes], float]:
    """Return the changes for a reader, and the CPU seconds of rendering them."""
    began = thread_time()
    return reader.frames(rendering, fragments), thread_time() - began


def live_page() -> Page:
    """Return the page that streams changes, with its own cache of renderings."""
    get = partial(follow_run, renderings=RunRenderings())
    return Page(name="live", path="/runs/{run_id}/live", get=get, scope="runs:read")
