from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from tests.fleet.builders import END_OF_DEMO, grave, line, move, read
from wopr.fleet.archive import append_lines, rebuild_index, write_run, write_summary
from wopr.fleet.demo import PROFILES, REGRESSED, demo_runs
from wopr.fleet.events import AgentOutcome, AgentRunEnd
from wopr.fleet.statistics import is_regressed
from wopr.fleet.summary import is_complete, summarise


def test_the_same_seed_gives_the_same_fleet_and_another_another() -> None:
    first, again, other = (
        list(demo_runs(until=END_OF_DEMO, days=2, seed=seed)) for seed in (1, 1, 2)
    )

    assert first == again
    assert first != other


@pytest.mark.parametrize("days", [1, 14])
def test_every_demo_run_is_sound_and_lies_in_its_days(days: int) -> None:
    runs = list(demo_runs(until=END_OF_DEMO, days=days, seed=3))
    first = (END_OF_DEMO - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%S.000Z")

    assert len({run.run_id for run in runs}) == len(runs)
    for run in runs:
        assert grave(run.lines) == []
        for each in read(run.lines):
            assert each.event.run_id == run.run_id
            assert first <= each.event.ts <= END_OF_DEMO.strftime("%Y-%m-%dT%H:%M:%S.000Z")


@pytest.mark.parametrize("seed", range(5))
def test_exactly_one_agent_regresses_and_one_run_stays_open(seed: int) -> None:
    ended: dict[str, list[tuple[str, AgentOutcome]]] = {each.agent_id: [] for each in PROFILES}
    open_runs = 0

    for run in demo_runs(until=END_OF_DEMO, days=14, seed=seed):
        last = read(run.lines)[-1].event
        if isinstance(last, AgentRunEnd):
            ended[last.agent_id].append((last.ts, last.outcome))
        else:
            open_runs += 1

    regressed = [
        agent for agent, ends in ended.items() if is_regressed([o for _, o in sorted(ends)])
    ]
    assert regressed == [REGRESSED]
    assert open_runs == 1
    outcomes = Counter(outcome for ends in ended.values() for _, outcome in ends)
    assert outcomes["converged"] > outcomes["partial"] > 0
    assert outcomes["aborted"] > 0


def test_an_archive_has_a_log_per_run_a_summary_per_ended_run_and_an_index(tmp_path: Path) -> None:
    runs = list(demo_runs(until=END_OF_DEMO, days=1, seed=0))

    for run in runs:
        write_run(tmp_path, run.run_id, run.lines)
    rebuild_index(tmp_path)

    for run in runs:
        log = tmp_path / "runs" / run.run_id / "transitions.jsonl"
        assert log.read_bytes() == b"".join(each + b"\n" for each in run.lines)
    summaries = list((tmp_path / "runs").glob("*/summary.json"))
    index = json.loads((tmp_path / "index.json").read_bytes())
    assert len(summaries) == len(runs) - 1
    assert [each["started"] for each in index["runs"]] == sorted(
        json.loads(path.read_bytes())["started"] for path in summaries
    )
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "index.json"}


def test_a_summary_is_written_once(tmp_path: Path) -> None:
    append_lines(tmp_path, "r-1", [line("agent_run_start")])
    write_summary(tmp_path, {"run_id": "r-1"})

    with pytest.raises(FileExistsError):
        write_summary(tmp_path, {"run_id": "r-1"})


def test_a_summary_says_what_became_of_each_agent() -> None:
    lines = [
        line("agent_run_start", ts="2026-01-01T00:00:00.000Z"),
        line("agent_run_start", agent_id="other", ts="2026-01-01T00:00:01.000Z"),
        move(4, "thinking", "tool_call", "other", ts="2026-01-01T00:00:03.000Z"),
        line("audit_checkpoint", agent_id=None, ts="2026-01-01T00:00:03.000Z"),
        line("audit_checkpoint", result="warn", ts="2026-01-01T00:00:03.000Z"),
        line("agent_run_end", ts="2026-01-01T00:00:04.000Z"),
        line("audit_checkpoint", ts="2026-01-01T00:00:05.500Z"),
    ]

    summary = summarise(each.event for each in read(lines))

    assert not is_complete(summary)
    assert summary == {
        "run_id": "r-1",
        "kind": "agent",
        "started": "2026-01-01T00:00:00.000Z",
        "duration_s": 5.5,
        "agents": [
            {
                "agent_id": "coder",
                "task": "fix it",
                "model": "large",
                "outcome": "partial",
                "started": "2026-01-01T00:00:00.000Z",
                "ended": "2026-01-01T00:00:04.000Z",
                "duration_s": 3.5,
                "total_steps": 1,
                "total_tool_calls": 1,
                "audits": {"pass": 0, "fail": 0, "warn": 1},
                "convergence_score": 0.5,
                "last_status": "thinking",
            },
            {
                "agent_id": "other",
                "task": "fix it",
                "model": "large",
                "outcome": "unknown",
                "started": "2026-01-01T00:00:01.000Z",
                "duration_s": 2.0,
                "total_steps": 5,
                "total_tool_calls": 0,
                "audits": {"pass": 0, "fail": 0, "warn": 0},
                "last_status": "tool_call",
            },
        ],
    }
    assert summarise([]) == {}
