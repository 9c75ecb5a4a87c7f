"""Load the demo into the visitor's own fleet, or take it out again."""

from __future__ import annotations

from typing import Final

from wopr.console.page import Page
from wopr.console.visit import Visit
from wopr.http.answers import Answer
from wopr.runtime.fleet_demo import DEMO_AGENTS, DEMO_DAYS

_LOAD, _REMOVE = "load", "remove"


async def ask_demo(visit: Visit) -> Answer:
    """Say what the demo is, and offer what can be done with it."""
    return await visit.page(
        "fleet_demo.html",
        is_loaded=await visit.host.fleet.demo.is_loaded(visit.tenant),
        agents=DEMO_AGENTS,
        days=DEMO_DAYS,
        kept_days=visit.host.settings.fleet_keep_days,
    )


async def change_demo(visit: Visit) -> Answer:
    """Load it, or remove it; what is so already stays so."""
    what = (await visit.form()).choice("do", (_LOAD, _REMOVE))
    is_loaded = await visit.host.fleet.demo.is_loaded(visit.tenant)
    if what == _LOAD and not is_loaded:
        await _load(visit)
    if what == _REMOVE:
        await _remove(visit)
    return visit.redirect(f"/fleet?done=demo-{what}{'ed' if what == _LOAD else 'd'}")


async def _load(visit: Visit) -> None:
    fleet = visit.host.fleet
    fleet.pushes.spend(visit.tenant)
    count = await fleet.demo.load(visit.tenant)
    await _record(visit, "fleet.demo.load", count)


async def _remove(visit: Visit) -> None:
    removed = await visit.host.fleet.demo.remove(visit.tenant)
    await _record(visit, "fleet.demo.remove", removed)


async def _record(visit: Visit, action: str, count: int) -> None:
    by = visit.caller.key_id
    await visit.host.audit.record(visit.tenant, by, action, "fleet runs", count=count)


PAGES: Final = (
    Page(
        name="fleet-demo",
        path="/fleet/demo",
        get=ask_demo,
        post=change_demo,
        scope="fleet:ingest",
        action="fleet.demo",
    ),
)
