"""Two runs side by side: values, nodes, and the page that shows them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.console.client import Person
from tests.wire.client import Wire
from tests.wire.definitions import delay, edge, node, variable, workflow
from wopr.console.value_diff import MOST_CHANGES, Change, Text, changes
from wopr.engine.diff import same
from wopr.protocol.documents import Json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def whole(text: str) -> Text:
    return Text("", text, "")


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
def test_only_what_differs_is_named(a: Json, b: Json, found: list[Change]) -> None:
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
    assert changes(a, b) == [Change("", Text(*left), Text(*right))]


@given(JSON, JSON)
def test_there_is_a_change_exactly_where_values_differ(a: Json, b: Json) -> None:
    assert bool(changes(a, b)) == (not same(a, b))


@given(st.text(), st.text())
def test_the_parts_of_a_short_text_are_the_text(a: str, b: str) -> None:
    for change in changes(a, b):
        assert change.a is not None
        assert change.b is not None
        assert change.a.before + change.a.changed + change.a.after == a
        assert change.b.before + change.b.changed + change.b.after == b


def test_of_many_changes_the_first_are_shown_and_of_long_texts_what_is_near() -> None:
    many = changes(list(range(1000)), list(range(1, 1001)))
    [change] = changes("same " * 200 + "one", "same " * 200 + "two")

    assert len(many) == MOST_CHANGES
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
    changed = page.text.partition("What changed at the nodes")[2]
    assert "greet" in changed
    assert "rest" not in changed
    assert "Hello, Ada" in changed
    assert "Hello, Grace" in changed


def test_two_runs_that_did_the_same_do_not_differ(acme: Person, wire: Wire) -> None:
    a, b = pair(wire, "Ada", "Ada")

    page = acme.page(f"/compare?a={a}&b={b}")

    assert "both logs say the same" in page.text
    assert "What changed" not in page.text


def test_branches_that_end_in_another_order_are_no_difference(acme: Person, wire: Wire) -> None:
    nodes = [node("start"), delay("slow", 60), delay("quick", 1)]
    edges = [edge("start", "slow"), edge("start", "quick")]
    one = workflow(nodes, edges=edges, version="1")
    other = one | {"version": "2", "nodes": [nodes[0], delay("slow", 1), delay("quick", 60)]}
    a = wire.run(wire.register(one))["runId"]
    b = wire.run(wire.register(other))["runId"]

    page = acme.page(f"/compare?a={a}&b={b}")

    assert wire.types(a) == wire.types(b)
    assert "What changed at the nodes" not in page.text


def test_a_node_that_only_one_run_has_is_said_to_be_missing(acme: Person, wire: Wire) -> None:
    one = workflow([node("first"), node("last")], version="1")
    a = wire.run(wire.register(one))["runId"]
    nodes = [node("first"), node("extra"), node("last")]
    edges = [edge("first", "extra"), edge("extra", "last")]
    b = wire.run(wire.register(one | {"version": "2", "nodes": nodes, "edges": edges}))["runId"]

    page = acme.page(f"/compare?a={a}&b={b}")

    lines = page.text.partition("Difference")[2]
    assert "only in B" in lines
    assert lines.index("first") < lines.index("extra") < lines.index("last")


def test_tokens_and_costs_are_laid_side_by_side(acme: Person, wire: Wire) -> None:
    a, b = (_asked(wire, words) for words in (["one"], ["one", "two", "three"]))

    text = acme.get(f"/compare?a={a}&b={b}").text

    [counts] = re.findall(r"Tokens</th><td>(\d+)</td><td>(\d+)</td><td.*>\+(\d+)<", text)
    assert int(counts[1]) - int(counts[0]) == int(counts[2]) > 0
    assert "A cost" in text


def _asked(wire: Wire, tokens: list[str]) -> str:
    """A run of a model that says these words."""
    script = {"id": "stream-text", "config": {"tokens": tokens, "delayMsPerToken": 1}}
    run = wire.run("conformance-stream-text", configurable={"mockProvider": script})
    return str(run["runId"])


def test_a_run_is_offered_its_source_its_forks_and_its_neighbours(acme: Person, wire: Wire) -> None:
    before, run_id, after = pair(wire, "a", "b", "c")
    fork = wire.post(f"/v1/runs/{run_id}:fork", {"mode": "branch", "fromSeq": 1}).json()["runId"]

    of_run = acme.page(f"/compare?b={run_id}")
    of_fork = acme.page(f"/compare?b={fork}")

    for other in (before, after, fork):
        assert f"/compare?a={other}&b={run_id}" in of_run.links
    assert "The run that it was forked from" in of_fork.text
    assert f"/compare?a={run_id}&b={fork}" in of_fork.links


def test_two_lines_of_the_list_are_compared_the_older_first(acme: Person, wire: Wire) -> None:
    older, newer = pair(wire, "Ada", "Grace")

    page = acme.page(f"/compare?run={newer}&run={older}")

    heads = [found["title"] for found in page.all("a", **{"class": "id"})]
    assert heads[:2] == [older, newer]


@pytest.mark.parametrize(
    ("query", "status", "told"),
    [
        ("run={0}", 400, "choose two runs to compare, not 1"),
        ("run={0}&run={1}&run={0}", 400, "not 3"),
        ("a={0}&b={0}", 400, "does not differ from itself"),
        ("a={0}&b=nobody", 404, "There is nothing here"),
        ("a=nobody", 404, "There is nothing here"),
        ("a={0}&b=" + "x" * 200, 404, "There is nothing here"),
        ("", 200, "name two runs here"),
    ],
)
def test_what_cannot_be_compared_is_said(
    acme: Person, wire: Wire, query: str, status: int, told: str
) -> None:
    answer = acme.get("/compare?" + query.format(*pair(wire, "Ada", "Grace")))

    assert answer.status_code == status
    assert told in answer.text
