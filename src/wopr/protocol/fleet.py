"""What the fleet's routes answer. Names are KAHN's own, with underscores; absent is null there."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from wopr.protocol.documents import JsonObject

Window: TypeAlias = Literal["24h", "7d", "all"]
Sort: TypeAlias = Literal["runs", "severity"]
AgentOutcome: TypeAlias = Literal["converged", "partial", "escaped", "aborted"]
Outcome: TypeAlias = AgentOutcome | Literal["unknown"]
Bucket: TypeAlias = Literal["green", "amber", "red"]


class FleetDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document of the fleet: all of its keys are always there."""


class Ingested(FleetDocument, frozen=True, kw_only=True):
    """What became of a push."""

    accepted: int
    duplicate: int
    runs: list[str]


class Outcomes(FleetDocument, frozen=True, kw_only=True):
    """How runs ended; they add up to all of them. Unknown are those without an end."""

    converged: int
    partial: int
    escaped: int
    aborted: int
    unknown: int


class AgentAggregate(FleetDocument, frozen=True, kw_only=True):
    """One agent's runs in a window."""

    agent_id: str
    run_count: int
    outcomes: Outcomes
    in_flight: int
    duration_p50_s: float | None
    duration_p95_s: float | None
    mean_convergence: float | None
    convergence_series: list[float]
    last_seen: str
    regressed: bool
    severity: int


class Aggregate(FleetDocument, frozen=True, kw_only=True):
    """All agents with a run in a window."""

    window: Window
    generated_at: str
    agents: list[AgentAggregate]


class CheckpointAggregate(FleetDocument, frozen=True, kw_only=True):
    """What one checkpoint said in a window, and how undecided it is."""

    checkpoint_id: str
    total: int
    passed: int = msgspec.field(name="pass")
    failed: int = msgspec.field(name="fail")
    warned: int = msgspec.field(name="warn")
    flakiness: float
    bucket: Bucket
    last_fail_run_id: str | None


class Flakiness(FleetDocument, frozen=True, kw_only=True):
    """All checkpoints with a result in a window, the most undecided first."""

    window: Window
    generated_at: str
    checkpoints: list[CheckpointAggregate]


class Audits(FleetDocument, frozen=True, kw_only=True):
    """The audits that an agent signed in a run."""

    passed: int = msgspec.field(name="pass")
    failed: int = msgspec.field(name="fail")
    warned: int = msgspec.field(name="warn")


class AgentInRun(FleetDocument, frozen=True, kw_only=True):
    """One agent in one run.

    `waiting_s` is how long it has been waiting for an operator, and `waiting_since` since when. One
    that waits in a run of this host can be answered: `openwop_interrupt_id` is in the inbox.
    """

    run_id: str
    agent_id: str
    task: str
    model: str | None
    outcome: Outcome
    started: str
    ended: str | None
    last_event: str
    duration_s: float
    total_steps: int
    total_tool_calls: int
    audits: Audits
    convergence_score: float | None
    last_status: str
    waiting_s: float | None
    waiting_since: str | None
    openwop_interrupt_id: str | None = None


class AgentRuns(FleetDocument, frozen=True, kw_only=True):
    """A page of an agent's runs, newest first."""

    agent_id: str
    window: Window
    runs: list[AgentInRun]
    next_cursor: str | None


class RunInFleet(FleetDocument, frozen=True, kw_only=True):
    """A KAHN run. `openwop_run_id` is the same run under `/v1/runs`.

    `outcome` is that of a CI run, and null for one of agents: those have each their own.
    """

    run_id: str
    kind: Literal["agent", "ci", "mixed"]
    source: Literal["push", "host"]
    started: str
    last_event: str
    ended: str | None
    outcome: str | None
    lines: int
    openwop_run_id: str


class FleetRuns(FleetDocument, frozen=True, kw_only=True):
    """A page of KAHN runs, newest first."""

    runs: list[RunInFleet]
    next_cursor: str | None


class RunSteps(FleetDocument, frozen=True, kw_only=True):
    """A page of what happened in one KAHN run, and its agents as they are now."""

    run: RunInFleet
    agents: list[AgentInRun]
    events: list[JsonObject]
    next_line: int | None


class RateSnapshot(FleetDocument, frozen=True, kw_only=True):
    """How much a tenant may push now. Reading it costs nothing."""

    capacity: float
    refill_rate_per_sec: float
    remaining_tokens: float
    recent_throttled_count: int
    window_s: int


class TenantSelf(FleetDocument, frozen=True, kw_only=True):
    """What the fleet holds of the caller's tenant."""

    agent_archived_runs: int
    rate_limit: RateSnapshot | None
