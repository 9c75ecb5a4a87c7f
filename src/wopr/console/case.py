"""The case behind a wait: the inputs of its run and of the parent runs, and the steps before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from wopr.console.run_log import Entry, RunLog
from wopr.console.run_view import snapshot_of, turns_of
from wopr.console.story import Turn
from wopr.console.visit import Visit
from wopr.protocol.documents import Json, JsonObject, Unset

# Steps that a case shows; the page of the run shows all of them.
MOST_STEPS: Final = 12
# Steps that are shown without unfolding anything.
OPEN_STEPS: Final = 4
# Generations of parent runs that a case shows.
MOST_PARENTS: Final = 3
_OUTCOMES: Final = {"node.completed": "completed", "node.failed": "failed"}


@dataclass(slots=True)
class Step:
    """One execution of a node: its outcome, and its turn if an agent or a person acted in it."""

    node_id: str
    sequence: int
    status: str = "running"
    outputs: Json = None
    turn: Turn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What one run was asked to do, and its last steps before the wait."""

    run_id: str
    workflow_id: str
    inputs: JsonObject
    # The turns of its agents before the wait.
    turns: Sequence[Turn]
    steps: Sequence[Step]
    # Number of steps before those.
    earlier: int

    @property
    def folded(self) -> Sequence[Step]:
        """Steps that the page shows folded: all but the last few."""
        return self.steps[:-OPEN_STEPS]

    @property
    def open(self) -> Sequence[Step]:
        """Steps that the page shows at once."""
        return self.steps[-OPEN_STEPS:]


async def cases_of(visit: Visit, run_id: str, interrupt_id: str) -> list[Case]:
    """The case of the run that waits, then those of its parent runs, nearest first."""
    cases: list[Case] = []
    wanted: tuple[str, str, str] = ("node.suspended", "interruptId", interrupt_id)
    name: str | None = run_id
    while name is not None and len(cases) <= MOST_PARENTS:
        row = await visit.host.store.run(visit.tenant, name)
        if row is None:
            break
        log = await visit.desk.logs.read(visit.host.readers, visit.tenant, name)
        snapshot = await snapshot_of(visit, name)
        until = _place(log, *wanted)
        turns = [_cut(turn, until) for turn in await turns_of(visit, snapshot, log, row)]
        told = [turn for turn in turns if turn.beats]
        steps = steps_before(log.entries[:until], told)
        cases.append(
            Case(
                run_id=name,
                workflow_id=row.workflow_id,
                inputs={} if isinstance(snapshot.inputs, Unset) else snapshot.inputs,
                turns=told,
                steps=steps[-MOST_STEPS:],
                earlier=max(len(steps) - MOST_STEPS, 0),
            )
        )
        wanted = ("node.dispatched", "childRunId", name)
        name = row.parent_run_id
    return cases


def _place(log: RunLog, kind: str, member: str, value: str) -> int:
    """The sequence of the last such event; of a log that is cut before it, the last of the log."""
    for entry in reversed(log.entries):
        if entry.event.type == kind and entry.payload.get(member) == value:
            return entry.sequence
    return len(log.entries)


def _cut(turn: Turn, until: int) -> Turn:
    """The part of a turn that came before the wait."""
    return replace(turn, beats=[beat for beat in turn.beats if beat.entry.sequence < until])


def steps_before(entries: Sequence[Entry], turns: Sequence[Turn]) -> list[Step]:
    """The executions of nodes in these events, in the order of their starts.

    A node that has started and has nothing to show yet is left out: it is the one that waits, or
    one that runs beside it.
    """
    by_start: Mapping[int, Turn] = {turn.sequence: turn for turn in turns}
    steps: list[Step] = []
    last: dict[str, Step] = {}
    for entry in entries:
        kind = entry.event.type
        if kind == "node.started":
            last[entry.node_id] = Step(
                entry.node_id, entry.sequence, turn=by_start.get(entry.sequence)
            )
            steps.append(last[entry.node_id])
        step = last.get(entry.node_id)
        if step is not None and kind in _OUTCOMES:
            step.status = _OUTCOMES[kind]
            step.outputs = entry.payload.get("outputs", entry.payload.get("error"))
    return [step for step in steps if step.turn is not None or step.status != "running"]
