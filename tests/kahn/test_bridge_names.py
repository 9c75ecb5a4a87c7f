"""Names and annotations in KAHN lines."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from tests.support.kahn_lines import OTHER, agent_log, errors_and_warnings
from wopr.kahn.bridge.facts import to_agent_id, to_checkpoint_id, to_run_id
from wopr.kahn.bridge.projection import project


@pytest.mark.parametrize("run_id", ["0190-aB_c", "a" * 64, "9"])
def test_a_run_keeps_a_valid_name(run_id: str) -> None:
    assert to_run_id(run_id) == run_id


@pytest.mark.parametrize(
    ("run_id", "kept"),
    [
        ("a" * 65, "a" * 55),
        ("_-run", "run"),
        ("a b//c", "a-b-c"),
        ("///", "run"),
        ("run\n", "run-"),
        ("ü" + "b" * 99, "b" * 55),
    ],
)
def test_a_run_with_an_invalid_name_gets_one_with_its_hash(run_id: str, kept: str) -> None:
    assert to_run_id(run_id) == f"{kept}-{sha256(run_id.encode()).hexdigest()[:8]}"


@pytest.mark.parametrize(
    ("agent_id", "wire"),
    [
        ("coder", "coder"),
        ("host:mock-agent:n1", "host:mock-agent:n1"),
        ("vendor.acme.support.tier1", "vendor:acme:support:tier1"),
        ("core.conformance.mock-agent", "core:conformance:mock-agent"),
        ("a" * 64, "a" * 64),
    ],
)
def test_an_agent_keeps_its_name_except_for_dots(agent_id: str, wire: str) -> None:
    assert to_agent_id(agent_id) == wire


@pytest.mark.parametrize(
    ("agent_id", "kept"),
    [
        ("a:b", "a:b"),
        ("host.x", "host-x"),
        ("Coder", "coder"),
        ("-a", "a"),
        ("...", "agent"),
        ("coder\n", "coder-"),
        ("a" * 65, "a" * 55),
        ("a." * 33, "a-" * 27 + "a"),
    ],
)
def test_an_agent_with_an_invalid_name_gets_one_with_its_hash(agent_id: str, kept: str) -> None:
    assert to_agent_id(agent_id) == f"{kept}-{sha256(agent_id.encode()).hexdigest()[:8]}"


def test_different_agents_never_get_one_name() -> None:
    names = ["a.b", "a:b", "A.b", "a-b", "host.a", "host:a", "Host:a", "a.b.", "a..b", "ab", "a/b"]

    assert len({to_agent_id(name) for name in names}) == len(names)


def test_a_checkpoint_name_is_cleaned_and_cut() -> None:
    assert to_checkpoint_id("eval:Größe & mehr") == "eval:gr-e-mehr"
    assert to_checkpoint_id("x" * 200) == "x" * 128


def annotation(
    signal: dict[str, Any], number: int = 1, target: dict[str, str] | None = None
) -> dict[str, Any]:
    return {
        "annotationId": f"a{number}",
        "target": {"runId": "run-1", **(target or {})},
        "signal": signal,
        "actor": {"principalRef": "alice"},
        "note": "secret",
        "createdAt": "2026-03-05T00:00:00Z",
    }


@pytest.mark.parametrize(
    ("signal", "checkpoint", "result"),
    [
        ({"kind": "rating", "rating": 1}, "feedback:rating", "fail"),
        ({"kind": "rating", "rating": 2}, "feedback:rating", "fail"),
        ({"kind": "rating", "rating": 3}, "feedback:rating", "warn"),
        ({"kind": "rating", "rating": 4}, "feedback:rating", "pass"),
        ({"kind": "rating", "rating": 5}, "feedback:rating", "pass"),
        ({"kind": "flag"}, "feedback:flag", "fail"),
        ({"kind": "correction", "correction": "secret"}, "feedback:correction", "fail"),
        ({"kind": "label", "label": "Well Done"}, "feedback:label:well-done", "warn"),
    ],
)
def test_an_annotation_is_an_audit_without_text(
    signal: dict[str, Any], checkpoint: str, result: str
) -> None:
    log = agent_log()
    log.add("run.completed", None)

    line = log.lines(annotations=[annotation(signal)])[-1]

    shown: dict[str, Any] = {name: signal[name] for name in ("rating", "label") if name in signal}
    assert line == {
        "ts": "2026-03-05T00:00:00.000Z",
        "run_id": "run-1",
        "event": "audit_checkpoint",
        "agent_id": None,
        "checkpoint_id": checkpoint,
        "result": result,
        "duration_s": 0.0,
        "evidence": {"annotation_id": "a1", "actor": "alice", **shown},
    }


def test_annotations_wait_for_the_end_and_are_in_order() -> None:
    log = agent_log()
    given = [annotation({"kind": "flag"}, number) for number in (3, 1, 2)]
    given[0]["createdAt"] = "2026-03-04T23:00:00-01:00"
    given[1]["createdAt"] = "2026-03-05T00:00:00.000001Z"

    before = log.lines(annotations=given)
    log.add("run.completed", None)
    after = log.lines(annotations=given)[-3:]

    assert len(before) == 1
    assert [each["evidence"]["annotation_id"] for each in after] == ["a2", "a3", "a1"]


@pytest.mark.parametrize(
    ("target", "agent_id"),
    [
        ({}, None),
        ({"eventId": "e2"}, "vendor:acme:two"),
        ({"eventId": "e0"}, None),
        ({"nodeId": "n1"}, "vendor:acme:one"),
        ({"nodeId": "n9"}, None),
        ({"eventId": "e2", "nodeId": "n1"}, "vendor:acme:two"),
    ],
)
def test_an_annotation_is_signed_by_the_agent_of_its_target(
    target: dict[str, str], agent_id: str | None
) -> None:
    log = agent_log()
    log.add("agent.decided", "n2", **OTHER, decision=1)
    log.add("run.completed", None)
    given = [annotation({"kind": "flag"}, target=target)]

    assert log.lines(annotations=given)[-1]["agent_id"] == agent_id
    assert errors_and_warnings(project(log.events, annotations=given)) == []
