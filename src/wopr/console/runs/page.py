"""The page of one run, of one of its events and of one of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final
from urllib.parse import quote

from wopr.console.inbox.interrupt import (
    InboxLine,
    find_inbox_line,
    interrupt_values,
    load_interrupt_view,
)
from wopr.console.page import Page, PageRequest
from wopr.console.runs.events import EventFilter, EventRowPage, event_page, no_rows, rows_of
from wopr.console.runs.feedback import offers_feedback
from wopr.console.runs.log import Entry
from wopr.console.runs.view import RunPageView, load_run_view
from wopr.http.request import whole_number
from wopr.http.response import Response
from wopr.http.routes.runs import run_id_of
from wopr.protocol.documents import Unset
from wopr.protocol.errors import NotFound
from wopr.protocol.runs import NodeView
from wopr.store.port import RunRow

# The largest number of events on the page of a node.
_NODE_ROWS: Final = 200


def shows_only_newest(query: Mapping[str, str]) -> bool:
    """Return whether the timeline of an active run may omit lanes."""
    return query.get("lanes") != "all"


def opened_children(query: Mapping[str, str]) -> tuple[str, ...]:
    """Return the child runs that the query opens."""
    return tuple(filter(None, query.get("open", "").split(",")))


async def show_run(request: PageRequest) -> Response:
    """Show a run."""
    async with request.heavy_read_slot():
        run_id, query = run_id_of(request.http), request.query
        view = await load_run_view(
            request, run_id, opened_children(query), only_newest=shows_only_newest(query)
        )
        wanted = EventFilter.of(request.query)
        events = event_page(view.log, wanted, view.notes, is_over=view.is_over)
        answers = [
            await load_interrupt_view(request, line) for line in await _inbox_lines(request, view)
        ]
        values = interrupt_values(request, f"/runs/{quote(view.run_id, safe='')}")
        return await request.large_page(
            "run.html", answers=answers, **values, **page_values(request, view, events)
        )


async def _inbox_lines(request: PageRequest, view: RunPageView) -> list[InboxLine]:
    """Return the open interrupts of the run, with the data for their forms."""
    found = [await find_inbox_line(request, each.run_id, each.node_id) for each in view.interrupts]
    return [line for line in found if line is not None]


def page_values(request: PageRequest, view: RunPageView, events: EventRowPage) -> dict[str, object]:
    """Return the values for the templates of the run's page."""
    return {
        "view": view,
        "run": view.snapshot,
        "events": events,
        "toggle": partial(_toggle, view),
        "lanes": request.query.get("lanes", ""),
        "offers_feedback": offers_feedback(request),
    }


def _toggle(view: RunPageView, child: str) -> str:
    """Return the value of the query's `open` that opens a child run or closes it."""
    now = [each for each in view.opened if each != child]
    return ",".join(now if child in view.opened else [*now, child])


async def show_event(request: PageRequest) -> Response:
    """Show one event: payload, cause, effects and feedback."""
    async with request.heavy_read_slot():
        view = await load_run_view(request, run_id_of(request.http))
        sequence = whole_number("sequence", request.http.path["sequence"])
        if sequence >= len(view.log.entries):
            raise NotFound("This event does not exist.")
        entry = view.log.entries[sequence]
        [row] = rows_of(view.log, [entry], view.notes)
        return await request.large_page(
            "event.html",
            **page_values(request, view, no_rows(view.log)),
            row=row,
            entry=entry,
            effects=[e for e in view.log.entries if e.cause == entry.event.event_id],
        )


async def show_node(request: PageRequest) -> Response:
    """Show one node of a run: definition, state, events and feedback."""
    async with request.heavy_read_slot():
        view = await load_run_view(request, run_id_of(request.http))
        node_id = request.http.path["node_id"]
        node = view.compiled.graph.nodes.get(node_id)
        if node is None:
            raise NotFound("This node does not exist.")
        own = [entry for entry in view.log.entries if entry.node_id == node_id]
        return await request.large_page(
            "node.html",
            **page_values(request, view, no_rows(view.log)),
            node=node,
            state=_state(view, node_id),
            rows=list(rows_of(view.log, own[:_NODE_ROWS], view.notes)),
            children=await _children(request, view, own),
        )


def _state(view: RunPageView, node_id: str) -> NodeView:
    states = view.snapshot.node_states
    found = None if isinstance(states, Unset) else states.get(node_id)
    return found or NodeView(status="pending")


async def _children(request: PageRequest, view: RunPageView, own: list[Entry]) -> list[RunRow]:
    named = [str(e.payload.get("childRunId")) for e in own if e.event.type == "node.dispatched"]
    rows = [await request.host.store.run(request.tenant, name) for name in named]
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
