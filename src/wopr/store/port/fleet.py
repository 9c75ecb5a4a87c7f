"""The part of the store's port about the fleet: KAHN lines, and the totals kept with them.

The rules of `wopr.store.port` hold here too: every call names its tenant, and no call crosses one
but those of `fleet_clockwork`, which answer with owners and ids only.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from wopr.protocol.fleet import AgentOutcome, Sort

Source: TypeAlias = Literal["push", "host"]
Kind: TypeAlias = Literal["agent", "ci", "mixed"]
# Every run is in the totals of this span; a span of another name holds those not too old for it.
ALL: Final = "all"
# For each rolling span, by name, the earliest last event that a run in it may have.
Since: TypeAlias = Mapping[str, int]

HASH_BYTES: Final = 16
# A score in whole billionths, so that sums do not depend on their order.
SCORE_UNITS: Final = 10**9
# Of a duration's 64 bits, sign, exponent and nine of the fraction: 512 bins from a value to twice it.
_BIN_SHIFT: Final = 43


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """One agent in one KAHN run, as its lines have told so far.

    `last_event` is the latest time of any of the agent's lines. All from `ended_at` on comes from
    the agent's end. `blocked_at` is since when it waits for an operator. `totals` is a JSON object:
    the totals that the end reports, and what its lines had counted to by then.
    """

    run_id: str
    agent_id: str
    started_at: int
    last_event: int
    status: str
    task: str = ""
    model: str | None = None
    # The highest so far; a lower one is refused.
    step: int = -1
    tool_calls: int = 0
    audits_passed: int = 0
    audits_failed: int = 0
    audits_warned: int = 0
    blocked_at: int | None = None
    ended_at: int | None = None
    outcome: AgentOutcome | None = None
    duration_s: float | None = None
    score: float | None = None
    totals: str | None = None

    @property
    def duration_bin(self) -> int | None:
        """The bin of the duration; bins are ordered as the durations in them are."""
        if self.duration_s is None:
            return None
        bits: int = struct.unpack("<q", struct.pack("<d", self.duration_s))[0]
        return bits >> _BIN_SHIFT

    @property
    def score_units(self) -> int | None:
        """The score in whole units."""
        return None if self.score is None else round(self.score * SCORE_UNITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    """A KAHN run as a whole. `outcome` is that of a CI run.

    `source` is fixed by the first line. `pushed_at` is the host's time of the last push that had
    lines of the run. A hidden run is shown by export only.
    """

    run_id: str
    kind: Kind
    source: Source
    lines: int
    started_at: int
    last_event: int
    ended_at: int | None = None
    outcome: str | None = None
    hidden_at: int | None = None
    pushed_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRun:
    """What is held of a run: its row, its agents, and `HASH_BYTES` of each line's hash in order."""

    run: FleetRun
    hashes: bytes
    agents: Mapping[str, AgentRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """An audit checkpoint; `line` is its place in its run, counted from 0."""

    line: int
    at: int
    checkpoint_id: str
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """New lines of one run, and what they make of it.

    `run` is the row after them, and `before` the one they were aligned with, None for a new run.
    `body` are the lines with a newline after each, `hashes` their hashes. `agents` are the changed
    ones, each with what it was before.
    """

    run: FleetRun
    before: FleetRun | None
    body: bytes
    hashes: bytes
    agents: tuple[tuple[AgentRun | None, AgentRun], ...] = ()
    audits: tuple[AuditRow, ...] = ()

    @property
    def first(self) -> int:
        """The place of the first new line."""
        return 0 if self.before is None else self.before.lines

    @property
    def new_lines(self) -> int:
        """How many lines are new."""
        return self.run.lines - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestBatch:
    """All that one push writes: lines and totals.

    `shown_by` are the runs that show the lines. They are put among the observed runs with news.
    """

    growths: tuple[Growth, ...]
    since: Since
    shown_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """A push of lines that are all held: the runs were pushed `at` that time again."""

    run_ids: tuple[str, ...]
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """An agent's run that has ended."""

    run_id: str
    ended_at: int
    last_event: int
    outcome: AgentOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTotals:
    """An agent's runs in a span, counted.

    `waiting` are those without an end in the first rolling span, whatever span is asked for.
    `latest` are its last two ended runs of all time, newest first, and `scores` the latest scores
    in the span, newest first, both in order of `(ended_at, run_id)`. `durations` are, for each
    quantile asked for, the two values between which it lies, of the ended runs in the span.
    """

    agent_id: str
    runs: int
    converged: int
    partial: int
    escaped: int
    aborted: int
    scored: int
    score_units: int
    waiting: int
    last_seen: int
    latest: tuple[Ending, ...]
    scores: tuple[float, ...]
    durations: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalsPage:
    """Which agents of a span are read: `limit` of them after `start` others, or one.

    `severity` orders them by the outcomes that are counted: a page does not know the regressions
    of agents on other pages.
    """

    limit: int
    start: int = 0
    sort: Sort = "runs"
    agent_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTotals:
    """The results of one checkpoint in a span, by the audits' own times."""

    checkpoint_id: str
    passed: int
    failed: int
    warned: int
    last_fail_run_id: str | None


class Fleet(Protocol):
    """KAHN runs: their lines byte for byte, and totals that cost the same however many there are."""

    async def fleet_held(self, tenant: str, run_ids: Sequence[str]) -> dict[str, HeldRun]:
        """What is held of each of these runs, hidden ones too; a run that is not held is left out."""
        ...

    async def fleet_ingest(self, tenant: str, batch: IngestBatch) -> None:
        """Write lines and totals, all or nothing, durably.

        Raises `SequenceTaken` when a run is not as `before` says: align again.
        """
        ...

    async def fleet_touch(self, tenant: str, touch: Touch) -> None:
        """Write down that runs were pushed again, unless they are hidden."""
        ...

    async def fleet_expiring(
        self, tenant: str, pushed_before: int, limit: int
    ) -> list[tuple[str, int]]:
        """`(run_id, pushed_at)` of pushed runs whose last push is not younger, the oldest first."""
        ...

    async def fleet_namesakes(self, tenant: str, run_ids: Sequence[str]) -> set[str]:
        """Those of these ids that a run of the tenant on this host has."""
        ...

    async def fleet_news(
        self, tenant: str, starts: Mapping[str, int], most_bytes: int
    ) -> dict[str, list[bytes]]:
        """What was pushed of each of these runs from a place on, where a push begins.

        For each push there are its lines of that run, as `Growth.body` has them. Runs without such
        pushes are left out, and so is all that comes once there are `most_bytes`.
        """
        ...

    async def fleet_totals(
        self,
        tenant: str,
        span: str,
        since: Since,
        page: TotalsPage,
        *,
        quantiles: Sequence[float],
        scores: int,
    ) -> list[AgentTotals]:
        """Totals of a page of the agents with a run in the span, by `agent_id`.

        Exact for any `since`, and cheap when it is near the last `fleet_settle`.
        """
        ...

    async def fleet_checkpoints(
        self, tenant: str, span: str, since: Since, *, limit: int, start: int = 0
    ) -> list[CheckpointTotals]:
        """Totals of a page of the checkpoints with a result in the span, by `checkpoint_id`.

        The pages are ordered as the checkpoints are shown: the most undecided first.
        """
        ...

    async def fleet_agent_runs(
        self,
        tenant: str,
        agent_id: str,
        since: int | None,
        after: tuple[int, str] | None,
        limit: int,
    ) -> list[AgentRun]:
        """Runs of an agent before that `(last_event, run_id)`, newest first, none older than `since`."""
        ...

    async def fleet_waiting(self, tenant: str, limit: int) -> list[AgentRun]:
        """Agents that wait for an operator, who has waited longest first, without hidden runs."""
        ...

    async def fleet_runs(
        self, tenant: str, after: tuple[int, str] | None, limit: int
    ) -> list[FleetRun]:
        """Runs before that `(last_event, run_id)`, newest first, without hidden ones."""
        ...

    async def fleet_run(self, tenant: str, run_id: str) -> FleetRun | None:
        """The run, hidden or not, or None."""
        ...

    async def fleet_run_agents(self, tenant: str, run_id: str) -> list[AgentRun]:
        """The agents of a run in the order of their start."""
        ...

    def fleet_lines(self, tenant: str, run_id: str, start: int = 0) -> AsyncIterator[bytes]:
        """The lines of a run from that place on, hidden or not, in pieces of whole lines."""
        ...

    async def fleet_exported(self, tenant: str, after: str, limit: int) -> list[FleetRun]:
        """A page of all runs after that id, by id, hidden ones too."""
        ...

    async def fleet_size(self, tenant: str) -> int:
        """How many KAHN runs the tenant has, without hidden ones."""
        ...
