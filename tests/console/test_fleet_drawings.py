"""The drawings of the fleet's pages, without a host."""

from __future__ import annotations

import json

import pytest

from tests.support.kahn_lines import line
from wopr.console.fleet.charts import outcome_bar, sparkline, trend
from wopr.console.fleet.run import StatusLanes, rows_of_lines, status_lanes
from wopr.console.runs.timeline import Axis
from wopr.kahn.timestamps import from_millis
from wopr.protocol.documents import JsonObject
from wopr.protocol.resources.fleet import AgentInRun, Audits, Outcomes

NOON = 1_772_625_600_000


def outcomes(**counts: int) -> Outcomes:
    nothing = {"converged": 0, "partial": 0, "escaped": 0, "aborted": 0, "unknown": 0}
    return Outcomes(**(nothing | counts))


def run(score: float | None, seconds: float = 1.0, *, is_over: bool = True) -> AgentInRun:
    at = from_millis(NOON)
    return AgentInRun(
        run_id="r-1",
        agent_id="coder",
        task="fix it",
        model=None,
        outcome="converged" if is_over else "unknown",
        started=at,
        ended=at if is_over else None,
        last_event=at,
        duration_s=seconds,
        total_steps=None,
        total_tool_calls=None,
        total_audit_checkpoints=None,
        audits_passed=None,
        audits_failed=None,
        total_duration_s=None,
        counted_steps=1,
        counted_tool_calls=0,
        counted_audit_checkpoints=0,
        counted_audits_passed=0,
        counted_audits_failed=0,
        counted_duration_s=seconds,
        audits=Audits(passed=0, failed=0, warned=0),
        convergence_score=score,
        last_status="converged",
        waiting_s=None,
        waiting_since=None,
    )


def lanes(*moves: tuple[int, str, str]) -> StatusLanes:
    """Return the lanes of one agent that moved so many milliseconds after noon."""
    events: list[JsonObject] = [
        {"ts": from_millis(NOON + at), "event": "agent_transition", "agent_id": "coder"}
        | {"run_id": "r-1", "step": 0, "from": from_, "to": to}
        for at, from_, to in moves
    ]
    return status_lanes(events, rows_of_lines(events, 0, NOON), NOON + 100)


def test_a_bar_is_proportional_to_the_longest_one() -> None:
    bar = outcome_bar(outcomes(converged=2, aborted=1), most=6)

    assert [(round(part.x, 2), round(part.width, 2)) for part in bar.segments] == [
        (0, 33.33),
        (33.33, 16.67),
    ]


def test_a_run_among_very_many_stays_visible() -> None:
    [part] = outcome_bar(outcomes(escaped=1), most=1_000_000).segments

    assert part.width > 0.5


@pytest.mark.parametrize(
    ("score", "height", "bucket"), [(1.0, 4.0, "green"), (0.75, 8.0, "amber"), (0.0, 20.0, "red")]
)
def test_a_line_of_scores_has_a_fixed_axis_and_a_coloured_end(
    score: float, height: float, bucket: str
) -> None:
    alone, among = sparkline([score]), sparkline([0.2, 0.9, score])

    assert alone is not None
    assert among is not None
    assert alone.y == among.y == height
    assert alone.x == among.x
    assert (alone.bucket, among.bucket) == (bucket, bucket)


def test_without_scores_there_is_no_line() -> None:
    assert sparkline([]) is None


def test_a_trend_shows_ended_runs_oldest_first() -> None:
    drawn = trend([run(None, is_over=False), run(0.5, 4.0), run(1.0, 2.0)], [("p50", 3.0)])

    assert drawn is not None
    assert [column.dot for column in drawn.columns] == [8.0, 50.0]
    assert [column.bar_height for column in drawn.columns] == [20.0, 40.0]
    assert [line.label for line in drawn.quantiles] == ["p50 3.00 s"]
    assert drawn.columns[-1].x + drawn.columns[-1].width == 100


def test_an_agent_without_ended_runs_has_no_trend() -> None:
    assert trend([run(None, is_over=False)], []) is None


def test_a_lane_shows_each_status_for_its_duration() -> None:
    [lane] = lanes((0, "thinking", "tool_call"), (40, "tool_call", "tool_result")).lanes

    assert [(bar.x, bar.width) for bar in lane.bars][1:] == [(0.0, 40.0), (40.0, 60.0)]
    assert lane.label == "coder: thinking 0 ms, tool_call 40 ms, tool_result 60 ms"


def test_an_out_of_order_line_does_not_move_time_backwards() -> None:
    [lane] = lanes((50, "thinking", "reflect"), (20, "reflect", "thinking")).lanes

    assert all(bar.width > 0 for bar in lane.bars)
    assert lane.took == 50


def test_a_converged_agent_s_lane_ends_there() -> None:
    [lane] = lanes((0, "thinking", "reflect"), (30, "reflect", "converged")).lanes

    assert lane.took == 30


def test_a_lane_of_a_thousand_years_has_no_more_marks_than_another() -> None:
    assert len(Axis(0, 1000 * 365 * 86_400_000).ticks()) <= 9


@pytest.mark.parametrize(
    "name",
    [
        "agent_run_start",
        "agent_transition",
        "tool_invocation",
        "audit_checkpoint",
        "agent_run_end",
        "run_start",
        "node_transition",
        "node_attempt",
        "run_end",
    ],
)
def test_every_variant_has_a_description(name: str) -> None:
    [step] = rows_of_lines([json.loads(line(name, mine="kept", openwop_event_id="e"))], 3, NOON)

    assert step.line == 3
    assert step.title
    assert step.title != name
    assert step.more["mine"] == "kept"
    assert "openwop_event_id" not in step.more
