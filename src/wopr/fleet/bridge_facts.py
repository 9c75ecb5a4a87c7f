"""What the payloads of a run's log say, in both dialects: the schemas' and the RFC's prose.

Nothing here trusts a payload: what is not of the expected type is not there.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, cast

from wopr.fleet.events import SUMMARY_LENGTH
from wopr.fleet.lines import compact
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.events import RunEvent
from wopr.protocol.interrupts import INTERRUPT_KIND

Answer: TypeAlias = Literal["ratified", "rejected", "overridden", "answered"]

SYSTEM: Final = "core.system"
DEFAULT_THRESHOLD: Final = 0.7
DEFAULT_FLOOR: Final = 0.5
# Where this host writes the vendor kind of a wait whose kind is `custom`.
_VENDOR_KIND: Final = "x-host-wopr-interrupt-kind"
# Beyond it lie infinities, and integers that no float can hold.
_MOST: Final = 1e18
_PAUSES: Final = frozenset({"low-confidence", "clarification", "approval"})
_PAUSE_FAMILIES: Final = ("conversation.", "x-host-")


def object_of(value: Json) -> JsonObject:
    """The value if it is an object, else an empty one."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def text(payload: JsonObject, *names: str) -> str | None:
    """The first of these members that is a string with something in it."""
    found = (payload.get(name) for name in names)
    return next((value for value in found if isinstance(value, str) and value), None)


def number(payload: JsonObject, name: str) -> float | None:
    """A member that is a number one can reckon with; `true` is none."""
    value: Json = payload.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -_MOST <= value <= _MOST else None


def ratio(payload: JsonObject, name: str) -> float | None:
    """A member that is a number from 0 to 1."""
    value = number(payload, name)
    return value if value is not None and 0 <= value <= 1 else None


def some(payload: JsonObject, *names: str) -> JsonObject:
    """Those of the named members that are there and not null."""
    return {name: payload[name] for name in names if payload.get(name) is not None}


def threshold_of(started: RunEvent) -> float | None:
    """The confidence that the run itself asks of its decisions, from its `run.started`."""
    configurable = object_of(object_of(started.payload).get("configurable"))
    return ratio(configurable, "escalationThreshold")


def node_of(event: RunEvent) -> str | None:
    """The node that an event is about."""
    if isinstance(event.node_id, str):
        return event.node_id
    return text(object_of(event.payload), "nodeId")


def agent_named(payload: JsonObject) -> str | None:
    """The agent that a payload names as its own."""
    nested = (object_of(payload.get(name)) for name in ("agent", "data"))
    return text(payload, "agentId") or next(
        filter(None, (text(n, "agentId") for n in nested)), None
    )


def giver(payload: JsonObject) -> str | None:
    """Who hands over."""
    return text(payload, "fromAgentId", "from") or text(object_of(payload.get("from")), "agentId")


def receiver(payload: JsonObject) -> str | None:
    """To whom is handed over."""
    return text(payload, "toAgentId", "to") or text(object_of(payload.get("to")), "agentId")


def tool_of(payload: JsonObject) -> str | None:
    """The tool that is called, or that answered."""
    return text(payload, "toolName", "toolId")


def input_summary(payload: JsonObject) -> str | None:
    """What a tool was given; where that is not told, its hash."""
    given = _summary_of(payload, "inputs", "arguments")
    digest = text(payload, "argsHash")
    return given if given is not None or digest is None else f"sha256:{digest}"


def output_summary(payload: JsonObject) -> str | None:
    """What a tool answered."""
    return _summary_of(payload, "outcome", "result")


def _summary_of(payload: JsonObject, *names: str) -> str | None:
    return next((summary(payload[name]) for name in names if name in payload), None)


def summary(value: Json) -> str:
    """A text as it is, anything else as JSON with sorted keys; cut to what a line may hold."""
    return cut(value if isinstance(value, str) else compact(value, is_sorted=True))


def cut(full: str) -> str:
    """Cut a text to what a line may hold, with an ellipsis where something is missing."""
    return full if len(full) <= SUMMARY_LENGTH else full[: SUMMARY_LENGTH - 1] + "…"


def duration_of(payload: JsonObject) -> float | None:
    """How many seconds a tool took, where the log says so."""
    places = (payload, object_of(payload.get("outcome")), object_of(payload.get("result")))
    told = (number(place, "durationMs") for place in places)
    millis = next((value for value in told if value is not None), None)
    return None if millis is None or millis < 0 else round(millis / 1000, 3)


def tool_error(payload: JsonObject) -> str | None:
    """Why a tool did not answer as asked; `None` when it did."""
    status = text(payload, "status")
    error: Json = payload.get("error")
    if error is None:
        return None if status in (None, "ok") else status
    parts = object_of(error)
    named = [part for part in (text(parts, "code", "error"), text(parts, "message")) if part]
    return cut(": ".join(named)) if named else summary(error)


def pause_kind(event: RunEvent) -> str | None:
    """The kind of question that an event asks a person; `None` when it asks none."""
    payload = object_of(event.payload)
    is_clarification = event.type == "clarification.requested"
    kind = text(payload, INTERRUPT_KIND, "kind") or (
        "clarification" if is_clarification else text(payload, "reason")
    )
    if kind == "custom":
        # A custom wait asks for an agent's decision only where its vendor kind says so.
        kind = text(object_of(payload.get("data")), "customKind") or text(payload, _VENDOR_KIND)
    is_pause = kind is not None and (kind in _PAUSES or kind.startswith(_PAUSE_FAMILIES))
    return kind if is_pause else None


def answer_of(payload: JsonObject) -> Answer:
    """How a person answered."""
    said: Json = payload.get("resumeValue")
    # A clarification of the confidence floor asks one question, which is called `decision`.
    answers = object_of(object_of(said).get("answers"))
    said = answers.get("decision", said)
    value = object_of(said)
    action = said if isinstance(said, str) else text(value, "action") or text(payload, "action")
    if value.get("ratified") is True or action in ("accept", "approve"):
        return "ratified"
    if value.get("rejected") is True or action == "reject":
        return "rejected"
    is_other = "decision" in value or "editedArtifactData" in value
    return "overridden" if is_other or ("decision" in answers and value) else "answered"
