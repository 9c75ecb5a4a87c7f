"""Definitions that are slow to check or to draw, and expressions that are slow to evaluate."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx

from tests.attack.attacked import (
    MALLORY,
    MALLORY_VIEWER,
    AttackedHost,
    HonestClient,
    attacked,
)
from tests.console.client import Person
from tests.wire.definitions import edge, node, variable, workflow
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
    """Layers in which each node leads to all of the next two layers: 15,000 edges and more."""
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
    """Channels whose patterns compile to megabytes: each repetition of a class of letters counts."""
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


def test_patterns_that_compile_to_much_memory_are_refused_while_others_are_served(
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
    assert "too many to draw" in page
    assert ended["status"] in ("completed", "failed")
    assert honest.growth_mib < GROWTH_MIB


def drawn(host: AttackedHost, workflow_id: str) -> str:
    """The console's page of a workflow, as a viewer sees it."""
    with Person(host.url) as browser:
        browser.sign_in(MALLORY_VIEWER)
        return browser.get(f"/workflows/{workflow_id}").raise_for_status().text


def at_once(host: AttackedHost, path: str, bodies: list[JsonObject]) -> list[httpx.Response]:
    with ThreadPoolExecutor(max_workers=len(bodies)) as senders:
        return list(senders.map(partial(post, host.url, MALLORY, path), bodies))


def post(url: str, key: str, path: str, body: JsonObject) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{url}{path}", json=body, headers=headers, timeout=60)
