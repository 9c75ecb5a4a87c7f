"""The laws of the bridge (section 14.1), as one function over a log."""

from __future__ import annotations

import json
from collections import Counter

import msgspec

from tests.kahn.random_logs import SECRET, RandomLog
from tests.support.kahn_lines import errors_and_warnings
from wopr.kahn.bridge.agent import TERMINAL_TYPES
from wopr.kahn.bridge.projection import Projector, project
from wopr.kahn.lines import read_line
from wopr.protocol.documents import encode
from wopr.protocol.events import RunEvent


def hold_laws(log: RandomLog) -> list[bytes]:
    """Assert that every law holds for a log and each of its prefixes; return its lines."""
    lines = list(project(log.events, log.threshold, log.annotations))
    _is_pure(log, lines)
    _is_prefix_stable(log, lines)
    _is_valid(lines)
    _has_no_new_content(lines)
    _gives_each_agent_one_end(log, lines)
    return lines


def _is_pure(log: RandomLog, lines: list[bytes]) -> None:
    stored = [msgspec.json.decode(encode(event), type=RunEvent) for event in log.events]

    assert list(project(stored, log.threshold, reversed(log.annotations))) == lines


def _is_prefix_stable(log: RandomLog, lines: list[bytes]) -> None:
    live = Projector(log.threshold)
    seen: list[bytes] = []
    for length, event in enumerate(log.events, 1):
        seen += live.feed(event)
        assert list(project(log.events[:length], log.threshold)) == seen
        assert lines[: len(seen)] == seen
        assert live.is_over or live.finish(log.annotations) == []
    assert seen + live.finish(log.annotations) == lines


def _is_valid(lines: list[bytes]) -> None:
    for line in lines:
        read_line(line)
    # The checker never looks back, so no prefix has a finding that the whole log has not.
    assert errors_and_warnings(lines) == []


def _has_no_new_content(lines: list[bytes]) -> None:
    assert SECRET.encode() not in b"\n".join(lines)


def _gives_each_agent_one_end(log: RandomLog, lines: list[bytes]) -> None:
    events = [json.loads(line) for line in lines]
    starts = [each["agent_id"] for each in events if each["event"] == "agent_run_start"]
    ends = [each for each in events if each["event"] == "agent_run_end"]
    is_over = any(event.type in TERMINAL_TYPES for event in log.events)

    assert max(Counter(starts).values(), default=0) <= 1
    assert [each["agent_id"] for each in ends] == (starts if is_over else [])
    for each in ends:
        assert (each["outcome"] == "converged") is (each.get("convergence_score") == 1.0)
        assert each["outcome"] in ("converged", "partial") or "convergence_score" not in each
