"""Compare two runs: which ones, and how they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode

import anyio.to_thread

from wopr.console.compare_view import compared
from wopr.console.page import Page
from wopr.console.run_view import look
from wopr.console.visit import Visit
from wopr.http.answers import Answer
from wopr.http.runs import LONGEST_ID
from wopr.protocol.errors import NotFound, Refused
from wopr.store.port import RunFilter, RunRow

# Runs of the same workflow that are offered.
_NEAR: Final = 6
_FORKS: Final = 20


@dataclass(frozen=True, slots=True)
class Candidates:
    """Runs that it makes sense to compare one with, and what they are to it."""

    title: str
    rows: Sequence[RunRow]


async def compare(visit: Visit) -> Answer:
    """Show how two runs differ; as long as one is missing, ask for it."""
    _take_chosen(visit)
    a, b = visit.query.get("a"), visit.query.get("b")
    if a is None or b is None:
        return await _pick(visit, a or b)
    if a == b:
        raise Refused("choose two runs: a run does not differ from itself", field="b")
    if max(len(a), len(b)) > LONGEST_ID:
        raise NotFound("there is no such run")
    async with visit.heavy():
        views = await look(visit, a), await look(visit, b)
        found = await anyio.to_thread.run_sync(compared, *views)
        swapped = urlencode({"a": b, "b": a})
        return await visit.large_page("compare.html", pair=found, swapped=swapped)


def _take_chosen(visit: Visit) -> None:
    """Two lines of the list of runs come as two fields of the same name; the older is first."""
    raw = bytes(visit.exchange.scope["query_string"]).decode("latin-1")
    chosen = [value for name, value in parse_qsl(raw) if name == "run"]
    if not chosen:
        return
    if len(chosen) != 2:
        raise Refused(f"choose two runs to compare, not {len(chosen)}", field="run")
    visit.query.pop("run", None)
    visit.query.update(a=chosen[1], b=chosen[0])


async def _pick(visit: Visit, name: str | None) -> Answer:
    """Ask with which run to compare one, and offer those that are close to it."""
    if name is None:
        return await visit.page("compare_pick.html", run=None, groups=())
    row = await visit.host.readers.row(visit.tenant, name[:LONGEST_ID])
    return await visit.page("compare_pick.html", run=row, groups=await _near(visit, row))


async def _near(visit: Visit, row: RunRow) -> list[Candidates]:
    store, tenant = visit.host.store, visit.tenant
    source = None if row.source_run_id is None else await store.run(tenant, row.source_run_id)
    forks = await store.runs(tenant, RunFilter(source_run_id=row.run_id), None, _FORKS)
    where = RunFilter(workflow_id=row.workflow_id)
    earlier = await store.runs(tenant, where, (row.created_at, row.run_id), _NEAR)
    newest = await store.runs(tenant, where, None, _NEAR)
    groups = (
        Candidates("The run that it was forked from", () if source is None else (source,)),
        Candidates("Its forks", forks.runs),
        Candidates("Earlier runs of the workflow", earlier.runs),
        Candidates("Later runs of the workflow", [r for r in newest.runs if _is_later(r, row)]),
    )
    return [group for group in groups if group.rows]


def _is_later(other: RunRow, row: RunRow) -> bool:
    return (other.created_at, other.run_id) > (row.created_at, row.run_id)


PAGES: Final = (Page(name="compare", path="/compare", get=compare, scope="runs:read"),)
