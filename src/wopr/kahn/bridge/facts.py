"""Facts in the payloads of a run's log, and the ids of the lines (section 14.2).

No payload is trusted: a value of the wrong type counts as missing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from typing import Final, Literal, TypeAlias

from wopr.kahn.events import SUMMARY_LENGTH
from wopr.kahn.lines import compact
from wopr.protocol.documents import Json, JsonObject, object_of
from wopr.protocol.events import RunEvent
from wopr.protocol.interrupts import INTERRUPT_KIND
from wopr.protocol.payload_members import number_member, ratio_member, text_member

_RUN_ID: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}")
_AGENT_ID: Final = re.compile(r"[a-z0-9][a-z0-9:-]{0,63}")
_DOTTED: Final = re.compile(r"[a-z0-9.-]+")
_CHECKPOINT_LENGTH: Final = 128
# The length of a name before its hash: with a dash and eight digits it has 64 characters.
_HASHED_NAME_LENGTH: Final = 55
_CACHED_NAMES: Final = 1024


@lru_cache(maxsize=_CACHED_NAMES)
def to_run_id(run_id: str) -> str:
    """Return the KAHN id of a run. An id that is not valid in KAHN is replaced by one with its hash."""
    if _RUN_ID.fullmatch(run_id):
        return run_id
    return _append_hash(re.sub(r"[^a-zA-Z0-9_-]+", "-", run_id).lstrip("-_") or "run", run_id)


@lru_cache(maxsize=_CACHED_NAMES)
def to_agent_id(agent_id: str) -> str:
    """Return the KAHN id of an agent. Two agents never get the same id.

    Colons replace the dots of a reverse domain name. So an id that contains colons is unchanged
    only if it begins with `host:`, because no id with dots is converted to such an id.
    """
    may_stay = ":" not in agent_id or agent_id.startswith("host:")
    if may_stay and _AGENT_ID.fullmatch(agent_id):
        return agent_id
    with_colons = agent_id.replace(".", ":")
    is_dotted = _DOTTED.fullmatch(agent_id) and not agent_id.startswith("host.")
    if is_dotted and _AGENT_ID.fullmatch(with_colons):
        return with_colons
    cleaned = re.sub(r"[^a-z0-9:-]", "-", agent_id.lower()).lstrip(":-")
    return _append_hash(cleaned or "agent", agent_id)


def to_checkpoint_id(checkpoint: str) -> str:
    """Return a valid checkpoint id for a name that begins with a letter or a digit."""
    return re.sub(r"[^a-z0-9:.-]+", "-", checkpoint.lower())[:_CHECKPOINT_LENGTH]


def _append_hash(name: str, original: str) -> str:
    digest = sha256(original.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[:_HASHED_NAME_LENGTH]}-{digest[:8]}"


OperatorAnswer: TypeAlias = Literal["ratified", "rejected", "overridden", "answered"]

DEFAULT_FLOOR: Final = 0.5
# The member in which this host writes the vendor kind of a wait of kind `custom`.
_VENDOR_KIND: Final = "x-host-wopr-interrupt-kind"
_PAUSES: Final = frozenset({"low-confidence", "clarification", "approval"})
_PAUSE_FAMILIES: Final = ("conversation.", "x-host-")


def threshold_of(started: RunEvent) -> float | None:
    """Return the confidence threshold in the options of a run, from its event `run.started`."""
    configurable = object_of(object_of(started.payload).get("configurable"))
    return ratio_member(configurable, "escalationThreshold")


def input_summary(payload: JsonObject) -> str | None:
    """Return the arguments of a tool call, or their hash if they are not logged."""
    given = _summary_of(payload, "inputs", "arguments")
    digest = text_member(payload, "argsHash")
    return given if given is not None or digest is None else f"sha256:{digest}"


def output_summary(payload: JsonObject) -> str | None:
    """Return a summary of the result of a tool."""
    return _summary_of(payload, "outcome", "result")


def _summary_of(payload: JsonObject, *names: str) -> str | None:
    return next((summary(payload[name]) for name in names if name in payload), None)


def summary(value: Json) -> str:
    """Return a text unchanged and other values as JSON with sorted keys, cut to the allowed length."""
    return cut(value if isinstance(value, str) else compact(value, is_sorted=True))


def cut(full: str) -> str:
    """Cut a text to the allowed length, with an ellipsis at its end."""
    return full if len(full) <= SUMMARY_LENGTH else full[: SUMMARY_LENGTH - 1] + "…"


def duration_of(payload: JsonObject) -> float | None:
    """Return the duration of a tool call in seconds, or None if the log does not contain it."""
    places = (payload, object_of(payload.get("outcome")), object_of(payload.get("result")))
    reported = (number_member(place, "durationMs") for place in places)
    millis = next((value for value in reported if value is not None), None)
    return None if millis is None or millis < 0 else round(millis / 1000, 3)


def tool_error(payload: JsonObject) -> str | None:
    """Return the error of a tool call, or None if it succeeded."""
    status = text_member(payload, "status")
    error: Json = payload.get("error")
    if error is None:
        return None if status in (None, "ok") else status
    parts = object_of(error)
    named = [
        part
        for part in (text_member(parts, "code", "error"), text_member(parts, "message"))
        if part
    ]
    return cut(": ".join(named)) if named else summary(error)


def pause_kind(event: RunEvent) -> str | None:
    """Return the kind of question that an event asks a person, or None if it asks no question."""
    payload = object_of(event.payload)
    is_clarification = event.type == "clarification.requested"
    kind = text_member(payload, INTERRUPT_KIND, "kind") or (
        "clarification" if is_clarification else text_member(payload, "reason")
    )
    if kind == "custom":
        # The vendor kind of a custom wait decides whether it is a question about an agent's work.
        kind = text_member(object_of(payload.get("data")), "customKind") or text_member(
            payload, _VENDOR_KIND
        )
    is_pause = kind is not None and (kind in _PAUSES or kind.startswith(_PAUSE_FAMILIES))
    return kind if is_pause else None


def answer_of(payload: JsonObject) -> OperatorAnswer:
    """Classify a person's answer."""
    answer: Json = payload.get("resumeValue")
    # A clarification for low confidence has one question with the name `decision`.
    answers = object_of(object_of(answer).get("answers"))
    answer = answers.get("decision", answer)
    value = object_of(answer)
    action = (
        answer
        if isinstance(answer, str)
        else text_member(value, "action") or text_member(payload, "action")
    )
    if value.get("ratified") is True or action in ("accept", "approve"):
        return "ratified"
    if value.get("rejected") is True or action == "reject":
        return "rejected"
    is_other = "decision" in value or "editedArtifactData" in value
    return "overridden" if is_other or ("decision" in answers and value) else "answered"
