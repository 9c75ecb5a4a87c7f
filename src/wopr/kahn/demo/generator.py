"""A demo fleet for the views: three agents over some days, always the same for the same seed.

One agent has a regression, and one run has not ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Final

from wopr.kahn.emitters import kahn_agent_emit as emit
from wopr.kahn.events import AgentStatus, AuditResult
from wopr.kahn.lifecycle import BLOCKED, INITIAL
from wopr.kahn.lines import encode_line
from wopr.kahn.timestamps import seconds_between, write_ts
from wopr.protocol.resources.fleet import AgentOutcome

_PARTIAL_SCORES = (0.35, 0.85)


class DemoRunWriter:
    """Writes the lines of one run; every call advances the clock."""

    def __init__(self, run_id: str, agent_id: str, start: datetime, random: Random) -> None:
        self.lines: list[bytes] = []
        self._run_id = run_id
        self._agent_id = agent_id
        self._now = start
        self._began = write_ts(start)
        self._random = random
        self._status: AgentStatus = INITIAL
        self._step = 0
        self._tool_calls = 0
        self._audits: list[AuditResult] = []

    def start(self, task: str, model: str) -> None:
        """Write the start of the agent."""
        self._write(
            emit.agent_run_start(self._run_id, self._agent_id, task, model=model, ts=self._ts)
        )

    def turn(self, tools: Sequence[str]) -> None:
        """Think, call a tool, respond, reflect, and think again."""
        tool = self._random.choice(tools)
        self._move("tool_call", f"tool_call:{tool}")
        self._call(tool)
        for status in ("tool_result", "response", "reflect", INITIAL):
            self._move(status)

    def wait_for_answer(self) -> None:
        """Wait for the answer of a person."""
        self._move(BLOCKED, "clarification")
        self._advance_clock(60, 900)
        self._move(INITIAL, "operator:answered")

    def audit(self, checkpoint: str, outcome: AgentOutcome) -> None:
        """Write the result of a checkpoint. It fails more often in a run that does not converge."""
        share = 0.05 if outcome == "converged" else 0.6
        draw = self._random.random()
        result: AuditResult = "fail" if draw < share else "warn" if draw < share + 0.05 else "pass"
        duration = self._advance_clock(0.1, 3)
        self._audits.append(result)
        self._write(
            emit.audit_checkpoint(
                self._run_id,
                self._agent_id,
                checkpoint,
                result,
                duration,
                evidence={"checked": self._random.randint(1, 40)},
                ts=self._ts,
            )
        )

    def end(self, outcome: AgentOutcome) -> None:
        """End the run with this outcome."""
        if outcome == "converged":
            for status in ("response", "reflect", "converged"):
                self._move(status)
        elif outcome == "aborted":
            self._move("failed", "timeout")
        self._write(
            emit.agent_run_end(
                self._run_id,
                self._agent_id,
                outcome,
                self._step + 1,
                self._tool_calls,
                len(self._audits),
                self._audits.count("pass"),
                self._audits.count("fail"),
                seconds_between(self._began, self._ts),
                convergence_score=self._score(outcome),
                ts=self._ts,
            )
        )

    def _score(self, outcome: AgentOutcome) -> float | None:
        if outcome == "converged":
            return 1.0
        return round(self._random.uniform(*_PARTIAL_SCORES), 4) if outcome == "partial" else None

    def _call(self, tool: str) -> None:
        duration = self._advance_clock(0.2, 20)
        is_ok = self._random.random() < 0.93
        self._tool_calls += 1
        self._write(
            emit.tool_invocation(
                self._run_id,
                self._agent_id,
                self._step,
                tool,
                duration,
                is_ok,
                output_summary="done" if is_ok else None,
                error=None if is_ok else "exit status 1",
                ts=self._ts,
            )
        )

    def _move(self, to: AgentStatus, reason: str | None = None) -> None:
        self._advance_clock(0.05, 8)
        step, from_ = self._step, self._status
        self._write(
            emit.agent_transition(
                self._run_id, self._agent_id, step, from_, to, reason=reason, ts=self._ts
            )
        )
        self._status = to
        self._step += to == INITIAL

    @property
    def _ts(self) -> str:
        return write_ts(self._now)

    def _advance_clock(self, shortest: float, longest: float) -> float:
        duration = round(self._random.uniform(shortest, longest), 3)
        self._now += timedelta(seconds=duration)
        return duration

    def _write(self, event: dict[str, object]) -> None:
        self.lines.append(encode_line(event))


_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Profile:
    """An agent of the demo, with the probabilities of the four outcomes."""

    agent_id: str
    task: str
    model: str
    tools: tuple[str, ...]
    checkpoints: tuple[str, ...]
    runs_a_day: int
    weights: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class DemoRun:
    """A run and its lines, without newlines."""

    run_id: str
    lines: tuple[bytes, ...]


_OUTCOMES: Final[tuple[AgentOutcome, ...]] = ("converged", "partial", "escaped", "aborted")
PROFILES: Final = (
    Profile(
        "coder",
        "Make the failing test pass without touching the others",
        "large",
        ("read_file", "edit_file", "run_tests"),
        ("tests:unit", "lint:style"),
        4,
        (0.8, 0.12, 0.03, 0.05),
    ),
    Profile(
        "reviewer",
        "Review the change for correctness and style",
        "large",
        ("read_diff", "search_code"),
        ("review:findings", "policy:licence"),
        3,
        (0.88, 0.1, 0.0, 0.02),
    ),
    Profile(
        "triage:inbox",
        "Sort new reports and ask where they are unclear",
        "small",
        ("fetch_report", "label_report"),
        ("triage:label",),
        5,
        (0.7, 0.22, 0.02, 0.06),
    ),
)
REGRESSED_AGENT: Final = "coder"
DEMO_PREFIX: Final = "demo-"
# The last run that is generated.
OPEN_RUN: Final = f"{DEMO_PREFIX}open"
_TASKS: Final = {profile.agent_id: profile.task for profile in PROFILES}


def is_demo(run_id: str, agent_id: str, task: str) -> bool:
    """Return whether a run belongs to the demo, and not to another agent with the same name."""
    return run_id.startswith(DEMO_PREFIX) and _TASKS.get(agent_id) == task


def demo_runs(*, until: datetime, days: int, seed: int = 0) -> Iterator[DemoRun]:
    """Generate the runs of the days before `until`, by agent and in the order of their start."""
    for profile in PROFILES:
        random = Random(f"{seed}:{profile.agent_id}")
        starts = list(_starts(profile, until, days, random))
        outcomes = _outcomes(profile, len(starts), random)
        for number, (start, outcome) in enumerate(zip(starts, outcomes, strict=True)):
            yield _run(profile, number, start, outcome, random)
    yield _open_run(PROFILES[-1], until, Random(f"{seed}:open"))


def _starts(profile: Profile, until: datetime, days: int, random: Random) -> Iterator[datetime]:
    for day in range(days):
        begins = until - (days - day) * _DAY
        for slot in range(profile.runs_a_day):
            # A run begins after the run before it has ended.
            yield begins + (slot + random.random() / 2) / profile.runs_a_day * _DAY


def _outcomes(profile: Profile, count: int, random: Random) -> list[AgentOutcome]:
    # The last two runs are fixed, because they decide whether an agent has a regression.
    outcomes = random.choices(_OUTCOMES, profile.weights, k=count - 2)
    return [
        *outcomes,
        "converged",
        "partial" if profile.agent_id == REGRESSED_AGENT else "converged",
    ]


def _run(
    profile: Profile, number: int, start: datetime, outcome: AgentOutcome, random: Random
) -> DemoRun:
    run_id = f"{DEMO_PREFIX}{profile.agent_id.replace(':', '-')}-{number:04d}"
    writer = DemoRunWriter(run_id, profile.agent_id, start, random)
    writer.start(profile.task, profile.model)
    for _ in range(random.randint(1, 3)):
        writer.turn(profile.tools)
    if random.random() < 0.15:
        writer.wait_for_answer()
    for checkpoint in profile.checkpoints:
        writer.audit(checkpoint, outcome)
    writer.end(outcome)
    return DemoRun(run_id, tuple(writer.lines))


def _open_run(profile: Profile, until: datetime, random: Random) -> DemoRun:
    writer = DemoRunWriter(OPEN_RUN, profile.agent_id, until - timedelta(minutes=10), random)
    writer.start(profile.task, profile.model)
    writer.turn(profile.tools)
    return DemoRun(OPEN_RUN, tuple(writer.lines))
