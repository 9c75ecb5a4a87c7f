"""What the fleet's routes answer. Names are KAHN's own, with underscores; absent is null there."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from wopr.protocol.documents import UNSET, JsonObject, Unset

Window: TypeAlias = Literal["24h", "7d", "all"]
Sort: TypeAlias = Literal["runs", "severity"]
AgentOutcome: TypeAlias = Literal["converged", "partial", "escaped", "aborted"]
Outcome: TypeAlias = AgentOutcome | Literal["unknown"]
Bucket: TypeAlias = Literal["green", "amber", "red"]

# The most agents or checkpoints of one answer.
MOST_ROWS: Final = 2000


class FleetDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document of the fleet: all of its keys are always there."""


class ExpiringRun(FleetDocument, frozen=True, kw_only=True):
    """A pushed run that retention will drop, and when."""

    run_id: str
    drops_at: str


class Ingested(FleetDocument, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a push.

    `expiring` names the caller's pushed runs that retention drops within seven days, the next ones
    first. It is left out when there are none. Another push of a run keeps it.
    """

    accepted: int
    duplicate: int
    runs: list[str]
    expiring: list[ExpiringRun] = []


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
    """Agents with a run in a window. `next_start` is there when there are more."""

    window: Window
    generated_at: str
    agents: list[AgentAggregate]
    next_start: int | Unset = UNSET


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
    """Checkpoints with a result in a window, the most undecided first.

    `next_start` is there when there are more.
    """

    window: Window
    generated_at: str
    checkpoints: list[CheckpointAggregate]
    next_start: int | Unset = UNSET


class Audits(FleetDocument, frozen=True, kw_only=True):
    """The audits that an agent signed in a run."""

    passed: int = msgspec.field(name="pass")
    failed: int = msgspec.field(name="fail")
    warned: int = msgspec.field(name="warn")


class AgentInRun(FleetDocument, frozen=True, kw_only=True):
    """One agent in one run.

    The totals are what its producer reported at its end, and null before that. What this host counted in
    the agent's lines up to its end, or so far, stands beside them under `counted_*`. `audits` are all
    audits that the agent signed, those after its end too.

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
    total_steps: int | None
    total_tool_calls: int | None
    total_audit_checkpoints: int | None
    audits_passed: int | None
    audits_failed: int | None
    total_duration_s: float | None
    counted_steps: int
    counted_tool_calls: int
    counted_audit_checkpoints: int
    counted_audits_passed: int
    counted_audits_failed: int
    counted_duration_s: float
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

    `outcome` is that of a CI run, and null for one of agents: those have each their own. It has ended
    with its `run_end`, or with the last of its agents.
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


class LineFinding(FleetDocument, frozen=True, kw_only=True):
    """What the lifecycle checker says about one line, counted from 1."""

    line: int
    code: str
    level: Literal["error", "warn", "info"]
    message: str


class RunSteps(FleetDocument, frozen=True, kw_only=True):
    """A page of what happened in one KAHN run, and its agents as they are now.

    `findings` are those of the lifecycle checker; null where the page is not the whole run.
    """

    run: RunInFleet
    agents: list[AgentInRun]
    events: list[JsonObject]
    next_line: int | None
    findings: list[LineFinding] | None


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
