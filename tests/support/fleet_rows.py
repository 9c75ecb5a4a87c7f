"""KAHN runs for a store's tests, and the fleet's views computed from all lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from wopr.kahn.events import AgentRunEnd, AuditCheckpoint, KahnEvent
from wopr.kahn.ingest import Ingest, LineWriter
from wopr.kahn.lines import encode_line, read_line
from wopr.kahn.new_lines import align_push, read_lines
from wopr.kahn.run_fold import PushContext
from wopr.kahn.statistics import (
    QUANTILES,
    SERIES_LENGTH,
    agent_rows,
    checkpoint_rows,
    convergence_series,
    flakiness,
    flakiness_bucket,
    interpolate,
    is_regressed,
    mean_from_units,
    severity,
    window_start,
    window_starts,
)
from wopr.kahn.statistics import WINDOWS as LENGTHS
from wopr.kahn.timestamps import from_millis, millis, read_ts
from wopr.protocol.documents import Unset
from wopr.protocol.resources.fleet import (
    AgentAggregate,
    CheckpointAggregate,
    Outcomes,
    Sort,
    Window,
)
from wopr.store.port import Store
from wopr.store.port.fleet import SCORE_UNITS, IngestBatch, NewLines, TotalsPage

# A Wednesday.
NOON = 1_772_625_600_000
HOUR = 3_600_000
DAY = 24 * HOUR
WINDOWS: tuple[Window, ...] = ("24h", "7d", "all")


def line(run_id: str, event: str, at: int = NOON, **fields: Any) -> bytes:
    """Return a line with its time in milliseconds."""
    return encode_line({"ts": from_millis(at), "run_id": run_id, "event": event, **fields})


def start(run_id: str, agent_id: str = "coder", at: int = NOON) -> bytes:
    return line(run_id, "agent_run_start", at, agent_id=agent_id, task="fix it")


def moved(run_id: str, step: int, to: str, agent_id: str = "coder", at: int = NOON) -> bytes:
    named = {"agent_id": agent_id, "step": step, "from": "thinking", "to": to}
    return line(run_id, "agent_transition", at, **named)


def audit(
    run_id: str, checkpoint_id: str, result: str, agent_id: str | None = None, at: int = NOON
) -> bytes:
    return line(
        run_id,
        "audit_checkpoint",
        at,
        agent_id=agent_id,
        checkpoint_id=checkpoint_id,
        result=result,
        duration_s=0.5,
    )


def end(
    run_id: str,
    outcome: str = "converged",
    duration_s: float = 1.5,
    score: float | None = None,
    agent_id: str = "coder",
    at: int = NOON,
) -> bytes:
    totals = dict.fromkeys(
        (
            "total_steps",
            "total_tool_calls",
            "total_audit_checkpoints",
            "audits_passed",
            "audits_failed",
        ),
        0,
    )
    scored = {} if score is None else {"convergence_score": score}
    return line(
        run_id,
        "agent_run_end",
        at,
        agent_id=agent_id,
        outcome=outcome,
        **totals,
        total_duration_s=duration_s,
        **scored,
    )


def body(lines: Iterable[bytes]) -> bytes:
    return b"".join(each + b"\n" for each in lines)


async def push(store: Store, tenant: str, lines: Sequence[bytes], now: int = NOON) -> int:
    """Push lines like a producer; return how many were new."""
    return (await Ingest(LineWriter(store, lambda: now)).push(tenant, body(lines))).accepted


async def new_lines(store: Store, tenant: str, lines: Sequence[bytes]) -> tuple[NewLines, ...]:
    """Return the new lines of a push, without writing them."""
    parsed = read_lines(enumerate(lines, 1))
    held = await store.fleet_stored_runs(tenant, list(parsed.runs))
    aligned = align_push(parsed, held, PushContext(at=NOON))
    return aligned.new_lines


def batch_of(found: tuple[NewLines, ...], now: int = NOON) -> IngestBatch:
    return IngestBatch(new_lines=found, since=window_starts(now))


async def held_lines(store: Store, tenant: str, run_id: str, first: int = 0) -> list[bytes]:
    pieces = [piece async for piece in store.fleet_lines(tenant, run_id, first)]
    return b"".join(pieces).splitlines()


async def aggregate(
    store: Store, tenant: str, window: Window = "all", now: int = NOON, sort: Sort = "runs"
) -> list[AgentAggregate]:
    totals = await store.fleet_totals(
        tenant,
        window,
        window_starts(now),
        TotalsPage(limit=1000, sort=sort),
        quantiles=QUANTILES,
        scores=SERIES_LENGTH,
    )
    return agent_rows(totals, start=window_start(window, now), sort=sort)


async def checkpoints(
    store: Store, tenant: str, window: Window = "all", now: int = NOON
) -> list[CheckpointAggregate]:
    return checkpoint_rows(
        await store.fleet_checkpoints(tenant, window, window_starts(now), limit=1000)
    )


# Computed from all lines


class _AgentRun:
    """The data that the views need of one agent's lines in one run."""

    def __init__(self, run_id: str, events: Sequence[KahnEvent]) -> None:
        ends = [event for event in events if isinstance(event, AgentRunEnd)]
        self.run_id = run_id
        self.last_event = read_ts(max(event.ts for event in events))
        self.end = ends[0] if ends else None

    @property
    def order(self) -> tuple[str, str]:
        assert self.end is not None
        return self.end.ts, self.run_id


def _moment(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC).replace(tzinfo=None)


def percentile(values: Sequence[float], quantile: float) -> float | None:
    """Interpolate between the two values nearest to a quantile; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    below = math.floor((len(ordered) - 1) * quantile)
    above = min(below + 1, len(ordered) - 1)
    return interpolate(ordered[below], ordered[above], len(ordered), quantile)


def mean(scores: Sequence[float]) -> float | None:
    """Return the mean of scores; None without scores."""
    return mean_from_units(sum(round(score * SCORE_UNITS) for score in scores), len(scores))


def is_in_window(last_event: datetime, window: Window, now: datetime) -> bool:
    """Return whether the last event of a run is not older than the window."""
    length = LENGTHS[window]
    return length is None or now - last_event <= length


def is_in_flight(last_event: datetime, now: datetime) -> bool:
    """Return whether an agent without an end counts as active."""
    return is_in_window(last_event, "24h", now)


def expected_aggregate(
    runs: Mapping[str, Sequence[bytes]], window: Window, now: int
) -> list[AgentAggregate]:
    """Compute the rows of the agents' view from all lines."""
    agents: dict[str, list[_AgentRun]] = {}
    for run_id, lines in runs.items():
        events = [read_line(each).event for each in lines]
        acting = {
            name: None
            for event in events
            if (name := getattr(event, "agent_id", None)) is not None
            and not isinstance(event, AuditCheckpoint)
        }
        for agent_id in acting:
            own = _own(events, agent_id)
            agents.setdefault(agent_id, []).append(_AgentRun(run_id, own))
    rows = [
        row
        for agent_id in sorted(agents)
        if (row := _expected_row(agent_id, agents[agent_id], window, _moment(now))) is not None
    ]
    return sorted(rows, key=lambda row: -row.run_count)


def _own(events: Sequence[KahnEvent], agent_id: str) -> list[KahnEvent]:
    """Return an agent's lines from its first own work on."""
    own = [event for event in events if getattr(event, "agent_id", None) == agent_id]
    while isinstance(own[0], AuditCheckpoint):
        own.pop(0)
    return own


def _expected_row(
    agent_id: str, runs: Sequence[_AgentRun], window: Window, now: datetime
) -> AgentAggregate | None:
    inside = [run for run in runs if is_in_window(run.last_event, window, now)]
    if not inside:
        return None
    ended = sorted((run for run in inside if run.end), key=lambda run: run.order)
    ends = [run.end for run in ended if run.end is not None]
    count = {
        name: sum(each.outcome == name for each in ends)
        for name in ("converged", "partial", "escaped", "aborted")
    }
    scores = [
        each.convergence_score for each in ends if not isinstance(each.convergence_score, Unset)
    ]
    in_flight = sum(run.end is None and is_in_flight(run.last_event, now) for run in runs)
    regressed = _expected_regressed(runs, window, now)
    last = max(run.last_event for run in runs)
    half, most = QUANTILES
    return AgentAggregate(
        agent_id=agent_id,
        run_count=len(inside),
        outcomes=Outcomes(**count, unknown=len(inside) - len(ends)),
        in_flight=in_flight,
        duration_p50_s=percentile([each.total_duration_s for each in ends], half),
        duration_p95_s=percentile([each.total_duration_s for each in ends], most),
        mean_convergence=mean(scores),
        convergence_series=convergence_series(scores),
        last_seen=f"{last.isoformat(timespec='milliseconds')}Z",
        regressed=regressed,
        severity=severity(
            regressed=regressed,
            escaped=count["escaped"],
            aborted=count["aborted"],
            partial=count["partial"],
            in_flight=in_flight,
        ),
    )


def _expected_regressed(runs: Sequence[_AgentRun], window: Window, now: datetime) -> bool:
    ended = sorted((run for run in runs if run.end), key=lambda run: run.order)
    outcomes = [run.end.outcome for run in ended if run.end is not None]
    return is_regressed(outcomes) and is_in_window(ended[-1].last_event, window, now)


def expected_checkpoints(
    runs: Mapping[str, Sequence[bytes]], window: Window, now: int
) -> list[CheckpointAggregate]:
    """Compute the rows of the audits' view from all lines."""
    found: dict[str, list[tuple[int, str, str]]] = {}
    for run_id, lines in runs.items():
        for raw in lines:
            event = read_line(raw).event
            if isinstance(event, AuditCheckpoint) and is_in_window(
                read_ts(event.ts), window, _moment(now)
            ):
                entry = (millis(event.ts), run_id, event.result)
                found.setdefault(event.checkpoint_id, []).append(entry)
    rows = [_expected_checkpoint(name, results) for name, results in found.items()]
    return sorted(rows, key=lambda row: (-row.flakiness, -row.total, row.checkpoint_id))


def _expected_checkpoint(name: str, results: Sequence[tuple[int, str, str]]) -> CheckpointAggregate:
    passed, failed, warned = (
        sum(result == wanted for _, _, result in results) for wanted in ("pass", "fail", "warn")
    )
    fails = [(at, run_id) for at, run_id, result in results if result == "fail"]
    value = flakiness(passed, failed)
    return CheckpointAggregate(
        checkpoint_id=name,
        total=len(results),
        passed=passed,
        failed=failed,
        warned=warned,
        flakiness=value,
        bucket=flakiness_bucket(value),
        last_fail_run_id=max(fails)[1] if fails else None,
    )
