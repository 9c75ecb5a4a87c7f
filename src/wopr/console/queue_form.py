"""The forms of review queues as the wire's documents: what a queue is over, and one review."""

from __future__ import annotations

from typing import Final

from wopr.console.form import Form
from wopr.console.run_feedback import signal_of
from wopr.console.runs_page import feedback_filter
from wopr.http.exchange import whole_number
from wopr.protocol.annotations import SIGNAL_KINDS
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import Refused
from wopr.protocol.reviews import Queue
from wopr.protocol.runs import RUN_STATUSES, TERMINAL

# The statuses of runs that are over, as forms list them.
ENDED: Final = tuple(status for status in RUN_STATUSES if status in TERMINAL)


def queue_request(form: Form) -> JsonObject:
    """The request for a new queue."""
    chosen = _lines(form.get("runIds"))
    over: JsonObject = {"runIds": chosen} if chosen else {"filter": _filter(form)}
    return {
        "name": form.get("name"),
        "rubric": _rubric(form),
        "reviewers": _lines(form.get("reviewers")),
        "overlap": _number(form, "overlap"),
        "lockMinutes": _number(form, "lockMinutes"),
        "mostItems": _number(form, "mostItems"),
        **over,
    }


def _filter(form: Form) -> JsonObject:
    given = {name: form.get(name) for name in ("workflowId", "tag", "label")}
    status, said = form.get("status"), form.get("feedback")
    chosen: JsonObject = {name: value for name, value in given.items() if value}
    if said:
        chosen |= {name: value == "true" for name, value in feedback_filter(said).items()}
    return chosen | {"status": [status] if status else list(ENDED)}


def _rubric(form: Form) -> list[JsonObject]:
    asked = [kind for kind in SIGNAL_KINDS if form.get(f"ask.{kind}")]
    if not asked:
        raise Refused("rubric: ask for at least one thing", field="rubric")
    return [_rubric_item(kind, form) for kind in asked]


def _rubric_item(kind: str, form: Form) -> JsonObject:
    item: JsonObject = {
        "kind": kind,
        "question": form.get(f"question.{kind}"),
        "required": bool(form.get(f"required.{kind}")),
    }
    labels = _lines(form.get("labels")) if kind == "label" else []
    return item | ({"labels": labels} if labels else {})


def _lines(raw: str) -> list[str]:
    """The entries of a list, one on each line or with commas between."""
    return [entry.strip() for entry in raw.replace(",", "\n").splitlines() if entry.strip()]


def _number(form: Form, name: str) -> int | None:
    raw = form.get(name)
    return whole_number(name, raw, least=1) if raw else None


def review_request(queue: Queue, form: Form) -> list[JsonObject]:
    """The annotations that the filled rubric stands for; the note goes with the first."""
    said = [signal_of(item.kind, form, item.kind) for item in queue.rubric if form.get(item.kind)]
    if not said:
        raise Refused("say at least one of the things that the rubric asks for", field="rubric")
    note = form.get("note")
    annotations: list[JsonObject] = [{"signal": signal} for signal in said]
    if note:
        annotations[0]["note"] = note
    return annotations
