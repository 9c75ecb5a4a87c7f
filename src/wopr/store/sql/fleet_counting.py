"""The fleet's totals, and how they change with the lines that change them.

A rolling span has the totals of what is not older than its mark, and the mark is moved by a job.
So a run enters and leaves a span once, whenever that is, and a reader makes up for the distance
between the mark and its own clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from wopr.store.port.fleet import ALL, AgentRun, AuditRow, Growth

_OUTCOMES: Final = ("converged", "partial", "escaped", "aborted")
_RESULTS: Final = ("pass", "fail", "warn")
# So many bins lie in a stretch, as a power of two.
STRETCH_BITS: Final = 6
# `ALL` has no mark: nothing is too old for it.
NO_MARK: Final = -(2**63)

Key: TypeAlias = tuple[str | int, ...]
Sums = defaultdict[Key, list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalsTable:
    """A table of totals: by what they are kept beside the tenant, and what is summed."""

    name: str
    keys: tuple[str, ...]
    sums: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns but the tenant's."""
        return (*self.keys, *self.sums)

    @property
    def adding(self) -> str:
        """What becomes of a row that is there already, known as `t`."""
        changes = ", ".join(f"{name} = t.{name} + excluded.{name}" for name in self.sums)
        return f"ON CONFLICT (tenant, {', '.join(self.keys)}) DO UPDATE SET {changes}"

    @property
    def is_empty(self) -> str:
        """Whether a row, known as `t`, counts nothing."""
        return " AND ".join(f"t.{name} = 0" for name in self.sums)


AGENTS: Final = TotalsTable(
    name="fleet_agents",
    keys=("span", "agent_id"),
    sums=("runs", *_OUTCOMES, "scored", "score_units"),
)
STRETCHES: Final = TotalsTable(
    name="fleet_stretches", keys=("span", "agent_id", "stretch"), sums=("runs",)
)
BINS: Final = TotalsTable(
    name="fleet_bins", keys=("span", "agent_id", "duration_bin"), sums=("runs",)
)
CHECKPOINTS: Final = TotalsTable(
    name="fleet_checkpoints", keys=("span", "checkpoint_id"), sums=("passed", "failed", "warned")
)
TOTALS: Final = (AGENTS, STRETCHES, BINS, CHECKPOINTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is to be added in one table, and which rows may then count nothing, both by key."""

    added: list[Key]
    fewer: list[Key]


class Counting:
    """Gathers changes of one tenant's totals, to be written at once."""

    def __init__(self, marks: Mapping[str, int]) -> None:
        self._marks = marks
        self._sums: dict[str, Sums] = {table.name: _sums(len(table.sums)) for table in TOTALS}

    def growth(self, growth: Growth) -> None:
        """Count what new lines make of a run in place of what it was."""
        for before, after in growth.agents:
            if before is not None:
                self.agent(before, -1)
            self.agent(after, 1)
        for audit in growth.audits:
            self.audit(audit, 1)

    def agent(self, agent: AgentRun, by: int) -> None:
        """Count an agent's run in every span that it belongs to, or with -1 no longer."""
        values = agent_counts(agent.outcome, agent.score_units)
        place = agent.duration_bin
        for span, since in self._marks.items():
            if agent.last_event < since:
                continue
            add(self._sums[AGENTS.name][span, agent.agent_id], values, by)
            if place is not None:
                stretch = place >> STRETCH_BITS
                self._sums[STRETCHES.name][span, agent.agent_id, stretch][0] += by
                self._sums[BINS.name][span, agent.agent_id, place][0] += by

    def audit(self, audit: AuditRow, by: int) -> None:
        """Count an audit in every span that its time belongs to."""
        values = audit_counts(audit.result)
        for span, since in self._marks.items():
            if audit.at >= since:
                add(self._sums[CHECKPOINTS.name][span, audit.checkpoint_id], values, by)

    def changes(self) -> Iterator[Changes]:
        """What has changed in each of `TOTALS`.

        Always in the same order, so that no two writers wait for each other.
        """
        for table in TOTALS:
            sums = self._sums[table.name]
            changed = sorted((key, values) for key, values in sums.items() if any(values))
            yield Changes(
                added=[(*key, *values) for key, values in changed],
                fewer=[key for key, values in changed if min(values) < 0],
            )


def with_all(marks: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Where each span of a tenant begins, and with them the one that has no beginning."""
    return {ALL: NO_MARK, **dict(marks)}


def agent_counts(outcome: str | None, score_units: int | None) -> tuple[int, ...]:
    """What one run of an agent adds to the numbers of its totals."""
    scored = (0, 0) if score_units is None else (1, score_units)
    return (1, *(int(outcome == each) for each in _OUTCOMES), *scored)


def audit_counts(result: str) -> tuple[int, ...]:
    """What one audit adds to the numbers of its checkpoint."""
    return tuple(int(result == each) for each in _RESULTS)


def add(sums: list[int], values: Sequence[int], by: int) -> None:
    """Add so many times the values to the sums at their places."""
    for place, value in enumerate(values):
        sums[place] += by * value


def _sums(width: int) -> Sums:
    return defaultdict(lambda: [0] * width)
