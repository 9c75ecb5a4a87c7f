"""A made-up fleet for trying the views: three agents over some days, the same for the same seed.

One agent falls back at the end, so that a regression is to be seen, and one run is still open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Final

from wopr.fleet.demo_session import Session
from wopr.fleet.events import AgentOutcome

_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Profile:
    """An agent as the demo plays it; the chances are those of the four outcomes, in order."""

    agent_id: str
    task: str
    model: str
    tools: tuple[str, ...]
    checkpoints: tuple[str, ...]
    runs_a_day: int
    chances: tuple[float, float, float, float]


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
REGRESSED: Final = "coder"
PREFIX: Final = "demo-"
# The last run that is made.
OPEN_RUN: Final = f"{PREFIX}open"
_TASKS: Final = {profile.agent_id: profile.task for profile in PROFILES}


def is_demo(run_id: str, agent_id: str, task: str) -> bool:
    """Tell an agent's run of the demo from one of somebody's own that happens to be called so."""
    return run_id.startswith(PREFIX) and _TASKS.get(agent_id) == task


def demo_runs(*, until: datetime, days: int, seed: int = 0) -> Iterator[DemoRun]:
    """Make the runs of the days before `until`, agent by agent, each in order of start."""
    for profile in PROFILES:
        chance = Random(f"{seed}:{profile.agent_id}")
        starts = list(_starts(profile, until, days, chance))
        endings = _endings(profile, len(starts), chance)
        for number, (start, outcome) in enumerate(zip(starts, endings, strict=True)):
            yield _run(profile, number, start, outcome, chance)
    yield _open_run(PROFILES[-1], until, Random(f"{seed}:open"))


def _starts(profile: Profile, until: datetime, days: int, chance: Random) -> Iterator[datetime]:
    for day in range(days):
        begins = until - (days - day) * _DAY
        for slot in range(profile.runs_a_day):
            # No run begins before the one before it has ended.
            yield begins + (slot + chance.random() / 2) / profile.runs_a_day * _DAY


def _endings(profile: Profile, count: int, chance: Random) -> list[AgentOutcome]:
    # The last two decide whether an agent has regressed; chance has no say in them.
    endings = chance.choices(_OUTCOMES, profile.chances, k=count - 2)
    return [*endings, "converged", "partial" if profile.agent_id == REGRESSED else "converged"]


def _run(
    profile: Profile, number: int, start: datetime, outcome: AgentOutcome, chance: Random
) -> DemoRun:
    run_id = f"{PREFIX}{profile.agent_id.replace(':', '-')}-{number:04d}"
    session = Session(run_id, profile.agent_id, start, chance)
    session.start(profile.task, profile.model)
    for _ in range(chance.randint(1, 3)):
        session.turn(profile.tools)
    if chance.random() < 0.15:
        session.ask()
    for checkpoint in profile.checkpoints:
        session.audit(checkpoint, outcome)
    session.end(outcome)
    return DemoRun(run_id, tuple(session.lines))


def _open_run(profile: Profile, until: datetime, chance: Random) -> DemoRun:
    session = Session(OPEN_RUN, profile.agent_id, until - timedelta(minutes=10), chance)
    session.start(profile.task, profile.model)
    session.turn(profile.tools)
    return DemoRun(OPEN_RUN, tuple(session.lines))
