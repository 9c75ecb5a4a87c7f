"""The conversion of KAHN lines to the log of an observed run, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kahn.random_logs import random_log
from tests.support.kahn_lines import AGENT, SAMPLES, fields, line, move, read
from wopr.kahn.bridge.projection import project
from wopr.kahn.lines import read_line
from wopr.kahn.observed.events import AnnotationDraft, Draft, EventDraft, Observer, observe
from wopr.protocol.documents import UNSET, encode
from wopr.protocol.events import RunEvent, is_known_type
from wopr.protocol.events.payloads import PAYLOADS

START = line("agent_run_start")
END = line("agent_run_end", outcome="converged", convergence_score=1)


def stamped(batches: Iterable[Sequence[Draft]]) -> list[RunEvent]:
    """Return the events that a host makes of the drafts, stored and read again."""
    log: list[RunEvent] = []
    for batch in batches:
        ids: dict[int, str] = {}
        for place, draft in enumerate(batch):
            if isinstance(draft, EventDraft):
                ids[place] = f"e{len(log)}"
                event = RunEvent(
                    event_id=ids[place],
                    run_id="observed",
                    type=draft.type,
                    payload=draft.payload,
                    timestamp=draft.timestamp,
                    sequence=len(log),
                    node_id=draft.node_id or UNSET,
                    causation_id=UNSET if draft.cause is None else ids[draft.cause],
                )
                log.append(msgspec.json.decode(encode(event), type=RunEvent))
    return log


def observed(lines: Iterable[bytes]) -> list[RunEvent]:
    return stamped(observe(read(lines)))


def types(lines: Iterable[bytes]) -> list[str]:
    return [event.type for event in observed(lines)]


def payload_of(lines: Iterable[bytes], event_type: str) -> dict[str, Any]:
    found = [event.payload for event in observed(lines) if event.type == event_type]
    payload: dict[str, Any] = found[-1]
    return payload


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_lines_are_restored_exactly_and_the_log_is_valid(chance: Random) -> None:
    log = random_log(chance)
    lines = list(project(log.events, log.threshold, log.annotations))
    lines += [line(name, own=chance.random()) for name in SAMPLES if chance.random() < 0.3]

    between = observed(lines)

    assert list(project(between)) == lines
    assert [event.timestamp for event in between] == sorted(e.timestamp for e in between)
    for event in between:
        assert is_known_type(event.type)
        if event.type in PAYLOADS:
            msgspec.convert(event.payload, PAYLOADS[event.type])


@pytest.mark.parametrize(
    "raw",
    [
        b'  {"run_id":"r","event":"run_start", "ts":"2026-01-01T00:00:00.000Z","total_nodes":1 }',
        line("run_start", own=1.0)[:-1] + b',"more":1.00,"e":1E2}',
        line("run_start")[:-1] + b',"u":"\\u00fc","n":123456789012345678901234567890}',
        line("run_start")[:-1] + b',"twice":1,"twice":2}\r',
        line("run_start", kahn_line="mine"),
        line("run_start", kahn_line=None),
        line("tool_invocation", openwop_call_id=[1]),
    ],
)
def test_a_line_is_restored_byte_for_byte_however_it_was_written(raw: bytes) -> None:
    assert list(project(observed([raw]))) == [raw]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_tools_calls_pauses_and_verdicts_survive_the_round_trip(chance: Random) -> None:
    log = random_log(chance, junk=0)
    there = [json.loads(each) for each in project(log.events, log.threshold)]

    back = observed(project(log.events, log.threshold))

    def of(event_type: str, *names: str) -> list[list[Any]]:
        found = [event.payload for event in back if event.type == event_type]
        return [[payload[name] for name in names] for payload in found]

    starts = [each for each in there if each["event"] == "agent_run_start"]
    calls = [each for each in there if each["event"] == "tool_invocation"]
    audits = [each for each in there if each["event"] == "audit_checkpoint" and each["agent_id"]]
    pauses = [each for each in there if each.get("to") == "blocked-on-clarification"]
    assert [[each["openwop_agent_id"]] for each in starts] == [
        [agent["agentId"]] for (agent,) in of("node.started", "agent")
    ]
    assert of("agent.toolReturned", "toolName", "status", "durationMs") == [
        [each["tool_name"], "ok" if each["ok"] else "error", round(each["duration_s"] * 1000)]
        for each in calls
    ]
    assert len(of("agent.verified")) == len(audits)
    assert len(of("node.suspended")) == len(pauses)


def test_a_log_begins_with_its_start_and_each_line_precedes_its_derived_events() -> None:
    start, held, node = observed([START])

    assert (start.type, start.payload) == (
        "run.started",
        {"workflowId": "kahn.observed", "metadata": {"source": "kahn", "runId": "r-1"}},
    )
    assert (held.type, held.payload) == ("kahn.agent_run_start", fields("agent_run_start"))
    assert (node.type, node.causation_id, node.node_id) == ("node.started", held.event_id, AGENT)
    assert node.payload["agent"] == {"agentId": "host:kahn:coder"}


def test_an_agent_has_the_name_given_in_its_start() -> None:
    lines = [line("agent_run_start", openwop_agent_id="vendor.acme.one")]

    assert payload_of(lines, "node.started")["agent"] == {"agentId": "vendor.acme.one"}


def test_a_tool_call_causes_its_return() -> None:
    log = observed([START, line("tool_invocation")])

    held, called, returned = log[-3:]
    assert (called.type, called.causation_id) == ("agent.toolCalled", held.event_id)
    assert (returned.type, returned.causation_id) == ("agent.toolReturned", called.event_id)
    assert called.payload["callId"] == returned.payload["callId"]
    assert called.payload["inputs"] == "needle"
    assert returned.payload["error"] == {"code": "tool_error", "message": "no such file"}
    assert (returned.payload["status"], returned.payload["durationMs"]) == ("error", 250)


def test_only_the_statuses_relevant_to_a_run_become_events() -> None:
    lines = [
        START,
        move(0, "thinking", "blocked-on-clarification"),
        move(0, "blocked-on-clarification", "thinking"),
        move(1, "thinking", "tool_call"),
        move(1, "reflect", "thinking", reason="again"),
        move(2, "thinking", "failed", reason="lost"),
    ]

    standard = [event for event in observed(lines) if not event.type.startswith("kahn.")]

    assert [event.type for event in standard] == [
        *("run.started", "node.started", "node.suspended", "node.resumed"),
        *("agent.reasoned", "node.failed"),
    ]
    suspended, resumed, reasoned, failed = (event.payload for event in standard[2:])
    assert suspended["kind"] == "clarification"
    assert suspended["interruptId"] == resumed["interruptId"]
    assert (reasoned["reasoning"], reasoned["verbosity"]) == ("again", "summary")
    assert failed["error"] == {"code": "agent_failed", "message": "lost"}


@pytest.mark.parametrize(
    ("result", "verdict"), [("pass", "pass"), ("fail", "fail"), ("warn", "revise")]
)
def test_a_check_of_an_agent_is_a_verdict(result: str, verdict: str) -> None:
    payload = payload_of([START, line("audit_checkpoint", result=result)], "agent.verified")

    assert payload == {
        "agentId": "host:kahn:coder",
        "target": "tests:unit",
        "verdict": verdict,
        "criteria": ["tests:unit"],
    }


@pytest.mark.parametrize(
    ("result", "signal"),
    [
        ("pass", {"kind": "label", "label": "tests:unit=pass"}),
        ("warn", {"kind": "label", "label": "tests:unit=warn"}),
        ("fail", {"kind": "flag"}),
    ],
)
def test_a_check_of_the_run_is_an_annotation(result: str, signal: dict[str, str]) -> None:
    raw = line("audit_checkpoint", agent_id=None, result=result)

    (*_, draft), _ = observe(read([raw]))

    assert isinstance(draft, AnnotationDraft)
    assert (draft.signal, draft.actor) == (signal, "kahn:r-1")


def test_an_agent_s_end_is_a_decision_without_a_confidence() -> None:
    decided = payload_of([START, END], "agent.decided")

    assert "confidence" not in decided
    assert decided["decision"]["outcome"] == "converged"
    assert decided["decision"]["convergenceScore"] == 1
    assert decided["decision"]["totals"]["toolCalls"] == 1


@pytest.mark.parametrize(
    ("outcomes", "end"),
    [
        (["converged", "partial"], "run.completed"),
        (["converged", "escaped"], "run.failed"),
        (["escaped", "aborted"], "run.cancelled"),
    ],
)
def test_the_ends_of_all_agents_are_the_end_of_the_run(outcomes: list[str], end: str) -> None:
    starts = [line("agent_run_start", agent_id=f"a{n}") for n in range(2)]
    ends = [line("agent_run_end", agent_id=f"a{n}", outcome=o) for n, o in enumerate(outcomes)]

    assert types([*starts, ends[0]])[-1] == "node.completed"
    assert types([*starts, *ends])[-1] == end


def test_a_failed_node_is_not_completed_too() -> None:
    lines = [START, move(0, "thinking", "failed"), line("agent_run_end", outcome="aborted")]

    assert "node.completed" not in types(lines)


def test_after_the_end_a_line_is_logged_without_derived_events() -> None:
    observer = Observer()
    for each in read([START, END]):
        observer.feed(each)

    ended = observer.close()
    again = observer.close()
    late = observer.feed(read_line(line("agent_run_start", agent_id="late")))

    assert [draft.type for draft in ended if isinstance(draft, EventDraft)] == ["run.completed"]
    assert again == []
    assert [d.type for d in late if isinstance(d, EventDraft)] == ["kahn.agent_run_start"]


def test_agents_working_in_sequence_are_one_run() -> None:
    second = [each.replace(b'"coder"', b'"second"') for each in (START, END)]

    assert types([START, END, *second]).count("run.completed") == 1


def test_only_advertised_events_are_derived() -> None:
    batches = observe(read([START, line("tool_invocation")]), lambda t: t != "agent.toolCalled")

    log = stamped(batches)

    assert [event.type for event in log[-2:]] == ["kahn.tool_invocation", "agent.toolReturned"]
    assert log[-1].causation_id == log[-2].event_id


def test_time_never_goes_backwards_in_an_observed_log() -> None:
    lines = [START, line("audit_checkpoint", ts="2020-01-01T00:00:00.000Z")]

    assert {event.timestamp for event in observed(lines)} == {fields("run_start")["ts"]}


def test_a_run_with_the_name_of_the_observed_workflow_is_projected_like_any_other() -> None:
    log = observed([START])
    log[0] = msgspec.structs.replace(log[0], payload={"workflowId": "kahn.observed"})

    (start,) = (json.loads(each) for each in project(log))

    assert start["openwop_agent_id"] == "host:kahn:coder"
