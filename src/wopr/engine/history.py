"""What a fork has of its source: which events are history, and how they lie in the fork's time."""

from __future__ import annotations

from wopr.engine.state import RunIdentity


def is_history(run: RunIdentity, sequence: int) -> bool:
    """Whether an event was brought along: in a replay all of them, in a branch those copied."""
    fork = run.fork
    return fork is not None and (fork.mode == "replay" or sequence < fork.from_seq)


def is_copied_by_branch(run: RunIdentity, sequence: int) -> bool:
    """Whether an event lies before the point where a branch went its own way."""
    fork = run.fork
    return fork is not None and fork.mode == "branch" and sequence < fork.from_seq


def moved_by(run: RunIdentity, sequence: int) -> int:
    """How many milliseconds later an event counts than it came.

    Between the history of a branch and what it does itself lie hours or days in which nothing
    happened. To limits and deadlines that time has not passed.
    """
    if run.fork is None:
        return 0
    return sum(shift.by_ms for shift in run.fork.shifts if sequence < shift.before)
