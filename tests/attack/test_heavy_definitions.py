"""Definitions that are slow to check or to draw, and expressions that are slow to evaluate."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path

import httpx

from tests.attack.attacked_host import (
    MALLORY,
    MALLORY_VIEWER,
    AttackedHost,
    HonestClient,
    attacked,
)
from tests.support.console import Person
from tests.support.definitions import edge, node, variable, workflow
from wopr.protocol.documents import JsonObject

GROWTH_MIB = 300
PATTERN_GROWTH_MIB = 100
# A constant that takes a second to evaluate.
NUMBERS = ", ".join(["1"] * 60)
SLOW = f"[{NUMBERS}].exists(x, [{NUMBERS}].exists(y, [{NUMBERS}].exists(z, x + y + z < 0)))"


def conditions(count: int) -> JsonObject:
    edges = [
        edge(
            "a",
            "b",
            id=f"e{n}",
            condition={"type": "expression", "expression": f"{SLOW} || {n} < 0"},
        )
        for n in range(count)
    ]
    return workflow([node("a"), node("b")], edges=edges)


def dense(width: int = 30, layers: int = 10) -> JsonObject:
    """Return layers in which each node leads to all of the next two: 15,000 edges and more."""
    ids = [[f"n{layer}-{row}" for row in range(width)] for layer in range(layers)]
    edges = [
        edge(one, other)
        for at, layer in enumerate(ids)
        for one in layer
        for below in ids[at + 1 : at + 3]
        for other in below
    ]
    return workflow([node(name) for layer in ids for name in layer], edges=edges)


def test_a_definition_with_slow_expressions_or_many_edges_is_refused(tmp_path: Path) -> None:
    with attacked(tmp_path) as host, HonestClient(host) as honest:
        slow = at_once(host, "/v1/workflows:validate", [conditions(950)] * 4)
        viewed = post(host.url, MALLORY_VIEWER, "/v1/workflows:validate", conditions(1))
        many = at_once(host, "/v1/workflows", [dense()] * 4)
        honest.wait_for_round()

    assert all("has 950 expressions" in answer.text for answer in slow)
    assert viewed.status_code == 403
    assert {answer.status_code for answer in many} == {400}
    assert "has 15300 edges, and at most 5000 are allowed" in many[0].text
    assert honest.growth_mib < GROWTH_MIB


def unicode_patterns(channels: int, repetitions: int) -> JsonObject:
    """Return channels whose patterns compile to megabytes: each repetition of a class counts."""
    names = [f"c{n}" for n in range(channels)]
    return workflow(
        [node("write", "core.channelWrite", config={"channelName": "c0", "value": "a"})],
        channels={
            name: {
                "reducer": "replace",
                "schema": {
                    "anyOf": [{"pattern": rf"{name}{n}\pL{{{repetitions}}}"} for n in range(5)]
                },
            }
            for name in names
        },
    )


def test_patterns_that_need_much_memory_are_refused_while_others_are_served(
    tmp_path: Path,
) -> None:
    with attacked(tmp_path) as host, HonestClient(host) as honest:
        large = at_once(host, "/v1/workflows:validate", [unicode_patterns(50, 100)] * 4)
        many = at_once(host, "/v1/workflows", [unicode_patterns(50, 3)] * 4)
        honest.wait_for_round()

    assert all("the patterns of the schema have" in answer.text for answer in large)
    assert {answer.status_code for answer in many} == {400}
    assert "the patterns of all schemas of the definition have" in many[0].text
    assert honest.growth_mib < PATTERN_GROWTH_MIB


def test_definitions_at_the_limits_are_checked_drawn_and_run_while_others_are_served(
    tmp_path: Path,
) -> None:
    few = conditions(80)
    graph = dense(layers=4)
    items = variable("items", "array")
    slow = workflow([node("a"), node("b")], variables=[items])
    source = "variables.items.exists(i, variables.items.exists(j, i.n + j.n < 0))"
    slow["edges"] = [
        edge(
            "a",
            "b",
            id=f"e{n}",
            condition={"type": "expression", "expression": f"{source} || {n} < 0"},
        )
        for n in range(20)
    ]

    with attacked(tmp_path) as host:
        with HonestClient(host) as honest, host.client() as mallory:
            checked = at_once(host, "/v1/workflows:validate", [few] * 2)
            mallory.register(graph)
            page = drawn(host, graph["id"])
            run_id = mallory.create(mallory.register(slow), {"items": [{"n": 1}] * 300})
            ended = mallory.finished(run_id)
            honest.wait_for_round()

        host.kill_and_recover()

    assert all(answer.status_code == 200 for answer in checked)
    assert "too many for a" in page
    assert ended["status"] in ("completed", "failed")
    assert honest.growth_mib < GROWTH_MIB


def reading(conditions: list[JsonObject]) -> JsonObject:
    """Return a node that outputs the list `v`, and edges with these conditions on it."""
    ends = [edge("a", "b", id=f"e{n}", condition=each) for n, each in enumerate(conditions)]
    source = node("a", "core.identity", inputs={"v": {"type": "variable", "variableName": "v"}})
    return workflow([source, node("b")], edges=ends, variables=[variable("v", "array")])


def test_many_conditions_on_a_large_list_are_evaluated_while_others_are_served(
    tmp_path: Path,
) -> None:
    searches = reading([{"type": "contains", "left": "v", "right": -n - 1} for n in range(300)])
    sizes = reading(
        [{"type": "expression", "expression": f"size(output.v) < {n}"} for n in range(90)]
    )

    with attacked(tmp_path) as host, HonestClient(host) as honest, host.client() as mallory:
        started = [
            mallory.create(mallory.register(searches), {"v": [1] * 1_000_000}),
            mallory.create(mallory.register(sizes), {"v": [1] * 240_000}),
        ]
        ended = [mallory.finished(run_id) for run_id in started]
        honest.wait_for_round()

    assert [run["error"]["code"] for run in ended] == ["expression_error"] * 2
    assert all("edges to node 'b' cost" in run["error"]["message"] for run in ended)
    assert honest.growth_mib < GROWTH_MIB


def nested_loops(count: int, exits: int) -> JsonObject:
    """Return nested loops that end together, and nodes that follow all of them."""
    heads = [f"l{n}" for n in range(count)]
    after = [f"o{n}" for n in range(exits)]
    never = {"type": "equals", "left": "nothing", "right": 1}
    nodes = [node(head, "core.loop", config={"times": 1}) for head in heads]
    edges = [edge(one, other) for one, other in pairwise([*heads, "x"])]
    edges += [edge("x", head, condition=never) for head in heads]
    edges += [edge("x", name) for name in after]
    return workflow([*nodes, node("x"), *map(node, after)], edges=edges)


def test_nested_loops_at_the_limit_run_while_others_are_served(tmp_path: Path) -> None:
    with attacked(tmp_path) as host, HonestClient(host) as honest, host.client() as mallory:
        refused = post(host.url, MALLORY, "/v1/workflows", nested_loops(600, 10))
        ended = mallory.finished(mallory.create(mallory.register(nested_loops(100, 800))))
        honest.wait_for_round()

    assert refused.status_code == 400
    assert "has 600 nodes that can head a loop, and at most 100 are allowed" in refused.text
    assert ended["status"] == "completed"


def drawn(host: AttackedHost, workflow_id: str) -> str:
    """Request the console's page of a workflow as a viewer."""
    with Person(host.url) as browser:
        browser.sign_in(MALLORY_VIEWER)
        return browser.get(f"/workflows/{workflow_id}").raise_for_status().text


def at_once(host: AttackedHost, path: str, bodies: list[JsonObject]) -> list[httpx.Response]:
    with ThreadPoolExecutor(max_workers=len(bodies)) as senders:
        return list(senders.map(partial(post, host.url, MALLORY, path), bodies))


def post(url: str, key: str, path: str, body: JsonObject) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{url}{path}", json=body, headers=headers, timeout=60)
