"""The page to annotate a run, an event or a node."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from wopr.console.forms import Form, document
from wopr.console.page import Page, PageRequest
from wopr.console.runs.view import load_run_view
from wopr.feedback.annotations import ANNOTATE_ACTION, Author
from wopr.http.response import Response
from wopr.http.routes.feedback import check_feedback_enabled
from wopr.http.routes.runs import run_id_of
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import Refused
from wopr.protocol.resources.annotations import KINDS_WITH_VALUE, SIGNAL_KINDS, AnnotationCreate

_NAMES: Final = {"rating": "rating", "correction": "text", "label": "text"}


def offers_feedback(request: PageRequest) -> bool:
    """Return whether the signed-in key may annotate runs."""
    return request.host.settings.feedback and request.may("runs:annotate")


async def show_feedback(request: PageRequest) -> Response:
    """Show the feedback on a run, with a form to annotate the run or one of its events."""
    view = await load_run_view(request, run_id_of(request.http))
    event = view.log.by_id.get(request.query.get("eventId", ""))
    return await request.page("feedback.html", view=view, run=view.snapshot, event=event)


async def annotate(request: PageRequest) -> Response:
    """Store an annotation and redirect to its place on the page."""
    run_id = run_id_of(request.http)
    row = await request.host.run_reader.row(request.tenant, run_id)
    form = await request.form()
    body = document(_request(form), AnnotationCreate)
    await request.host.feedback.annotator.annotate(
        request.tenant, row, Author(actor=request.caller.key_id), body
    )
    place = form.get("place")
    anchor = f"#{quote(place)}" if place else "#feedback"
    return request.redirect(f"/runs/{quote(run_id, safe='')}?done=annotated{anchor}")


def _request(form: Form) -> JsonObject:
    kind = form.choice("kind", tuple(SIGNAL_KINDS), _default_kind(form))
    signal = signal_of(kind, form, _NAMES.get(kind, ""))
    target = {"eventId": form.get("eventId"), "nodeId": form.get("nodeId")}
    return {
        "signal": signal,
        "target": {name: value for name, value in target.items() if value},
        "note": form.get("note"),
    }


def signal_of(kind: str, form: Form, field: str) -> JsonObject:
    """Return a signal with its value from this field of a form. A flag has no value."""
    signal: JsonObject = {"kind": kind}
    if kind in KINDS_WITH_VALUE:
        given = form.get(field)
        if not given:
            raise Refused(f"A {kind} requires the field {field}.", field=field)
        signal[kind] = _stars(given) if kind == "rating" else given
    return signal


def _default_kind(form: Form) -> str:
    """Return the kind of a form without a kind: a rating if a star was pressed."""
    return "rating" if form.get("rating") else ""


def _stars(given: str) -> int:
    if given not in ("1", "2", "3", "4", "5"):
        raise Refused("rating must be a whole number from 1 to 5", field="rating")
    return int(given)


PAGES: Final = (
    Page(
        name="feedback",
        path="/runs/{run_id}/feedback",
        get=show_feedback,
        post=annotate,
        has_large_form=True,
        scope="runs:annotate",
        action=ANNOTATE_ACTION,
        check_enabled=check_feedback_enabled,
    ),
)
