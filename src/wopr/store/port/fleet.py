"""Port of KAHN runs: their lines, and the totals that are stored with them.

The rules of `wopr.store.port` apply. Only calls of `FleetMaintenance` cross tenants; they return
tenants and ids only.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from wopr.protocol.resources.fleet import AgentOutcome, Sort

FleetRunSource: TypeAlias = Literal["push", "host"]
FleetRunKind: TypeAlias = Literal["agent", "ci", "mixed"]
# The span of all runs. Every other span is rolling: it contains the runs up to a certain age.
ALL: Final = "all"
# For each rolling span the earliest `last_event` of its runs.
Since: TypeAlias = Mapping[str, int]

HASH_BYTES: Final = 16
# Scores are summed in whole billionths, so that a sum does not depend on the order.
SCORE_UNITS: Final = 10**9
# A bin is the sign, the exponent and nine bits of the fraction of a duration: 512 bins for each
# doubling.
_BIN_SHIFT: Final = 43


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """One agent in one KAHN run, according to its lines.

    `last_event` is the latest time of the agent's lines. The end of the agent sets `ended_at` and
    the fields after it. `blocked_at` is when the agent began to wait for an operator.
    `totals` is a JSON object: the totals that the end reports, and those of the lines before it.
    """

    run_id: str
    agent_id: str
    started_at: int
    last_event: int
    status: str
    task: str = ""
    model: str | None = None
    # The highest step so far. A lower step is refused.
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
        """Return the bin of the duration. Longer durations have higher bins."""
        if self.duration_s is None:
            return None
        bits: int = struct.unpack("<q", struct.pack("<d", self.duration_s))[0]
        return bits >> _BIN_SHIFT

    @property
    def score_units(self) -> int | None:
        """Return the score in whole units."""
        return None if self.score is None else round(self.score * SCORE_UNITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    """A KAHN run. Only a CI run has an `outcome`.

    The first line sets `source`. `pushed_at` is the host's time of the last push with lines of the
    run. Only exports contain hidden runs.
    """

    run_id: str
    kind: FleetRunKind
    source: FleetRunSource
    lines: int
    started_at: int
    last_event: int
    ended_at: int | None = None
    outcome: str | None = None
    hidden_at: int | None = None
    pushed_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFleetRun:
    """A stored run: its row, its agents, and `HASH_BYTES` of the hash of each line, in order."""

    run: FleetRun
    hashes: bytes
    agents: Mapping[str, AgentRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointResult:
    """The result of an audit checkpoint; `line` is its line number in the run, from 0 on."""

    line: int
    at: int
    checkpoint_id: str
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLines:
    """New lines of one run, and the state of the run after them.

    `run` is the row after the lines; `before` is the stored row that they were compared with, None
    for a new run. `body` has the lines with a newline after each, `hashes` their hashes. `agents`
    has the changed agents, each before and after.
    """

    run: FleetRun
    before: FleetRun | None
    body: bytes
    hashes: bytes
    agents: tuple[tuple[AgentRun | None, AgentRun], ...] = ()
    audits: tuple[CheckpointResult, ...] = ()

    @property
    def first(self) -> int:
        """Return the number of the first new line."""
        return 0 if self.before is None else self.before.lines

    @property
    def count(self) -> int:
        """Return the number of new lines."""
        return self.run.lines - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestBatch:
    """The lines of one push, and the observed runs to put into the projection queue."""

    new_lines: tuple[NewLines, ...]
    since: Since
    observed_run_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedPush:
    """A push whose lines are all stored already. It only updates the time of the last push."""

    run_ids: tuple[str, ...]
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRunEnd:
    """The end of an agent in one KAHN run."""

    run_id: str
    ended_at: int
    last_event: int
    outcome: AgentOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTotals:
    """Totals of an agent's runs in a span.

    `waiting` counts the runs without an end in the first rolling span, also for other spans.
    `latest` has the last two ended runs of all time, and `scores` the latest scores in the span,
    both by `(ended_at, run_id)`, newest first. `durations` has for each quantile the two values
    around it, of the ended runs in the span.
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
    latest: tuple[AgentRunEnd, ...]
    scores: tuple[float, ...]
    durations: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalsPage:
    """A page of the agents of a span: `limit` agents from `start` on, or one agent.

    `severity` orders them by their outcomes only: a page does not know the regressions of agents
    on other pages.
    """

    limit: int
    start: int = 0
    sort: Sort = "runs"
    agent_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTotals:
    """The results of one checkpoint in a span, by the times of the audits."""

    checkpoint_id: str
    passed: int
    failed: int
    warned: int
    last_fail_run_id: str | None


class Fleet(Protocol):
    """KAHN runs: their lines byte for byte, and totals whose cost does not grow with the runs."""

    async def fleet_stored_runs(
        self, tenant: str, run_ids: Sequence[str]
    ) -> dict[str, StoredFleetRun]:
        """Return those of these runs that are stored, including hidden runs."""
        ...

    async def fleet_ingest(self, tenant: str, batch: IngestBatch) -> None:
        """Write lines and totals, all or nothing, durably.

        Raises `SequenceTaken` if a stored run differs from `before`: read it and compare again.
        """
        ...

    async def fleet_repeat_push(self, tenant: str, push: RepeatedPush) -> None:
        """Record that runs were pushed again, unless they are hidden."""
        ...

    async def fleet_expiring_runs(
        self, tenant: str, pushed_before: int, limit: int
    ) -> list[tuple[str, int]]:
        """List `(run_id, pushed_at)` of runs last pushed at or before a time, the oldest first."""
        ...

    async def fleet_host_run_ids(self, tenant: str, run_ids: Sequence[str]) -> set[str]:
        """Return those of these ids that belong to a run of the tenant on this host."""
        ...

    async def fleet_new_chunks(
        self, tenant: str, starts: Mapping[str, int], most_bytes: int
    ) -> dict[str, list[bytes]]:
        """Return the chunks of each of these runs from a line on, at which a chunk begins.

        A chunk has the lines of one push. Runs without such chunks are left out, and so are all
        chunks after `most_bytes` are reached.
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
        """Return the totals of a page of the agents with a run in the span, by `agent_id`.

        They are exact for any `since`. The cost grows with the time between `since` and the start
        that `fleet_advance_spans` has stored.
        """
        ...

    async def fleet_checkpoints(
        self, tenant: str, span: str, since: Since, *, limit: int, start: int = 0
    ) -> list[CheckpointTotals]:
        """Return the totals of a page of the checkpoints with a result in the span.

        A page is ordered by `checkpoint_id`. The checkpoints with the most mixed results are on the
        first page.
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
        """List runs of an agent before that `(last_event, run_id)`, newest first, since a time."""
        ...

    async def fleet_waiting_agents(self, tenant: str, limit: int) -> list[AgentRun]:
        """List agents that wait for an operator, the longest wait first, without hidden runs."""
        ...

    async def fleet_runs(
        self, tenant: str, after: tuple[int, str] | None, limit: int
    ) -> list[FleetRun]:
        """List runs before that `(last_event, run_id)`, newest first, without hidden runs."""
        ...

    async def fleet_run(self, tenant: str, run_id: str) -> FleetRun | None:
        """Return the run, also if it is hidden, or None if it does not exist."""
        ...

    async def fleet_run_agents(self, tenant: str, run_id: str) -> list[AgentRun]:
        """Return the agents of a run in the order of their start."""
        ...

    def fleet_lines(self, tenant: str, run_id: str, start: int = 0) -> AsyncIterator[bytes]:
        """Read the lines of a run from a line on, in pieces of whole lines; also of a hidden run."""
        ...

    async def fleet_runs_to_export(self, tenant: str, after: str, limit: int) -> list[FleetRun]:
        """List all runs after that id, by id, including hidden runs."""
        ...

    async def fleet_size(self, tenant: str) -> int:
        """Return the number of KAHN runs of the tenant, without hidden runs."""
        ...


class FleetMaintenance(Protocol):
    """Retention of the KAHN runs of all tenants."""

    async def fleet_advance_spans(self, since: Since) -> None:
        """Move the rolling spans forward; subtract the runs that leave a span from its totals."""
        ...

    async def fleet_expired_runs(
        self, source: FleetRunSource, pushed_before: int, hidden_before: int, limit: int
    ) -> list[tuple[str, str, int, int | None]]:
        """List `(tenant, run_id, pushed_at, hidden_at)` of runs whose retention has ended.

        These are the runs of this source that were last pushed at or before `pushed_before`, and
        the runs of any source that were hidden at or before `hidden_before`.
        """
        ...

    async def fleet_hide(self, runs: Sequence[tuple[str, str]], now: int) -> None:
        """Hide these `(tenant, run_id)`, except in exports, and subtract them from the totals."""
        ...

    async def fleet_delete(self, runs: Sequence[tuple[str, str, str]]) -> None:
        """Delete these hidden runs, `(tenant, run_id, observed_run_id)`, with their observed runs.

        An observed run without lines is deleted too.
        """
        ...

    async def fleet_rebuild(
        self, tenant: str, observed_run_id: str, agents: Sequence[AgentRun]
    ) -> None:
        """Delete an observed run with its annotations, and queue it to be built from its lines.

        The task and the model of these agents replace the stored ones.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedProjection:
    """A run in the projection queue. A run that is queued again gets a new, higher place."""

    place: int
    tenant: str
    run_id: str


class Projections(Protocol):
    """Two queues: runs of this host, and observed runs.

    `Batch.projects`, `IngestBatch.observed_run_ids` and every new annotation enqueue runs. Reads of
    a queue cross tenants, and return tenants and ids only.
    """

    async def queued_projections(
        self, after: int, limit: int, *, observed: bool = False
    ) -> list[QueuedProjection]:
        """Return own or observed runs after that place, in the order of the queue."""
        ...

    async def queued_projections_of_tenant(
        self, tenant: str, after: int, limit: int
    ) -> list[QueuedProjection]:
        """Return observed runs of one tenant after that place, in the order of the queue."""
        ...

    async def is_projection_queued(self, tenant: str, run_id: str) -> bool:
        """Return whether this run of the tenant is in a queue."""
        ...

    async def remove_projections(self, done: Sequence[QueuedProjection]) -> None:
        """Remove these entries. A run that was queued again since keeps its new place."""
        ...
