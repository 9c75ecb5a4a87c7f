"""Read what a judging run says, and write what it is given to judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

import msgspec

from wopr.protocol.annotations import SIGNAL_KINDS, VALUED, AnnotationCreate
from wopr.protocol.documents import Json, JsonObject
from wopr.store.port import StoredEvent

# What one judging run is given at most: its inputs are the first event of its own log.
MOST_EVENTS: Final = 500
MOST_EVENT_BYTES: Final = 512 * 1024
MOST_SNAPSHOT_BYTES: Final = 512 * 1024
# All of it was written by whoever the judged run listened to, and must never be obeyed.
UNTRUSTED: Final = {"contentTrust": "untrusted"}

_MISSING: Final = object()


class NoVerdict(Exception):
    """The judge has nothing to say of this run; the message is the reason."""


class BadVerdict(Exception):
    """What the judge says is no signal; the message is the reason."""


def capped(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """The first events of a log that a judge is given."""
    kept: list[StoredEvent] = []
    size = 0
    for event in events[:MOST_EVENTS]:
        size += len(event.body)
        if size > MOST_EVENT_BYTES:
            break
        kept.append(event)
    return kept


def judge_inputs(
    snapshot: bytes, events: Sequence[StoredEvent], length: int, mapping: Mapping[str, str]
) -> JsonObject:
    """The inputs of a judging run: the run and its log, or what the mapping takes from them.

    A path that leads nowhere gives no input, so that the workflow's own default holds.
    """
    given: JsonObject = {
        "run": msgspec.json.decode(snapshot),
        "events": [msgspec.json.decode(event.body) for event in events],
        "eventsLeftOut": length - len(events),
    }
    if mapping:
        found = {name: _at(given, path) for name, path in mapping.items()}
        given = {name: value for name, value in found.items() if value is not _MISSING}
    return {**given, **UNTRUSTED}


def _at(value: Json, path: str) -> Json:
    for step in path.split("."):
        if isinstance(value, dict):
            value = cast("JsonObject", value).get(step, _MISSING)
        elif isinstance(value, list):
            value = _item(cast("list[object]", value), step)
        else:
            return _MISSING
    return value


def _item(items: list[object], step: str) -> object:
    is_place = step.isascii() and step.isdecimal() and len(step) < 10
    return items[int(step)] if is_place and int(step) < len(items) else _MISSING


def verdict(outputs: Json) -> AnnotationCreate:
    """The annotation that a judging run's outputs stand for.

    They name one signal: `rating`, `correction`, `label`, or `flag` as true or false, and perhaps
    a `note`. Outputs of a single last node are taken from under its name.
    """
    said = _said(outputs)
    kinds = [kind for kind in SIGNAL_KINDS if said.get(kind) not in (None, False)]
    if not kinds and said.get("flag") is False:
        raise NoVerdict("the judge sees nothing to flag")
    if len(kinds) != 1:
        raise BadVerdict(
            f"the judge's outputs must name one of {', '.join(SIGNAL_KINDS)}, "
            f"not {', '.join(kinds) or 'none'}"
        )
    kind = kinds[0]
    if kind == "flag" and said["flag"] is not True:
        raise BadVerdict("the judge's flag must be true or false")
    signal: JsonObject = {"kind": kind}
    if kind in VALUED:
        signal[kind] = said[kind]
    document = {"signal": signal}
    if said.get("note") is not None:
        document["note"] = said["note"]
    try:
        return msgspec.convert(document, AnnotationCreate)
    except msgspec.ValidationError as fault:
        raise BadVerdict(f"the judge's outputs are no signal: {fault}") from fault


def _said(outputs: Json) -> JsonObject:
    members = cast("JsonObject", outputs) if isinstance(outputs, dict) else {}
    nested = list(members.values())
    if len(nested) == 1 and isinstance(nested[0], dict):
        return cast("JsonObject", nested[0])
    return members
