"""A KAHN run over time: for each agent, or node of a graph, in which status it was when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from wopr.console.fleet_steps import Step, actor_of
from wopr.console.timeline import Axis, Bar, Tick
from wopr.console.words import duration, tone
from wopr.protocol.documents import JsonObject

_NARROWEST: Final = 0.35
_MOVES: Final = frozenset({"agent_transition", "node_transition"})
_ENDS: Final = frozenset({"agent_run_end"})
_TERMINAL: Final = frozenset({"converged", "failed", "done"})
# What an agent does until its first transition says something else.
_FIRST: Final = "thinking"


@dataclass(frozen=True, slots=True)
class Mark:
    """An audit at its time."""

    x: float
    tone: str
    title: str


@dataclass(slots=True)
class _Actor:
    """What is known of one lane so far."""

    name: str
    began: int
    status: str
    since: int
    is_over: bool = False
    stretches: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    checks: list[Step] = field(default_factory=list[Step])

    def move(self, status: str, at: int) -> None:
        """Be in another status from then on; a line may be older than the one before it."""
        at = max(at, self.since)
        self.stretches.append((self.status, self.since, at))
        self.status, self.since = status, at
        self.is_over = status in _TERMINAL

    def end(self, at: int) -> None:
        """Stop."""
        if not self.is_over:
            self.stretches.append((self.status, self.since, max(at, self.since)))
        self.is_over = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusLane:
    """One lane."""

    name: str
    status: str
    bars: Sequence[Bar]
    marks: Sequence[Mark]
    took: int
    label: str


@dataclass(frozen=True, slots=True)
class StatusLanes:
    """All lanes on one axis."""

    lanes: Sequence[StatusLane]
    ticks: Sequence[Tick]


def status_lanes(events: Sequence[JsonObject], steps: Sequence[Step], until: int) -> StatusLanes:
    """Draw a whole run, `until` being the time of its last line."""
    actors: dict[str, _Actor] = {}
    for event, step in zip(events, steps, strict=True):
        _take(actors, event, step)
    for actor in actors.values():
        actor.end(until)
    axis = Axis(min((a.began for a in actors.values()), default=until), until)
    return StatusLanes([_lane(actor, axis) for actor in actors.values()], axis.ticks())


def _take(actors: dict[str, _Actor], event: JsonObject, step: Step) -> None:
    name = actor_of(event)
    if not name:
        return
    is_move = step.event in _MOVES
    actor = actors.get(name)
    if actor is None:
        status = str(event["from"]) if is_move else _FIRST
        actor = actors[name] = _Actor(name, step.at, status, step.at)
    if is_move:
        actor.move(str(event["to"]), step.at)
    elif step.event in _ENDS:
        actor.end(step.at)
    elif step.event == "audit_checkpoint":
        actor.checks.append(step)


def _lane(actor: _Actor, axis: Axis) -> StatusLane:
    ended = max((end for _, _, end in actor.stretches), default=actor.began)
    spent: dict[str, int] = {}
    for status, start, end in actor.stretches:
        spent[status] = spent.get(status, 0) + end - start
    told = ", ".join(f"{status} {duration(took)}" for status, took in spent.items())
    return StatusLane(
        name=actor.name,
        status=actor.status,
        bars=[_bar(axis, *stretch) for stretch in actor.stretches],
        marks=[Mark(axis.place(step.at), step.tone, step.title) for step in actor.checks],
        took=ended - actor.began,
        label=f"{actor.name}: {told}",
    )


def _bar(axis: Axis, status: str, start: int, end: int) -> Bar:
    x = axis.place(start)
    width = max(axis.place(end) - x, _NARROWEST)
    title = f"{status}, {duration(end - start)}"
    return Bar(min(x, 100 - _NARROWEST), width, f"{tone(status)} s-{status}", title)
