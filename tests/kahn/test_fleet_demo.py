from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.kahn_lines import END_OF_DEMO, TS, errors_and_warnings, line, move, read
from wopr.kahn.archive import append_lines, rebuild_index, write_run, write_summary
from wopr.kahn.demo.generator import PROFILES, REGRESSED_AGENT, demo_runs
from wopr.kahn.events import AgentRunEnd
from wopr.kahn.lines import read_line
from wopr.kahn.statistics import is_regressed
from wopr.kahn.summary import is_complete, summarise
from wopr.protocol.documents import UNSET
from wopr.protocol.resources.fleet import AgentOutcome


def test_the_same_seed_gives_the_same_fleet_and_another_seed_another() -> None:
    first, again, other = (
        list(demo_runs(until=END_OF_DEMO, days=2, seed=seed)) for seed in (1, 1, 2)
    )

    assert first == again
    assert first != other


@pytest.mark.parametrize("days", [1, 14])
def test_every_demo_run_is_valid_and_within_its_days(days: int) -> None:
    runs = list(demo_runs(until=END_OF_DEMO, days=days, seed=3))
    first = (END_OF_DEMO - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%S.000Z")

    assert len({run.run_id for run in runs}) == len(runs)
    for run in runs:
        assert errors_and_warnings(run.lines) == []
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
    assert regressed == [REGRESSED_AGENT]
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


def test_a_summary_shows_the_outcome_of_each_agent() -> None:
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


def ci_run(*ends: bytes) -> list[bytes]:
    result = {"cmd": "make", "rc": 0, "duration_s": 0.5}
    attempt = {"done_when_results": [result], "duration_s": 1}
    return [
        line("run_start", total_nodes=2),
        line("node_transition", node_id="build", attempt=1),
        line("node_attempt", node_id="build", attempt=1, backoff_s=UNSET, **attempt),
        line("node_attempt", node_id="build", attempt=2, **attempt | {"converged": True}),
        line("node_transition", node_id="build", to="done", attempt=UNSET, **{"from": "running"}),
        line("node_transition", node_id="ship", to="failed", attempt=UNSET, **{"from": "running"}),
        *ends,
    ]


def test_an_archive_of_a_ci_run_has_its_graph_s_summary(tmp_path: Path) -> None:
    ended = line(
        "run_end",
        outcome="partial",
        done=1,
        failed=1,
        blocked=0,
        exit_code=UNSET,
        total_attempts=UNSET,
        flake_retries=UNSET,
    )

    write_run(tmp_path, "r-1", ci_run(ended))

    summary = json.loads((tmp_path / "runs" / "r-1" / "summary.json").read_bytes())
    assert summary == {
        "run_id": "r-1",
        "started": TS,
        "ended": TS,
        "duration_s": 9.25,
        "outcome": "partial",
        "total_nodes": 2,
        "done": 1,
        "failed": 1,
        "blocked": 0,
        "total_attempts": 2,
        "flake_retries": 1,
        "exit_code": 1,
        "failed_nodes": ["ship"],
        "node_attempts": {"build": 2},
    }


def test_the_summary_of_a_clean_ci_run_writes_its_exit_code(tmp_path: Path) -> None:
    clean = line("run_end", outcome="clean", exit_code=UNSET, total_attempts=5, flake_retries=3)

    summary = summarise(read_line(each).event for each in ci_run(clean))

    assert summary["exit_code"] == 0
    assert (summary["total_attempts"], summary["flake_retries"]) == (5, 3)


def test_no_run_in_progress_has_a_summary_on_disk(tmp_path: Path) -> None:
    write_run(tmp_path, "r-1", ci_run())

    assert not (tmp_path / "runs" / "r-1" / "summary.json").exists()


def test_a_run_of_agents_ends_with_the_last_of_them_and_not_with_a_late_check() -> None:
    late = "2026-03-04T06:00:00.000Z"
    lines = [line("agent_run_start"), line("agent_run_end"), line("audit_checkpoint", ts=late)]

    summary = summarise(read_line(each).event for each in lines)

    assert (summary["ended"], summary["duration_s"]) == (TS, 0)
