"""Annotations of a run as audits (14.6): the judgment crosses, its words do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from wopr.fleet.bridge_agent import Page
from wopr.fleet.bridge_facts import number, object_of, some, text
from wopr.fleet.events import AuditResult
from wopr.fleet.instants import write_ts
from wopr.protocol.documents import JsonObject


def annotation_lines(
    run_id: str,
    annotations: Iterable[JsonObject],
    agent_behind: Callable[[str | None, str | None], str | None],
) -> list[bytes]:
    """Write annotations in the order of their making; one of an unknown kind is left out.

    `agent_behind` finds the agent of a target, given its event and its node.
    """
    lines: list[bytes] = []
    for annotation in sorted(annotations, key=_order):
        verdict = _verdict(object_of(annotation.get("signal")))
        if verdict is not None:
            target = object_of(annotation.get("target"))
            agent_id = agent_behind(text(target, "eventId"), text(target, "nodeId"))
            page = Page(write_ts(_made(annotation)), run_id)
            page.audit(agent_id, *verdict, _evidence(annotation))
            lines += page.lines
    return lines


def _order(annotation: JsonObject) -> tuple[datetime, str]:
    return _made(annotation), text(annotation, "annotationId") or ""


def _made(annotation: JsonObject) -> datetime:
    made = datetime.fromisoformat(annotation["createdAt"])
    return made.replace(tzinfo=UTC) if made.tzinfo is None else made


def _verdict(signal: JsonObject) -> tuple[str, AuditResult] | None:
    match signal.get("kind"):
        case "rating":
            rating = number(signal, "rating") or 0
            return "feedback:rating", "pass" if rating >= 4 else "warn" if rating >= 3 else "fail"
        case "flag":
            return "feedback:flag", "fail"
        case "correction":
            return "feedback:correction", "fail"
        case "label":
            return f"feedback:label:{text(signal, 'label') or ''}", "warn"
        case _:
            return None


def _evidence(annotation: JsonObject) -> JsonObject:
    signal = object_of(annotation.get("signal"))
    shown = {"rating": "rating", "label": "label"}.get(str(signal.get("kind")), "")
    return {
        "annotation_id": text(annotation, "annotationId") or "",
        "actor": text(object_of(annotation.get("actor")), "principalRef") or "",
        **some(signal, shown),
    }
