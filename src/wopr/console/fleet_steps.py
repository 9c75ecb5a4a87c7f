"""The lines of a KAHN run as people read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from wopr.console.json_values import list_of, object_of
from wopr.console.words import compact, tone
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.times import to_millis

# Where a line of the host's own run comes from; the page of that run tells it better.
_BRIDGED: Final = "openwop_"
_ENVELOPE: Final = frozenset({"ts", "run_id", "event", "agent_id", "node_id", "step"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line: who did what, and what was said of it."""

    line: int
    at: int
    offset: int
    event: str
    actor: str
    step: str
    title: str
    tone: str = ""
    took: float | None = None
    detail: str = ""
    # All that the line has and the row does not show.
    more: JsonObject


@dataclass(frozen=True, slots=True)
class _Said:
    """What a line says, and the fields that were used for it."""

    title: str
    tone: str = ""
    took: Json = None
    detail: str = ""
    used: tuple[str, ...] = ()


_Teller: TypeAlias = Callable[[JsonObject], _Said]


def steps_of(events: Sequence[JsonObject], first_line: int, began: int) -> list[Step]:
    """A row for each line; `began` is when the run did."""
    return [_step(first_line + place, event, began) for place, event in enumerate(events)]


def _step(line: int, event: JsonObject, began: int) -> Step:
    name = str(event["event"])
    said = _TELLERS.get(name, _anything)(event)
    at = to_millis(str(event["ts"]))
    shown = _ENVELOPE.union(said.used)
    return Step(
        line=line,
        at=at,
        offset=at - began,
        event=name,
        actor=actor_of(event),
        step=str(event.get("step", "")),
        title=said.title,
        tone=said.tone,
        took=_millis(said.took),
        detail=said.detail,
        more={f: v for f, v in event.items() if f not in shown and not f.startswith(_BRIDGED)},
    )


def actor_of(event: JsonObject) -> str:
    """Who a line is about: an agent, a node of a graph, or nobody but the run."""
    return str(event.get("agent_id") or event.get("node_id") or "")


def _millis(seconds: Json) -> float | None:
    return None if seconds is None else 1000 * float(seconds)


def _started(event: JsonObject) -> _Said:
    model = event.get("model")
    title = f"started with {model}" if model else "started"
    return _Said(title, detail=str(event["task"]), used=("task", "model"))


def _moved(event: JsonObject) -> _Said:
    to = str(event["to"])
    return _Said(
        f"{event['from']} → {to}",
        tone(to),
        detail=_text(event, "reason"),
        used=("from", "to", "reason"),
    )


def _called(event: JsonObject) -> _Said:
    is_ok = event["ok"] is True
    words = (_text(event, "input_summary"), _text(event, "error"), _text(event, "output_summary"))
    return _Said(
        f"{event['tool_name']} {'returned' if is_ok else 'failed'}",
        "good" if is_ok else "bad",
        event["duration_s"],
        " → ".join(word for word in words if word),
        ("tool_name", "ok", "duration_s", "input_summary", "output_summary", "error"),
    )


def _checked(event: JsonObject) -> _Said:
    result = str(event["result"])
    evidence = event.get("evidence")
    return _Said(
        f"{event['checkpoint_id']} {result}",
        tone(result),
        event["duration_s"],
        "" if evidence is None else compact(evidence),
        ("checkpoint_id", "result", "duration_s"),
    )


def _ended(event: JsonObject) -> _Said:
    outcome = str(event["outcome"])
    score = event.get("convergence_score")
    counts = (
        (event["total_steps"], "steps"),
        (event["total_tool_calls"], "tool calls"),
        (event["audits_passed"], "audits passed"),
        (event["audits_failed"], "failed"),
    )
    told = ", ".join(f"{number} {name}" for number, name in counts)
    scored = "" if score is None else f"score {score:.2f}, "
    used = ("outcome", "total_steps", "total_tool_calls", "audits_passed", "audits_failed")
    return _Said(
        f"ended {outcome}",
        tone(outcome),
        event["total_duration_s"],
        scored + told,
        (*used, "total_audit_checkpoints", "total_duration_s", "convergence_score"),
    )


def _graph_started(event: JsonObject) -> _Said:
    return _Said(f"{event['total_nodes']} nodes to run", used=("total_nodes",))


def _attempted(event: JsonObject) -> _Said:
    converged = event["converged"] is True
    failed = [object_of(each) for each in list_of(event["done_when_results"])]
    tails = [f"{each.get('cmd')}: {each.get('tail', '')}" for each in failed if each.get("rc")]
    return _Said(
        f"attempt {event['attempt']} {'converged' if converged else 'did not converge'}",
        "good" if converged else "bad",
        event["duration_s"],
        " ".join(tails),
        ("attempt", "converged", "duration_s"),
    )


def _graph_ended(event: JsonObject) -> _Said:
    outcome = str(event["outcome"])
    counts = ", ".join(f"{event[name]} {name}" for name in ("done", "failed", "blocked"))
    return _Said(
        f"ended {outcome}",
        tone(outcome),
        event["total_duration_s"],
        counts,
        ("outcome", "done", "failed", "blocked", "total_duration_s"),
    )


def _anything(event: JsonObject) -> _Said:
    return _Said(str(event["event"]))


def _text(event: JsonObject, name: str) -> str:
    return str(event.get(name, ""))


_TELLERS: Final[Mapping[str, _Teller]] = {
    "agent_run_start": _started,
    "agent_transition": _moved,
    "tool_invocation": _called,
    "audit_checkpoint": _checked,
    "agent_run_end": _ended,
    "run_start": _graph_started,
    "node_transition": _moved,
    "node_attempt": _attempted,
    "run_end": _graph_ended,
}
