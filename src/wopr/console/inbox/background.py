"""The background of an interrupt: inputs of its run and parent runs, and the steps before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from wopr.console.page import PageRequest
from wopr.console.runs.agent_steps import AgentTurn
from wopr.console.runs.log import DecodedLog, Entry
from wopr.console.runs.view import snapshot_of, turns_of
from wopr.protocol.documents import Json, JsonObject, Unset

# The largest number of steps in a background. The page of the run shows all steps.
MAX_STEPS: Final = 12
# Steps at the end of a background that are not folded.
OPEN_STEPS: Final = 4
# Levels of parent runs in a background.
MAX_PARENTS: Final = 3
_OUTCOMES: Final = {"node.completed": "completed", "node.failed": "failed"}


@dataclass(slots=True)
class BackgroundStep:
    """One execution of a node: its outcome, and its turn if an agent or a person acted in it."""

    node_id: str
    sequence: int
    status: str = "running"
    outputs: Json = None
    turn: AgentTurn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """The inputs of one run, and its last steps before the interrupt."""

    run_id: str
    workflow_id: str
    inputs: JsonObject
    # The turns of its agents before the interrupt.
    turns: Sequence[AgentTurn]
    steps: Sequence[BackgroundStep]
    # Number of steps before those.
    earlier: int

    @property
    def folded(self) -> Sequence[BackgroundStep]:
        """The steps that the page shows folded: all but the last few."""
        return self.steps[:-OPEN_STEPS]

    @property
    def open(self) -> Sequence[BackgroundStep]:
        """The steps that the page shows without folding."""
        return self.steps[-OPEN_STEPS:]


async def backgrounds_of(request: PageRequest, run_id: str, interrupt_id: str) -> list[Background]:
    """Return the background of the waiting run, then that of each parent run, nearest first."""
    backgrounds: list[Background] = []
    last_event: tuple[str, str, str] = ("node.suspended", "interruptId", interrupt_id)
    current_run_id: str | None = run_id
    while current_run_id is not None and len(backgrounds) <= MAX_PARENTS:
        row = await request.host.store.run(request.tenant, current_run_id)
        if row is None:
            break
        log = await request.state.logs.read(request.host.run_reader, request.tenant, current_run_id)
        snapshot = await snapshot_of(request, current_run_id)
        until = _last_sequence(log, *last_event)
        turns = [_steps_until(turn, until) for turn in await turns_of(request, snapshot, log, row)]
        turns = [turn for turn in turns if turn.steps]
        steps = steps_before(log.entries[:until], turns)
        backgrounds.append(
            Background(
                run_id=current_run_id,
                workflow_id=row.workflow_id,
                inputs={} if isinstance(snapshot.inputs, Unset) else snapshot.inputs,
                turns=turns,
                steps=steps[-MAX_STEPS:],
                earlier=max(len(steps) - MAX_STEPS, 0),
            )
        )
        last_event = ("node.dispatched", "childRunId", current_run_id)
        current_run_id = row.parent_run_id
    return backgrounds


def _last_sequence(log: DecodedLog, kind: str, member: str, value: str) -> int:
    """Return the sequence of the last such event; the length of the log if it has none."""
    for entry in reversed(log.entries):
        if entry.event.type == kind and entry.payload.get(member) == value:
            return entry.sequence
    return len(log.entries)


def _steps_until(turn: AgentTurn, until: int) -> AgentTurn:
    """Return the turn with only the steps before a sequence."""
    return replace(turn, steps=[step for step in turn.steps if step.entry.sequence < until])


def steps_before(entries: Sequence[Entry], turns: Sequence[AgentTurn]) -> list[BackgroundStep]:
    """Return the executions of nodes in these events, in the order of their starts.

    A started node without an outcome and without a turn is omitted: it is the waiting node, or it
    runs in parallel.
    """
    by_start: Mapping[int, AgentTurn] = {turn.sequence: turn for turn in turns}
    steps: list[BackgroundStep] = []
    last: dict[str, BackgroundStep] = {}
    for entry in entries:
        kind = entry.event.type
        if kind == "node.started":
            last[entry.node_id] = BackgroundStep(
                entry.node_id, entry.sequence, turn=by_start.get(entry.sequence)
            )
            steps.append(last[entry.node_id])
        step = last.get(entry.node_id)
        if step is not None and kind in _OUTCOMES:
            step.status = _OUTCOMES[kind]
            step.outputs = entry.payload.get("outputs", entry.payload.get("error"))
    return [step for step in steps if step.turn is not None or step.status != "running"]
