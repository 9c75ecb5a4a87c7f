"""Responses of the fleet routes.

Names are those of KAHN, with underscores. An absent value is null.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from wopr.protocol.documents import UNSET, JsonObject, Unset

Window: TypeAlias = Literal["24h", "7d", "all"]
Sort: TypeAlias = Literal["runs", "severity"]
AgentOutcome: TypeAlias = Literal["converged", "partial", "escaped", "aborted"]
AgentRunOutcome: TypeAlias = AgentOutcome | Literal["unknown"]
Bucket: TypeAlias = Literal["green", "amber", "red"]

# The most agents or checkpoints of one response.
MAX_ROWS: Final = 2000


class FleetDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document of the fleet. All keys are always present."""


class ExpiringRun(FleetDocument, frozen=True, kw_only=True):
    """A pushed run that retention will delete, and when."""

    run_id: str
    drops_at: str


class Ingested(FleetDocument, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a push.

    `expiring` has the caller's pushed runs that retention deletes within seven days, the earliest
    first. It is absent if there are none. Another push of a run keeps the run.
    """

    accepted: int
    duplicate: int
    runs: list[str]
    expiring: list[ExpiringRun] = []


class Outcomes(FleetDocument, frozen=True, kw_only=True):
    """Counts of runs by outcome. `unknown` are runs without an end."""

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
    """Agents with a run in a window. `next_start` is present if there are more agents."""

    window: Window
    generated_at: str
    agents: list[AgentAggregate]
    next_start: int | Unset = UNSET


class CheckpointAggregate(FleetDocument, frozen=True, kw_only=True):
    """The audits of one checkpoint in a window, and how flaky the checkpoint is."""

    checkpoint_id: str
    total: int
    passed: int = msgspec.field(name="pass")
    failed: int = msgspec.field(name="fail")
    warned: int = msgspec.field(name="warn")
    flakiness: float
    bucket: Bucket
    last_fail_run_id: str | None


class Flakiness(FleetDocument, frozen=True, kw_only=True):
    """Checkpoints with a result in a window, the flakiest first.

    `next_start` is present if there are more checkpoints.
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

    The producer reports the `total_*` values at the end of the agent; they are null before. This
    host counts the `counted_*` values in the agent's lines up to its end. `audits` counts all
    audits that the agent signed, also after its end.

    `waiting_s` is how long the agent has been waiting for an operator, and `waiting_since` since
    when. If it waits in a run of this host, `openwop_interrupt_id` is its interrupt in the inbox.
    """

    run_id: str
    agent_id: str
    task: str
    model: str | None
    outcome: AgentRunOutcome
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
    """A KAHN run. `openwop_run_id` is the id of the same run under `/v1/runs`.

    `outcome` is that of a CI run. It is null for a run of agents: each agent has its own outcome.
    The run has ended with its `run_end`, or with the last of its agents.
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
    """A finding of the lifecycle checker about one line, counted from 1."""

    line: int
    code: str
    level: Literal["error", "warn", "info"]
    message: str


class RunSteps(FleetDocument, frozen=True, kw_only=True):
    """A page of the events of one KAHN run, and the current state of its agents.

    `findings` are those of the lifecycle checker. They are null if the page is not the whole run.
    """

    run: RunInFleet
    agents: list[AgentInRun]
    events: list[JsonObject]
    next_line: int | None
    findings: list[LineFinding] | None


class RateSnapshot(FleetDocument, frozen=True, kw_only=True):
    """The rate limit of a tenant's pushes. Reading it is not counted."""

    capacity: float
    refill_rate_per_sec: float
    remaining_tokens: float
    recent_throttled_count: int
    window_s: int


class TenantSelf(FleetDocument, frozen=True, kw_only=True):
    """The fleet data of the caller's tenant."""

    agent_archived_runs: int
    rate_limit: RateSnapshot | None
