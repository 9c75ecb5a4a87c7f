from __future__ import annotations

import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.engine.random_runs import ended_runs
from tests.support.simulation import Simulation, node, obedient, sketch
from wopr.engine.diff import HIDDEN, event_diffs, is_same_event, state_diff
from wopr.protocol.documents import UNSET, Json, json_equal
from wopr.protocol.events import RunEvent

TELLTALE = re.compile(r"sk-|api[_-]?key|secret|bearer\s", re.IGNORECASE)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-5, 5) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


def event(sequence: int, payload: Json = None, **changes: Json) -> RunEvent:
    written = RunEvent(
        event_id=f"e{sequence}",
        run_id="r",
        type="node.completed",
        payload=payload,
        timestamp="2026-01-01T00:00:00.000Z",
        sequence=sequence,
    )
    return replace(written, **changes)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (None, 0, False),
        ("1", 1, False),
        ([1, 2], [2, 1], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1.0}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ([{"a": [True]}], [{"a": [True]}], True),
        ([{"a": [True]}], [{"a": [1]}], False),
    ],
)
def test_json_values_compare_as_json_does(left: Json, right: Json, expected: bool) -> None:
    assert json_equal(left, right) is expected
    assert json_equal(right, left) is expected


@given(json_values)
def test_every_value_equals_its_encoded_form(value: Json) -> None:
    assert json_equal(value, msgspec.json.decode(msgspec.json.encode(value)))


def test_times_and_causes_of_events_are_not_compared() -> None:
    left = event(0, {"a": 1})
    right = event(
        0,
        {"a": 1},
        event_id="other",
        run_id="other",
        causation_id="cause",
        timestamp="2027-01-01T00:00:00.000Z",
    )

    assert is_same_event(left, right)


def test_an_event_differs_by_its_type_and_by_its_payload() -> None:
    assert not is_same_event(event(0, {"a": 1}), event(0, {"a": 2}))
    assert not is_same_event(event(0), event(0, type="node.failed"))


def test_an_event_in_one_log_only_is_added_or_removed() -> None:
    short, long = [event(0)], [event(0), event(1, {"a": 1}, node_id="n")]

    [added] = event_diffs(short, long)
    [removed] = event_diffs(long, short)

    assert (added.seq, added.op, added.a_event) == (1, "added", UNSET)
    assert added.b_event == {"type": "node.completed", "payload": {"a": 1}, "nodeId": "n"}
    assert (removed.seq, removed.op, removed.b_event) == (1, "removed", UNSET)


def test_differences_are_in_log_order() -> None:
    left = [event(n, n) for n in range(5)]
    right = [event(n, n if n % 2 else -1) for n in range(6)]

    found = list(event_diffs(left, right))

    assert [(each.seq, each.op) for each in found] == [
        (0, "changed"),
        (2, "changed"),
        (4, "changed"),
        (5, "added"),
    ]


@given(ended_runs())
def test_a_log_never_differs_from_itself(run: Simulation) -> None:
    assert list(event_diffs(run.log, run.log)) == []
    assert state_diff(run.state, run.state) == {}


@given(ended_runs(), ended_runs())
def test_comparing_is_symmetric_except_for_the_sides(one: Simulation, other: Simulation) -> None:
    forward = list(event_diffs(one.log, other.log))
    backward = list(event_diffs(other.log, one.log))

    assert [(d.seq, d.a_event, d.b_event) for d in forward] == [
        (d.seq, d.b_event, d.a_event) for d in backward
    ]


@pytest.mark.parametrize("text", ["sk-abc", "my_api_key", "APIKEY", "a secret", "Bearer x"])
def test_a_state_member_named_like_a_credential_shows_no_value(text: str) -> None:
    empty = Simulation(sketch([node("a")], []), obedient).state
    told = replace(empty, variables={text: text, "list": [text, {"inner": text}], "number": 1})

    found = state_diff(empty, told)

    assert not TELLTALE.search(json.dumps(found))
    assert found["variables"]["number"] == {"b": 1}
    assert HIDDEN in found["variables"]


def test_a_state_diff_names_exactly_the_members_that_differ() -> None:
    base = Simulation(sketch([node("a")], []), obedient).state
    one = replace(base, variables={"x": 1, "y": 1}, channels={"c": [1]}, status="completed")
    two = replace(base, variables={"x": 1, "y": 2}, channels={"c": [1]}, status="failed")

    found = state_diff(one, two)

    assert found == {
        "status": {"a": "completed", "b": "failed"},
        "variables": {"y": {"a": 1, "b": 2}},
    }
