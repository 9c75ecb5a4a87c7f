"""The page of one run, of one of its events and of one of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final
from urllib.parse import quote

from wopr.console.event_rows import EventFilter, EventPage, event_page, rows_of
from wopr.console.page import Page
from wopr.console.run_feedback import offers_feedback
from wopr.console.run_log import Entry
from wopr.console.run_view import RunView, look
from wopr.console.visit import Visit
from wopr.console.wait_page import wait_values
from wopr.console.wait_view import Wait, find_wait, look_at
from wopr.http.answers import Answer
from wopr.http.exchange import whole_number
from wopr.http.runs import run_id
from wopr.protocol.documents import Unset
from wopr.protocol.errors import NotFound
from wopr.protocol.runs import NodeView
from wopr.store.port import RunRow

# Rows of a node's own events that its page shows.
_NODE_ROWS: Final = 200


def only_newest(query: Mapping[str, str]) -> bool:
    """Whether the timeline of a run that goes on may leave lanes out."""
    return query.get("lanes") != "all"


def opened(query: Mapping[str, str]) -> tuple[str, ...]:
    """The child runs that the query asks to open."""
    return tuple(filter(None, query.get("open", "").split(",")))


async def show_run(visit: Visit) -> Answer:
    """Show a run, whole."""
    async with visit.heavy():
        return await _run(visit)


async def _run(visit: Visit) -> Answer:
    name, query = run_id(visit.exchange), visit.query
    view = await look(visit, name, opened(query), only_newest=only_newest(query))
    wanted = EventFilter.of(visit.query)
    events = event_page(view.log, wanted, view.notes, is_over=view.is_over)
    answers = [await look_at(visit, wait) for wait in await _open_waits(visit, view)]
    values = wait_values(visit, f"/runs/{quote(view.run_id, safe='')}")
    return await visit.large_page(
        "run.html", answers=answers, **values, **page_values(visit, view, events)
    )


async def _open_waits(visit: Visit, view: RunView) -> list[Wait]:
    """What the run waits for, with all that a form needs."""
    found = [await find_wait(visit, wait.run_id, wait.node_id) for wait in view.waits]
    return [wait for wait in found if wait is not None]


def page_values(visit: Visit, view: RunView, events: EventPage) -> dict[str, object]:
    """What the templates of the run's page need."""
    return {
        "view": view,
        "run": view.snapshot,
        "events": events,
        "toggle": partial(_toggle, view),
        "lanes": visit.query.get("lanes", ""),
        "offers_feedback": offers_feedback(visit),
    }


def _toggle(view: RunView, child: str) -> str:
    """The query that opens a child run, or closes it again."""
    now = [each for each in view.opened if each != child]
    return ",".join(now if child in view.opened else [*now, child])


async def show_event(visit: Visit) -> Answer:
    """Show one event: what it says, what caused it, what it caused, and what people say of it."""
    async with visit.heavy():
        return await _event(visit)


async def _event(visit: Visit) -> Answer:
    view = await look(visit, run_id(visit.exchange))
    sequence = whole_number("sequence", visit.exchange.path["sequence"])
    if sequence >= len(view.log.entries):
        raise NotFound("there is no such event")
    entry = view.log.entries[sequence]
    [row] = rows_of(view.log, [entry], view.notes)
    return await visit.large_page(
        "event.html",
        **page_values(visit, view, _page_of(view)),
        row=row,
        entry=entry,
        effects=[e for e in view.log.entries if e.cause == entry.event.event_id],
    )


async def show_node(visit: Visit) -> Answer:
    """Show one node of a run: what it is, what became of it, its events, what people say of it."""
    async with visit.heavy():
        return await _node(visit)


async def _node(visit: Visit) -> Answer:
    view = await look(visit, run_id(visit.exchange))
    node_id = visit.exchange.path["node_id"]
    node = view.compiled.graph.nodes.get(node_id)
    if node is None:
        raise NotFound("there is no such node")
    own = [entry for entry in view.log.entries if entry.node_id == node_id]
    return await visit.large_page(
        "node.html",
        **page_values(visit, view, _page_of(view)),
        node=node,
        state=_state(view, node_id),
        spans=view.nodes.get(node_id),
        rows=list(rows_of(view.log, own[:_NODE_ROWS], view.notes)),
        children=await _children(visit, view, own),
    )


def _page_of(view: RunView) -> EventPage:
    return event_page(view.log, EventFilter(), view.notes, is_over=True)


def _state(view: RunView, node_id: str) -> NodeView:
    states = view.snapshot.node_states
    found = None if isinstance(states, Unset) else states.get(node_id)
    return found or NodeView(status="pending")


async def _children(visit: Visit, view: RunView, own: list[Entry]) -> list[RunRow]:
    named = [str(e.payload.get("childRunId")) for e in own if e.event.type == "node.dispatched"]
    rows = [await visit.host.store.run(visit.tenant, name) for name in named]
    return [row for row in rows if row is not None]


PAGES: Final = (
    Page(name="run", path="/runs/{run_id}", get=show_run, scope="runs:read"),
    Page(
        name="event",
        path="/runs/{run_id}/events/{sequence}",
        get=show_event,
        scope="runs:read",
    ),
    Page(name="node", path="/runs/{run_id}/nodes/{node_id}", get=show_node, scope="runs:read"),
)
