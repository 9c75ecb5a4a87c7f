"""The comparison of two runs: values, nodes, and the page."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.client import Wire
from tests.support.console import Person
from tests.support.definitions import delay, edge, node, variable, workflow
from wopr.console.runs.compare import MAX_CHANGES, Change, DiffText, changes
from wopr.protocol.documents import Json, json_equal

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def whole(text: str) -> DiffText:
    return DiffText("", text, "")


# Values


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 1}, {"a": 2}, [Change("a", whole("1"), whole("2"))]),
        ({"a": 1}, {}, [Change("a", whole("1"), None)]),
        ([1], [1, 2], [Change("[1]", None, whole("2"))]),
        ({"a": {"b c": [0]}}, {"a": {"b c": [1]}}, [Change('a["b c"][0]', whole("0"), whole("1"))]),
        ("x", ["x"], [Change("", whole("x"), whole('[\n  "x"\n]'))]),
        (True, 1, [Change("", whole("true"), whole("1"))]),
    ],
)
def test_only_differences_are_named(a: Json, b: Json, found: list[Change]) -> None:
    assert changes(a, b) == found


@pytest.mark.parametrize(
    ("a", "b", "left", "right"),
    [
        (
            "Dear Ada, bye",
            "Dear Grace, bye",
            ("Dear ", "Ada", ", bye"),
            ("Dear ", "Grace", ", bye"),
        ),
        ("so sorry.", "so sleepy.", ("so ", "sorry", "."), ("so ", "sleepy", ".")),
        ("aa", "aaa", ("", "aa", ""), ("", "aaa", "")),
        ("a b", "a b c", ("a b", "", ""), ("a b", " c", "")),
    ],
)
def test_a_text_shows_the_words_that_differ(
    a: str, b: str, left: tuple[str, str, str], right: tuple[str, str, str]
) -> None:
    assert changes(a, b) == [Change("", DiffText(*left), DiffText(*right))]


@given(JSON, JSON)
def test_a_change_is_reported_exactly_where_values_differ(a: Json, b: Json) -> None:
    assert bool(changes(a, b)) == (not json_equal(a, b))


@given(st.text(), st.text())
def test_the_parts_of_a_short_text_add_up_to_the_text(a: str, b: str) -> None:
    for change in changes(a, b):
        assert change.a is not None
        assert change.b is not None
        assert change.a.before + change.a.changed + change.a.after == a
        assert change.b.before + change.b.changed + change.b.after == b


def test_many_changes_and_long_texts_are_cut() -> None:
    many = changes(list(range(1000)), list(range(1, 1001)))
    [change] = changes("same " * 200 + "one", "same " * 200 + "two")

    assert len(many) == MAX_CHANGES
    assert change.a is not None
    assert change.a.before.startswith("…")
    assert change.a.changed == "one"


# The page


def greeter() -> list[dict[str, Json]]:
    said = {"name": "greeting", "expression": '"Hello, " + variables.name'}
    return [node("greet", "core.setVariable", config=said), delay("rest", 1)]


def pair(wire: Wire, *names: str, tag: str = "x") -> list[str]:
    variables = [variable("name"), variable("greeting", defaultValue="")]
    name = wire.register(workflow(greeter(), variables=variables))
    return [str(wire.run(name, {"name": each}, tags=[tag])["runId"]) for each in names]


def test_the_first_difference_and_the_changed_outputs_are_shown_with_both_events(
    acme: Person, wire: Wire
) -> None:
    a, b = pair(wire, "Ada", "Grace")

    page = acme.page(f"/compare?a={a}&b={b}")

    first = page.text.partition("First difference")[2].partition("Nodes")[0]
    assert "run.started" in first
    assert "inputs.name" in first
    assert {f"/runs/{a}/events/0", f"/runs/{b}/events/0"} <= {*page.links}
    changed = page.text.partition("Changed nodes")[2]
    assert "greet" in changed
    assert "rest" not in changed
    assert "Hello, Ada" in changed
    assert "Hello, Grace" in changed


def test_two_equal_runs_do_not_differ(acme: Person, wire: Wire) -> None:
    a, b = pair(wire, "Ada", "Ada")

    page = acme.page(f"/compare?a={a}&b={b}")

    assert "both logs have the same events" in page.text
    assert "What changed" not in page.text


def test_branches_that_end_in_another_order_are_not_a_difference(acme: Person, wire: Wire) -> None:
    nodes = [node("start"), delay("slow", 60), delay("quick", 1)]
    edges = [edge("start", "slow"), edge("start", "quick")]
    one = workflow(nodes, edges=edges, version="1")
    other = one | {"version": "2", "nodes": [nodes[0], delay("slow", 1), delay("quick", 60)]}
    a = wire.run(wire.register(one))["runId"]
    b = wire.run(wire.register(other))["runId"]

    page = acme.page(f"/compare?a={a}&b={b}")

    assert wire.types(a) == wire.types(b)
    assert "Changed nodes" not in page.text


def test_a_node_that_only_one_run_has_is_reported_as_missing(acme: Person, wire: Wire) -> None:
    one = workflow([node("first"), node("last")], version="1")
    a = wire.run(wire.register(one))["runId"]
    nodes = [node("first"), node("extra"), node("last")]
    edges = [edge("first", "extra"), edge("extra", "last")]
    b = wire.run(wire.register(one | {"version": "2", "nodes": nodes, "edges": edges}))["runId"]

    page = acme.page(f"/compare?a={a}&b={b}")

    lines = page.text.partition("Difference")[2]
    assert "only in B" in lines
    assert lines.index("first") < lines.index("extra") < lines.index("last")


def test_times_and_costs_are_shown_side_by_side(acme: Person, wire: Wire) -> None:
    a, b = (_asked(wire, words) for words in (["one"], ["one", "two", "three"]))

    text = acme.get(f"/compare?a={a}&b={b}").text

    [counts] = re.findall(r"Tokens</th><td>(\d+)</td><td>(\d+)</td><td.*>\+(\d+)<", text)
    assert int(counts[1]) - int(counts[0]) == int(counts[2]) > 0
    assert "A cost" in text


def _asked(wire: Wire, tokens: list[str]) -> str:
    """Run a model that returns these words."""
    script = {"id": "stream-text", "config": {"tokens": tokens, "delayMsPerToken": 1}}
    run = wire.run("conformance-stream-text", configurable={"mockProvider": script})
    return str(run["runId"])


def test_a_run_can_be_compared_with_its_source_its_forks_and_its_neighbours(
    acme: Person, wire: Wire
) -> None:
    before, run_id, after = pair(wire, "a", "b", "c")
    fork = wire.post(f"/v1/runs/{run_id}:fork", {"mode": "branch", "fromSeq": 1}).json()["runId"]

    of_run = acme.page(f"/compare?b={run_id}")
    of_fork = acme.page(f"/compare?b={fork}")

    for other in (before, after, fork):
        assert f"/compare?a={other}&b={run_id}" in of_run.links
    assert "Source of this fork" in of_fork.text
    assert f"/compare?a={run_id}&b={fork}" in of_fork.links


def test_two_chosen_runs_are_compared_with_the_older_first(acme: Person, wire: Wire) -> None:
    older, newer = pair(wire, "Ada", "Grace")

    page = acme.page(f"/compare?run={newer}&run={older}")

    heads = [found["title"] for found in page.all("a", **{"class": "id"})]
    assert heads[:2] == [older, newer]


@pytest.mark.parametrize(
    ("query", "status", "told"),
    [
        ("run={0}", 400, "Select two runs to compare, not 1"),
        ("run={0}&run={1}&run={0}", 400, "not 3"),
        ("a={0}&b={0}", 400, "Select two different runs."),
        ("a={0}&b=nobody", 404, "Not found"),
        ("a=nobody", 404, "Not found"),
        ("a={0}&b=" + "x" * 200, 404, "Not found"),
        ("", 200, "enter two run ids"),
    ],
)
def test_a_comparison_that_is_not_possible_is_explained(
    acme: Person, wire: Wire, query: str, status: int, told: str
) -> None:
    answer = acme.get("/compare?" + query.format(*pair(wire, "Ada", "Grace")))

    assert answer.status_code == status
    assert told in answer.text
