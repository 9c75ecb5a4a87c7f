"""What all pages of the fleet have: the window, and whether the demo is among what is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from wopr.console.visit import Visit
from wopr.http.answers import Answer
from wopr.protocol.fleet import Window
from wopr.runtime.advertise_fleet import DEFAULT_WINDOW, WINDOWS, read_window
from wopr.runtime.fleet_demo import DEMO_AGENTS

# Each window in words, and its key.
SPANS: Final[dict[Window, tuple[str, str]]] = {
    "24h": ("the last 24 hours", "d"),
    "7d": ("the last 7 days", "w"),
    "all": ("all time", "a"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of a few ways to look at a page, as a link."""

    name: str
    title: str
    key: str
    href: str
    is_current: bool


def window_of(visit: Visit) -> Window:
    """The window that the query asks for. Raises `Refused` that names those there are."""
    return read_window(visit.query.get("window", DEFAULT_WINDOW))


def windows(visit: Visit) -> list[Choice]:
    """The same page in every window."""
    current = window_of(visit)
    return [
        Choice(
            name=name,
            title=SPANS[name][0],
            key=SPANS[name][1],
            href=with_query(visit, window=name),
            is_current=name == current,
        )
        for name in WINDOWS
    ]


def with_query(visit: Visit, **changes: str) -> str:
    """This page from its beginning, with something else asked of it."""
    kept = {
        name: value
        for name, value in visit.query.items()
        if name not in ("cursor", "done", "start")
    }
    return "?" + urlencode(kept | changes)


async def fleet_page(visit: Visit, template: str, **values: object) -> Answer:
    """A page of the fleet."""
    has_demo = await visit.host.fleet.demo.is_loaded(visit.tenant)
    agents = DEMO_AGENTS if has_demo else ()
    return await visit.page(template, demo_agents=agents, **values)
