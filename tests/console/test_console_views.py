"""The pure parts of the console: layout, axis, spans, text, Markdown."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wopr.console.formatting import ago, compact, duration, percent, short_id, status_text
from wopr.console.page import local_path
from wopr.console.runs.agent_steps import agent_turns, newest_turns_of
from wopr.console.runs.graph import lay_out
from wopr.console.runs.log import DecodedLog, entry_of
from wopr.console.runs.timeline import Axis, GrowingSpans, node_spans
from wopr.protocol.documents import Json, encode, to_iso
from wopr.protocol.events import RunEvent


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[str], list[tuple[str, str]]]:
    """Graphs without cycles: edges lead to later nodes only."""
    nodes = [f"n{index}" for index in range(draw(st.integers(1, 12)))]
    pairs = [(a, b) for i, a in enumerate(nodes) for b in nodes[i + 1 :]]
    return nodes, draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []


@given(graphs())
def test_every_edge_points_to_the_right_and_nodes_do_not_overlap(
    graph: tuple[list[str], list[tuple[str, str]]],
) -> None:
    nodes, edges = graph

    layout = lay_out(nodes, edges)

    assert all(layout.columns[a] < layout.columns[b] for a, b in edges)
    places = sorted((layout.columns[n], layout.rows[n]) for n in nodes)
    for (column, row), (next_column, next_row) in pairwise(places):
        assert column != next_column or next_row - row >= 1 - 1e-9
    assert min(layout.rows.values()) >= 0
    assert max(layout.rows.values()) <= layout.height - 1 + 1e-9


@given(graphs())
def test_the_same_graph_is_always_drawn_alike(
    graph: tuple[list[str], list[tuple[str, str]]],
) -> None:
    assert lay_out(*graph) == lay_out(*graph)


def test_an_edge_that_passes_a_layer_bends_there() -> None:
    layout = lay_out(["a", "b", "c"], [("a", "b"), ("b", "c"), ("a", "c")])

    [(column, row)] = layout.bends["a", "c"]
    assert column == 1
    assert abs(row - layout.rows["b"]) >= 1


@given(st.integers(0, 10**10))
def test_an_axis_has_few_marks_and_all_within_it(length: int) -> None:
    ticks = Axis(1000, 1000 + length).ticks()

    assert 1 <= len(ticks) <= 10
    assert all(0 <= tick.x <= 100 for tick in ticks)


def _log(*events: tuple[str, str, int, Json]) -> DecodedLog:
    log = DecodedLog()
    for sequence, (kind, node_id, at, payload) in enumerate(events):
        event = RunEvent(
            event_id=f"e{sequence}",
            run_id="r",
            type=kind,
            payload=payload,
            timestamp=to_iso(at),
            sequence=sequence,
            node_id=node_id,
        )
        log.add(entry_of(encode(event)))
    return log


def test_each_attempt_is_a_span_with_its_waits_and_children() -> None:
    log = _log(
        ("node.started", "a", 0, {"attempt": 0}),
        ("node.retried", "a", 10, {"attempt": 1}),
        ("node.started", "a", 20, {"attempt": 1}),
        ("node.suspended", "a", 30, {}),
        ("node.dispatched", "a", 35, {"childRunId": "c"}),
        ("node.resumed", "a", 40, {}),
        ("node.completed", "a", 50, {}),
        ("node.skipped", "b", 50, {"reason": "condition"}),
    )

    found = node_spans(log.entries)

    first, second = found["a"].spans
    assert (first.start, first.end, first.outcome) == (0, 10, "retried")
    assert (second.start, second.end, second.attempt) == (20, 50, 1)
    assert [(wait.start, wait.end) for wait in second.waits] == [(30, 40)]
    assert found["a"].children == ["c"]
    assert found["b"].skipped == "condition"


def test_lanes_built_incrementally_equal_those_of_the_whole_log() -> None:
    log = _log(
        ("node.started", "a", 0, {"attempt": 0}),
        ("node.retried", "a", 10, {"attempt": 1}),
        ("node.started", "a", 20, {"attempt": 1}),
        ("node.started", "b", 30, {}),
        ("node.completed", "a", 50, {}),
    )
    growing = GrowingSpans()

    for length in (0, 1, 1, 4, 5):
        part = log.entries[:length]
        assert growing.update(part) == node_spans(part)


def test_lanes_are_rebuilt_for_another_log() -> None:
    first = _log(("node.started", "a", 0, {}), ("node.completed", "a", 5, {}))
    second = _log(("node.started", "b", 0, {}), ("node.started", "a", 5, {}))
    growing = GrowingSpans()
    growing.update(first.entries)

    assert growing.update(second.entries) == node_spans(second.entries)
    assert growing.update(second.entries[:1]) == node_spans(second.entries[:1])


def test_a_span_that_never_ended_is_in_progress() -> None:
    found = node_spans(_log(("node.started", "a", 0, {}), ("node.suspended", "a", 5, {})).entries)

    [span] = found["a"].spans
    assert span.end is None
    assert span.is_waiting


@pytest.mark.parametrize(
    ("millis", "told"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1234, "1.23 s"),
        (59_000, "59.0 s"),
        (61_000, "1 m 01 s"),
        (7_260_000, "2 h 01 m"),
        (180_000_000, "2 d 2 h"),
        (-5, "0 ms"),
    ],
)
def test_a_duration_is_shown_in_suitable_units(millis: int, told: str) -> None:
    assert duration(millis) == told


@pytest.mark.parametrize(
    ("passed", "told"), [(0, "now"), (5000, "5 s ago"), (130_000, "2 m ago"), (-10, "now")]
)
def test_a_time_is_shown_relative_to_now(passed: int, told: str) -> None:
    assert ago(10_000_000, 10_000_000 + passed) == told


def test_statuses_numbers_and_ids_are_formatted() -> None:
    assert status_text("waiting-external") == "waiting for an event"
    assert status_text("completed") == "completed"
    assert percent(0.666) == "67 %"
    assert short_id("0123456789abcdef") == "456789abcdef"
    assert compact("x" * 100).endswith("…")


@given(st.text())
def test_a_redirect_target_is_a_path_of_the_console_or_the_start_page(target: str) -> None:
    found = local_path(target)

    assert found.startswith("/")
    assert not found.startswith(("//", "/\\"))
    assert found.isascii()
    assert found.isprintable()


@pytest.mark.parametrize(
    ("most", "left"), [(9, [3, 2]), (5, [3, 2]), (4, [2, 2]), (2, [2]), (1, [1]), (0, [])]
)
def test_a_long_description_is_cut_at_its_beginning(most: int, left: list[int]) -> None:
    calls = (("one", 3), ("two", 2))
    events: list[tuple[str, str, int, Json]] = []
    for node_id, count in calls:
        events.append(("node.started", node_id, 0, {}))
        events += [("agent.toolCalled", node_id, 0, {"callId": str(n)}) for n in range(count)]
    log = _log(*events)
    turns = agent_turns(log.entries, lambda _: None)

    shown = newest_turns_of(turns, most)

    assert [turn.size for turn in shown] == left
    assert not shown or shown[-1].steps[-1] is turns[-1].steps[-1]
    assert [turn.size for turn in turns] == [3, 2]
