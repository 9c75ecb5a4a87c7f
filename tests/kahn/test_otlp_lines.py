"""Spans of a trace as KAHN lines: the same set of spans gives the same bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kahn.spans import TRACE, agent, chat, conversation, events, last_lines, other, span, tool
from tests.support.kahn_lines import errors_and_warnings
from wopr.kahn.lines import read_line
from wopr.kahn.otlp.lines import project_trace
from wopr.kahn.otlp.spans import Evaluation, SpanFacts
from wopr.kahn.otlp.tree import SpanTree, merge_spans, read_spans, write_spans

RUN = f"otel-{TRACE}"
KINDS = ["agent", "workflow", "chat", "tool", "other"]


@st.composite
def traces(draw: st.DrawFn) -> list[SpanFacts]:
    """Generate traces of any form: with missing parents, late parents, or cycles."""
    numbers = draw(st.lists(st.integers(1, 12), min_size=1, max_size=12, unique=True))
    spans: list[SpanFacts] = []
    for number in numbers:
        start = draw(st.integers(0, 9))
        facts = {
            "agent": draw(st.sampled_from(["lead", "helper", "Älter.Agent", "svc"])),
            "error": draw(st.sampled_from(["", "", "timeout"])),
            "finish": draw(st.sampled_from([(), ("stop",), ("tool_calls",), ("length",)])),
        }
        parent, kind = draw(st.integers(0, 13)), draw(st.sampled_from(KINDS))
        end = draw(st.integers(start, 10))
        is_other = kind == "other"
        spans.append(
            other(number, parent) if is_other else span(number, parent, kind, start, end, **facts)
        )
    return spans


@given(spans=traces(), data=st.data())
def test_any_order_any_split_and_any_repetition_give_the_same_lines(
    spans: list[SpanFacts], data: st.DataObject
) -> None:
    again = data.draw(st.lists(st.sampled_from(spans)))
    shuffled = data.draw(st.permutations([*spans, *again]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(shuffled)), max_size=4)))
    edges = zip([0, *cuts], [*cuts, len(shuffled)], strict=True)

    bodies = [write_spans(shuffled[start:end]) for start, end in edges]

    assert project_trace(TRACE, [read_spans(bodies)]) == last_lines(spans)


@given(spans=traces())
def test_every_line_is_valid_and_the_checker_reports_no_errors(spans: list[SpanFacts]) -> None:
    lines = last_lines(spans)

    for line in lines:
        read_line(line)
    assert errors_and_warnings(lines) == []


@given(first=traces(), second=traces())
def test_late_spans_do_not_change_converted_lines(
    first: list[SpanFacts], second: list[SpanFacts]
) -> None:
    before, after = last_lines(first), last_lines(first, second)
    mine = [line for line in after if read_line(line).event.run_id == RUN]

    assert errors_and_warnings([*before, *mine]) == []
    assert last_lines(first, first) == []


@given(spans=traces())
def test_names_are_kept_unchanged(spans: list[SpanFacts]) -> None:
    assert read_spans([write_spans(spans)]) == merge_spans(spans)


def test_a_request_becomes_a_run_with_agents_tools_models_and_tokens() -> None:
    lines = last_lines(conversation())

    lead, helper = events(lines, "agent_run_start")
    assert lead | {"ts": ""} == {
        "ts": "",
        "run_id": RUN,
        "event": "agent_run_start",
        "agent_id": "lead",
        "task": "invoke_agent lead",
        "model": "m-1",
        "otel_trace_id": TRACE,
        "otel_service": "service",
        "otel_agent_name": "lead",
        "otel_conversation_id": "talk-7",
    }
    assert (helper["agent_id"], helper["otel_parent_agent_id"]) == ("helper", "lead")
    search, fetch = events(lines, "tool_invocation")
    assert (search["tool_name"], search["ok"], search["duration_s"]) == ("search", True, 2.0)
    assert search["openwop_call_id"] == "call-1"
    assert (fetch["agent_id"], fetch["ok"], fetch["error"]) == ("helper", False, "timeout")
    ended = {each["agent_id"]: each for each in events(lines, "agent_run_end")}
    assert [each["outcome"] for each in ended.values()] == ["converged", "converged"]
    totals = {name: value for name, value in ended["lead"].items() if name.startswith("otel_")}
    assert totals == {"otel_model_calls": 2, "otel_input_tokens": 10, "otel_output_tokens": 14}


def test_an_agent_invoked_by_another_is_a_hand_off() -> None:
    lines = last_lines([agent(1, 0, 0, 9), agent(2, 1, 3, 6, "helper")])

    reasons = [each.get("reason") for each in events(lines, "agent_transition", "lead")]
    assert reasons == ["handoff:helper"]


@pytest.mark.parametrize(
    ("last", "outcome"),
    [
        (chat(2, 1, 1, 2, finish=("stop",)), "converged"),
        (chat(2, 1, 1, 2), "converged"),
        (chat(2, 1, 1, 2, finish=("length",)), "partial"),
        (chat(2, 1, 1, 2, finish=("tool_calls",)), "partial"),
        (chat(2, 1, 1, 2, error="429"), "partial"),
        (tool(2, 1, 1, 2), "partial"),
    ],
)
def test_an_agent_converges_by_its_last_answer(last: SpanFacts, outcome: str) -> None:
    [end] = events(last_lines([agent(1, 0, 0, 9), last]), "agent_run_end")

    assert end["outcome"] == outcome


def test_a_failed_agent_is_aborted_with_its_error() -> None:
    lines = last_lines([agent(1, 0, 0, 9, error="ValueError"), chat(2, 1, 1, 2)])

    assert events(lines, "agent_transition")[-1]["to"] == "failed"
    assert events(lines, "agent_transition")[-1]["reason"] == "run.failed:ValueError"
    assert events(lines, "agent_run_end")[0]["outcome"] == "aborted"


def test_an_agent_invoked_twice_in_a_trace_is_one_agent_of_the_run() -> None:
    lines = last_lines([other(1), agent(2, 1, 0, 3), tool(3, 2, 1, 2), agent(4, 1, 5, 9)])

    assert len(events(lines, "agent_run_start")) == 1
    assert events(lines, "agent_run_end")[0]["total_duration_s"] == 9.0


def test_spans_without_an_agent_belong_to_the_service() -> None:
    lines = last_lines([other(1), chat(2, 1, 0, 1), tool(3, 1, 1, 2)])

    assert {each["agent_id"] for each in events(lines, "agent_run_start")} == {"service"}
    assert len(events(lines, "agent_run_end")) == 1


def test_spans_without_parents_belong_to_the_only_agent() -> None:
    lines = last_lines([agent(1, 0, 0, 9), tool(3, 77, 1, 2)])

    assert events(lines, "tool_invocation")[0]["agent_id"] == "lead"


def test_an_agent_without_an_invocation_span_has_no_end() -> None:
    lines = last_lines([tool(3, 2, 1, 2)])

    assert len(events(lines, "agent_run_start")) == 1
    assert events(lines, "agent_run_end") == []


def test_a_wrong_clock_moves_nothing_out_of_its_agent_s_time() -> None:
    lines = last_lines([agent(1, 0, 10, 20), tool(2, 1, 1000, 1003), chat(3, 1, 0, 1)])

    stamps = [read_line(line).event.ts for line in lines]
    assert stamps == sorted(stamps)
    assert events(lines, "tool_invocation")[0]["duration_s"] == 3.0
    assert events(lines, "agent_run_end")[0]["total_duration_s"] == 10.0


def test_a_trace_without_agents_models_and_tools_is_not_converted() -> None:
    assert last_lines([other(1), span(2, 1, "workflow", 0, 1)]) == []


def test_an_evaluation_is_a_check_of_its_agent_or_of_the_run() -> None:
    passed, unsure = Evaluation(name="Relevance", label="pass"), Evaluation(name="x", score=0.5)
    lines = last_lines(
        [
            span(1, 0, "workflow", 0, 9, evaluations=(unsure,)),
            agent(2, 1, 0, 9, evaluations=(passed,)),
        ]
    )

    whole, mine = events(lines, "audit_checkpoint")
    assert (mine["agent_id"], mine["checkpoint_id"], mine["result"]) == (
        "lead",
        "eval:relevance",
        "pass",
    )
    assert (whole["agent_id"], whole["result"], whole["evidence"]) == (None, "warn", {"score": 0.5})


# Late spans


def test_late_work_of_an_agent_is_a_check_after_its_end() -> None:
    lines = last_lines([agent(1, 0, 0, 9)], [tool(2, 1, 1, 2, error="timeout")])

    [late] = events(lines, "audit_checkpoint")
    assert len(lines) == 1
    assert (late["run_id"], late["agent_id"], late["checkpoint_id"]) == (RUN, "lead", "otel:late")
    assert late["evidence"] == {"operation": "tool", "tool": "search", "error": "timeout"}


def test_a_late_invocation_is_a_separate_run() -> None:
    first = [other(1), agent(2, 1, 0, 3)]

    lines = last_lines(first, [agent(4, 1, 5, 9), chat(5, 4, 6, 7)])

    assert {read_line(line).event.run_id for line in lines} == {f"{RUN}-2"}
    assert events(lines, "agent_run_end")[0]["outcome"] == "converged"


def test_converted_spans_are_not_converted_again() -> None:
    assert last_lines(conversation(), conversation()[3:]) == []


# Complete traces


@pytest.mark.parametrize(
    ("spans", "is_whole"),
    [
        (conversation(), True),
        (conversation()[1:], False),
        ([agent(1, 0, 0, 1)], True),
        ([agent(1, 2, 0, 1)], False),
        ([agent(1, 2, 0, 1), agent(2, 1, 0, 1)], False),
        ([other(5, 6), agent(1, 0, 0, 1)], True),
    ],
)
def test_a_trace_is_complete_when_all_agents_descend_from_a_root(
    spans: list[SpanFacts], is_whole: bool
) -> None:
    assert SpanTree(merge_spans(spans)).is_whole is is_whole


def test_a_chain_of_ten_thousand_spans_is_handled() -> None:
    chain = [other(1), *(agent(n, n - 1, 0, 9) for n in range(2, 10_000))]

    assert len(events(last_lines(chain), "agent_run_end")) == 1
