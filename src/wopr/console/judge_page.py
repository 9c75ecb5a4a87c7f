"""One judge: what it said of each run, and why it said nothing of others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from wopr.console.notes import Note, notes_of
from wopr.console.page import Page
from wopr.console.visit import Visit
from wopr.http.answers import Answer
from wopr.http.exchange import whole_number
from wopr.http.feedback import offered
from wopr.protocol.documents import Unset
from wopr.protocol.errors import Refused
from wopr.protocol.reviews import Judge, JudgedRun

PAGE_JUDGED: Final = 50


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one run, with the judge's own words."""

    judged: JudgedRun
    note: Note | None


async def show_judge(visit: Visit) -> Answer:
    """Show how far a judge is and its verdicts, in the order of its runs."""
    cursor = visit.query.get("cursor")
    after = -1 if cursor is None else whole_number("cursor", cursor)
    judge = await visit.host.feedback.judges.read(
        visit.tenant, visit.exchange.path["judge_id"], after=after, limit=PAGE_JUDGED
    )
    items = [] if isinstance(judge.items, Unset) else judge.items
    return await visit.page(
        "judge.html",
        judge=judge,
        verdicts=[Verdict(item, await _note(visit, judge, item)) for item in items],
    )


async def _note(visit: Visit, judge: Judge, item: JudgedRun) -> Note | None:
    """The annotation of a verdict, unless the run has so many that it is not among the first."""
    if isinstance(item.annotation_id, Unset):
        return None
    notes = await notes_of(visit.host.store, visit.tenant, item.run_id)
    return next((n for n in notes.all if n.annotation_id == item.annotation_id), None)


async def find_judge(visit: Visit) -> Answer:
    """Go to the judge that a form names."""
    name = visit.query.get("id", "").strip()
    if not name:
        raise Refused("say which judge, by its id", field="id")
    found = await visit.host.feedback.judges.read(visit.tenant, name, after=-1, limit=0)
    return visit.redirect(f"/reviews/judges/{quote(found.judge_id, safe='')}")


PAGES: Final = (
    Page(
        name="find-judge",
        path="/reviews/judges",
        get=find_judge,
        scope="runs:read",
        offered=offered,
    ),
    Page(
        name="judge",
        path="/reviews/judges/{judge_id}",
        get=show_judge,
        scope="runs:read",
        offered=offered,
    ),
)
