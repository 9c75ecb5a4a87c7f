"""The page of one KAHN run: agents, timeline and lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from msgspec.structs import replace

from wopr.console.fleet.shared import fleet_page, waits_of_runs
from wopr.console.formatting import compact, duration, tone
from wopr.console.page import Page, PageRequest, list_etag, not_modified_response, with_etag
from wopr.console.runs.timeline import Axis, Bar, Tick
from wopr.http.response import Response
from wopr.kahn.demo.generator import is_demo
from wopr.protocol.documents import Json, JsonObject, list_of, object_of, to_millis
from wopr.protocol.resources.fleet import RunSteps

# Prefix of the fields that name the event behind a line of this host. The page of the run shows it.
_BRIDGED: Final = "openwop_"
_ENVELOPE: Final = frozenset({"ts", "run_id", "event", "agent_id", "node_id", "step"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRow:
    """One line with its agent, its text and its feedback."""

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
    # The fields that the row does not show.
    more: JsonObject


@dataclass(frozen=True, slots=True)
class _LineText:
    """The text of a line, and the fields that it contains."""

    title: str
    tone: str = ""
    took: Json = None
    detail: str = ""
    used: tuple[str, ...] = ()


_TextOf: TypeAlias = Callable[[JsonObject], _LineText]


def rows_of_lines(events: Sequence[JsonObject], first_line: int, began: int) -> list[LineRow]:
    """Return a row for each line. `began` is the start of the run."""
    return [_line_row(first_line + place, event, began) for place, event in enumerate(events)]


def _line_row(line: int, event: JsonObject, began: int) -> LineRow:
    name = str(event["event"])
    text = _TEXTS.get(name, _other_text)(event)
    at = to_millis(str(event["ts"]))
    shown = _ENVELOPE.union(text.used)
    return LineRow(
        line=line,
        at=at,
        offset=at - began,
        event=name,
        actor=actor_of(event),
        step=str(event.get("step", "")),
        title=text.title,
        tone=text.tone,
        took=_millis(text.took),
        detail=text.detail,
        more={f: v for f, v in event.items() if f not in shown and not f.startswith(_BRIDGED)},
    )


def actor_of(event: JsonObject) -> str:
    """Return the agent or node of a line; empty if it is about the run."""
    return str(event.get("agent_id") or event.get("node_id") or "")


def _millis(seconds: Json) -> float | None:
    return None if seconds is None else 1000 * float(seconds)


def _agent_start_text(event: JsonObject) -> _LineText:
    model = event.get("model")
    title = f"started with {model}" if model else "started"
    return _LineText(title, detail=str(event["task"]), used=("task", "model"))


def _transition_text(event: JsonObject) -> _LineText:
    to = str(event["to"])
    return _LineText(
        f"{event['from']} → {to}",
        tone(to),
        detail=_optional_text(event, "reason"),
        used=("from", "to", "reason"),
    )


def _tool_call_text(event: JsonObject) -> _LineText:
    is_ok = event["ok"] is True
    words = (
        _optional_text(event, "input_summary"),
        _optional_text(event, "error"),
        _optional_text(event, "output_summary"),
    )
    return _LineText(
        f"{event['tool_name']} {'returned' if is_ok else 'failed'}",
        "good" if is_ok else "bad",
        event["duration_s"],
        " → ".join(word for word in words if word),
        ("tool_name", "ok", "duration_s", "input_summary", "output_summary", "error"),
    )


def _audit_text(event: JsonObject) -> _LineText:
    result = str(event["result"])
    evidence = event.get("evidence")
    return _LineText(
        f"{event['checkpoint_id']} {result}",
        tone(result),
        event["duration_s"],
        "" if evidence is None else compact(evidence),
        ("checkpoint_id", "result", "duration_s"),
    )


def _agent_end_text(event: JsonObject) -> _LineText:
    outcome = str(event["outcome"])
    score = event.get("convergence_score")
    counts = (
        (event["total_steps"], "steps"),
        (event["total_tool_calls"], "tool calls"),
        (event["audits_passed"], "audits passed"),
        (event["audits_failed"], "failed"),
    )
    summary = ", ".join(f"{number} {name}" for number, name in counts)
    scored = "" if score is None else f"score {score:.2f}, "
    used = ("outcome", "total_steps", "total_tool_calls", "audits_passed", "audits_failed")
    return _LineText(
        f"ended {outcome}",
        tone(outcome),
        event["total_duration_s"],
        scored + summary,
        (*used, "total_audit_checkpoints", "total_duration_s", "convergence_score"),
    )


def _graph_start_text(event: JsonObject) -> _LineText:
    return _LineText(f"{event['total_nodes']} nodes to run", used=("total_nodes",))


def _attempt_text(event: JsonObject) -> _LineText:
    converged = event["converged"] is True
    failed = [object_of(each) for each in list_of(event["done_when_results"])]
    tails = [f"{each.get('cmd')}: {each.get('tail', '')}" for each in failed if each.get("rc")]
    return _LineText(
        f"attempt {event['attempt']} {'converged' if converged else 'did not converge'}",
        "good" if converged else "bad",
        event["duration_s"],
        " ".join(tails),
        ("attempt", "converged", "duration_s"),
    )


def _graph_end_text(event: JsonObject) -> _LineText:
    outcome = str(event["outcome"])
    counts = ", ".join(f"{event[name]} {name}" for name in ("done", "failed", "blocked"))
    return _LineText(
        f"ended {outcome}",
        tone(outcome),
        event["total_duration_s"],
        counts,
        ("outcome", "done", "failed", "blocked", "total_duration_s"),
    )


def _other_text(event: JsonObject) -> _LineText:
    return _LineText(str(event["event"]))


def _optional_text(event: JsonObject, name: str) -> str:
    return str(event.get(name, ""))


_TEXTS: Final[Mapping[str, _TextOf]] = {
    "agent_run_start": _agent_start_text,
    "agent_transition": _transition_text,
    "tool_invocation": _tool_call_text,
    "audit_checkpoint": _audit_text,
    "agent_run_end": _agent_end_text,
    "run_start": _graph_start_text,
    "node_transition": _transition_text,
    "node_attempt": _attempt_text,
    "run_end": _graph_end_text,
}


_NARROWEST: Final = 0.35
_MOVES: Final = frozenset({"agent_transition", "node_transition"})
_ENDS: Final = frozenset({"agent_run_end"})
_TERMINAL: Final = frozenset({"converged", "failed", "done"})
# The status of an agent before its first transition.
_FIRST: Final = "thinking"


@dataclass(frozen=True, slots=True)
class AuditMark:
    """A dot in a lane for an audit checkpoint."""

    x: float
    tone: str
    title: str


@dataclass(slots=True)
class _Actor:
    """An agent or node, with the periods and audits of its lane so far."""

    name: str
    began: int
    status: str
    since: int
    is_over: bool = False
    periods: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    checks: list[LineRow] = field(default_factory=list[LineRow])

    def move(self, status: str, at: int) -> None:
        """Change the status. A line may be older than the line before it."""
        at = max(at, self.since)
        self.periods.append((self.status, self.since, at))
        self.status, self.since = status, at
        self.is_over = status in _TERMINAL

    def end(self, at: int) -> None:
        """End the last period."""
        if not self.is_over:
            self.periods.append((self.status, self.since, max(at, self.since)))
        self.is_over = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusLane:
    """The timeline of one agent or node."""

    name: str
    status: str
    bars: Sequence[Bar]
    audits: Sequence[AuditMark]
    took: int
    label: str


@dataclass(frozen=True, slots=True)
class StatusLanes:
    """All lanes of a run on one axis."""

    lanes: Sequence[StatusLane]
    ticks: Sequence[Tick]


def status_lanes(events: Sequence[JsonObject], rows: Sequence[LineRow], until: int) -> StatusLanes:
    """Draw a whole run. `until` is the time of its last line."""
    actors: dict[str, _Actor] = {}
    for event, row in zip(events, rows, strict=True):
        _add_line(actors, event, row)
    for actor in actors.values():
        actor.end(until)
    axis = Axis(min((a.began for a in actors.values()), default=until), until)
    return StatusLanes([_lane(actor, axis) for actor in actors.values()], axis.ticks())


def _add_line(actors: dict[str, _Actor], event: JsonObject, row: LineRow) -> None:
    name = actor_of(event)
    if not name:
        return
    is_move = row.event in _MOVES
    actor = actors.get(name)
    if actor is None:
        status = str(event["from"]) if is_move else _FIRST
        actor = actors[name] = _Actor(name, row.at, status, row.at)
    if is_move:
        actor.move(str(event["to"]), row.at)
    elif row.event in _ENDS:
        actor.end(row.at)
    elif row.event == "audit_checkpoint":
        actor.checks.append(row)


def _lane(actor: _Actor, axis: Axis) -> StatusLane:
    ended = max((end for _, _, end in actor.periods), default=actor.began)
    spent: dict[str, int] = {}
    for status, start, end in actor.periods:
        spent[status] = spent.get(status, 0) + end - start
    summary = ", ".join(f"{status} {duration(took)}" for status, took in spent.items())
    return StatusLane(
        name=actor.name,
        status=actor.status,
        bars=[_bar(axis, *period) for period in actor.periods],
        audits=[AuditMark(axis.place(row.at), row.tone, row.title) for row in actor.checks],
        took=ended - actor.began,
        label=f"{actor.name}: {summary}",
    )


def _bar(axis: Axis, status: str, start: int, end: int) -> Bar:
    x = axis.place(start)
    width = max(axis.place(end) - x, _NARROWEST)
    title = f"{status}, {duration(end - start)}"
    return Bar(min(x, 100 - _NARROWEST), width, f"{tone(status)} s-{status}", title)


PAGE_LINES: Final = 400


async def show_fleet_run(request: PageRequest) -> Response:
    """Show one run."""
    start = request.http.whole_number("line", 0)
    run_id = request.http.path["fleet_run_id"]
    found = await request.host.fleet.views.steps(request.tenant, run_id, start, PAGE_LINES)
    # The archive contains the lines as they were pushed, so they must be redacted here.
    found = replace(found, events=[request.http.redactor.json(each) for each in found.events])
    waits = await waits_of_runs(request, found.agents)
    agents = [replace(agent, waiting_s=None) for agent in found.agents]
    tag = list_etag(request, (found.run, agents, list(waits.values())), shows_durations=bool(waits))
    not_modified = not_modified_response(request, tag)
    if not_modified is not None:
        return not_modified
    rows = rows_of_lines(found.events, start, to_millis(found.run.started))
    response = await fleet_page(
        request,
        "fleet_run.html",
        run=found.run,
        agents=found.agents,
        waits=waits,
        rows=rows,
        findings=[each for each in found.findings or [] if each.level != "info"],
        lanes=_lanes(found, rows, start),
        first_line=start,
        next_line=found.next_line,
        page_lines=PAGE_LINES,
        is_demo=any(is_demo(a.run_id, a.agent_id, a.task) for a in found.agents),
    )
    return with_etag(response, tag)


def _lanes(found: RunSteps, rows: list[LineRow], start: int) -> StatusLanes | None:
    """Draw the run over time; None if the page shows only a part of the run."""
    if start or found.next_line is not None:
        return None
    return status_lanes(found.events, rows, to_millis(found.run.last_event))


PAGES: Final = (
    Page(
        name="fleet-run",
        path="/fleet/runs/{fleet_run_id}",
        get=show_fleet_run,
        scope="fleet:read",
        read_level="sensitive",
    ),
)
