"""Judge a run, one of its events or one of its nodes."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from wopr.console.form import Form, document
from wopr.console.page import Page
from wopr.console.run_view import look
from wopr.console.visit import Visit
from wopr.http.answers import Answer
from wopr.http.feedback import offered
from wopr.http.runs import run_id
from wopr.protocol.annotations import SIGNAL_KINDS, VALUED, AnnotationCreate
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import Refused
from wopr.runtime.feedback import ANNOTATE, Author

_NAMES: Final = {"rating": "rating", "correction": "text", "label": "text"}


def offers_feedback(visit: Visit) -> bool:
    """Whether this visitor may say what they think of a run."""
    return visit.host.settings.feedback and visit.may("runs:annotate")


async def show_feedback(visit: Visit) -> Answer:
    """Show what people say of a run, with a form to say more of it or of one of its events."""
    view = await look(visit, run_id(visit.exchange))
    event = view.log.by_id.get(visit.query.get("eventId", ""))
    return await visit.page("feedback.html", view=view, run=view.snapshot, event=event)


async def annotate(visit: Visit) -> Answer:
    """Store a judgment, and go back to where it stands."""
    name = run_id(visit.exchange)
    row = await visit.host.readers.row(visit.tenant, name)
    form = await visit.form()
    request = document(_request(form), AnnotationCreate)
    await visit.host.feedback.annotator.annotate(
        visit.tenant, row, Author(actor=visit.caller.key_id), request
    )
    place = form.get("place")
    anchor = f"#{quote(place)}" if place else "#feedback"
    return visit.redirect(f"/runs/{quote(name, safe='')}?done=annotated{anchor}")


def _request(form: Form) -> JsonObject:
    kind = form.choice("kind", tuple(SIGNAL_KINDS), _guess(form))
    signal = signal_of(kind, form, _NAMES.get(kind, ""))
    target = {"eventId": form.get("eventId"), "nodeId": form.get("nodeId")}
    return {
        "signal": signal,
        "target": {name: value for name, value in target.items() if value},
        "note": form.get("note"),
    }


def signal_of(kind: str, form: Form, field: str) -> JsonObject:
    """A signal whose value stands in this field of a form; a flag has none."""
    signal: JsonObject = {"kind": kind}
    if kind in VALUED:
        given = form.get(field)
        if not given:
            raise Refused(f"a {kind} needs its {field}", field=field)
        signal[kind] = _stars(given) if kind == "rating" else given
    return signal


def _guess(form: Form) -> str:
    """A star that was pressed says what is meant."""
    return "rating" if form.get("rating") else ""


def _stars(given: str) -> int:
    if given not in ("1", "2", "3", "4", "5"):
        raise Refused("rating must be 1 to 5", field="rating")
    return int(given)


PAGES: Final = (
    Page(
        name="feedback",
        path="/runs/{run_id}/feedback",
        get=show_feedback,
        post=annotate,
        has_large_form=True,
        scope="runs:annotate",
        action=ANNOTATE,
        offered=offered,
    ),
)
