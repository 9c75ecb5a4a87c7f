"""Requests with very many unknown names, each of which the host would report."""

from __future__ import annotations

from pathlib import Path

from tests.attack.attacked_host import ALICE, MALLORY, HonestClient, attacked
from tests.attack.test_heavy_definitions import at_once, post
from tests.support.definitions import edge, node, variable, workflow
from wopr.protocol.documents import JsonObject

GROWTH_MIB = 300
ANSWER_BYTES = 100_000


def many_texts() -> JsonObject:
    """Return a workflow with one input and 20,000 texts that may each read another one."""
    config: JsonObject = {"name": "v", "value": ["variables.zzzz"] * 20_000}
    return workflow(
        [node("set", "core.setVariable", config=config)], variables=[variable("v", "array")]
    )


def test_many_unknown_inputs_are_counted_while_others_are_served(tmp_path: Path) -> None:
    child = many_texts()
    names = [f"n{index}" for index in range(1000)]
    config: JsonObject = {"workflowId": child["id"], "inputMapping": dict.fromkeys(names, "q")}
    parent = workflow([node("start", "core.subWorkflow", config=config)])
    run: JsonObject = {"workflowId": child["id"], "inputs": dict.fromkeys(names, 1)}

    with attacked(tmp_path) as host, HonestClient(host) as honest:
        with host.client() as mallory:
            mallory.register(child)
        refused = at_once(host, "/v1/runs", [run] * 2)
        checked = at_once(host, "/v1/workflows:validate", [parent] * 2)
        honest.wait_for_round()

    assert {answer.status_code for answer in refused} == {400}
    assert "inputs has 990 more unknown names" in refused[0].json()["message"]
    warnings = checked[0].json()["warnings"]
    assert len(warnings) == 101
    assert "there are more faults" in warnings[-1]["message"]


def unknown_ends(nodes: int, edges: int) -> JsonObject:
    """Return a workflow whose edges lead to missing nodes."""
    names = [f"a-long-name-of-a-node-{index:06}" for index in range(nodes)]
    return workflow(
        [node(name) for name in names],
        edges=[edge(names[0], f"a-long-nmae-of-a-node-{index:06}x") for index in range(edges)],
    )


def test_many_unknown_nodes_do_not_delay_the_definition_checks_of_others(
    tmp_path: Path,
) -> None:
    large = workflow([node(f"n{index}") for index in range(300)])

    with attacked(tmp_path) as host, HonestClient(host) as honest:
        answers = at_once(host, "/v1/workflows:validate", [unknown_ends(1000, 2500)] * 3)
        other = post(host.url, ALICE, "/v1/workflows:validate", large)
        honest.wait_for_round()

    assert all(len(answer.json()["errors"]) == 101 for answer in answers)
    assert other.status_code == 200
    assert honest.growth_mib < GROWTH_MIB


def test_a_manifest_with_very_many_unknown_keys_gets_a_short_response(tmp_path: Path) -> None:
    # The first is within the limit of bytes.
    manifests: list[JsonObject] = [
        {f"personna{index}": 1 for index in range(count)} for count in (10_000, 200_000, 200_000)
    ]

    with attacked(tmp_path) as host, HonestClient(host) as honest:
        answers = at_once(host, "/v1/agents", manifests)
        honest.wait_for_round()

    assert {answer.status_code for answer in answers} == {400}
    assert all(len(answer.content) < ANSWER_BYTES for answer in answers)
    assert "there are more faults" in answers[0].text


def test_a_name_of_megabytes_is_truncated_in_the_response(tmp_path: Path) -> None:
    key = "k" * 4_000_000

    with attacked(tmp_path) as host, HonestClient(host) as honest:
        answers = [
            post(host.url, MALLORY, path, {key: 1})
            for path in ("/v1/runs", "/v1/agents", "/v1/workflows", "/v1/workflows:validate")
        ]
        honest.wait_for_round()

    assert [answer.status_code for answer in answers] == [400, 400, 400, 200]
    assert all(len(answer.content) < ANSWER_BYTES for answer in answers)
