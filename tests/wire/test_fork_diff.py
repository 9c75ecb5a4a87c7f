"""Comparing two runs over HTTP."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.client import Wire
from tests.support.definitions import node, variable, workflow
from tests.support.forks import diff, forked
from wopr.protocol.documents import JsonObject

TELLTALE = re.compile(r"sk-|api[_-]?key|secret|bearer\s", re.IGNORECASE)


@pytest.fixture
def greeting(acme: Wire) -> str:
    """Return a workflow whose outcome depends on its input."""
    return acme.register(
        workflow(
            [node("set", "core.setVariable", config={"name": "x", "expression": "variables.name"})],
            variables=[
                variable("name", defaultValue="world"),
                variable("x"),
                variable("apiKeyOfSomebody"),
            ],
        )
    )


def test_a_run_does_not_differ_from_itself(acme: Wire, greeting: str) -> None:
    run = acme.run(greeting)["runId"]

    found = diff(acme, run, run)

    assert found == {"a": run, "b": run, "divergedAtSeq": None, "eventDiffs": [], "stateDiff": {}}


def test_the_first_difference_is_named_and_all_following_are_listed(
    acme: Wire, greeting: str
) -> None:
    a = acme.run(greeting, {"name": "Ada"})["runId"]
    b = acme.run(greeting, {"name": "Bob"})["runId"]

    found = diff(acme, a, b)

    assert found.keys() == {"a", "b", "divergedAtSeq", "eventDiffs", "stateDiff"}
    assert found["divergedAtSeq"] == found["eventDiffs"][0]["seq"] == 0
    assert {each["op"] for each in found["eventDiffs"]} == {"changed"}
    assert found["stateDiff"]["variables"]["x"] == {"a": "Ada", "b": "Bob"}


def test_a_longer_log_has_events_added_and_a_shorter_one_removed(acme: Wire) -> None:
    short = acme.run("conformance-noop")["runId"]
    long = acme.run("conformance-multi-node")["runId"]

    forward, backward = diff(acme, short, long), diff(acme, long, short)

    assert forward["eventDiffs"][-1]["op"] == "added"
    assert "aEvent" not in forward["eventDiffs"][-1]
    assert backward["eventDiffs"][-1]["op"] == "removed"
    assert "bEvent" not in backward["eventDiffs"][-1]


def test_the_comparison_of_two_runs_is_deterministic(acme: Wire, greeting: str) -> None:
    a = acme.run(greeting, {"name": "Ada"})["runId"]
    b = acme.run(greeting)["runId"]

    answers = {acme.get(f"/v1/runs/{a}:diff", params={"against": b}).text for _ in range(3)}

    assert len(answers) == 1


def test_ids_and_times_are_not_compared(acme: Wire, greeting: str) -> None:
    a, b = acme.run(greeting)["runId"], acme.run(greeting)["runId"]

    assert diff(acme, a, b)["divergedAtSeq"] is None


def test_credentials_are_masked_in_the_state(acme: Wire) -> None:
    telling = acme.register(
        workflow(
            [
                node("a", "core.setVariable", config={"name": "apiKey", "value": "one"}),
                node("b", "core.setVariable", config={"name": "x", "value": "the secret word"}),
            ],
            variables=[variable("apiKey"), variable("x")],
        )
    )
    a, b = acme.run(telling)["runId"], acme.run("conformance-noop")["runId"]

    found: JsonObject = diff(acme, a, b)

    assert found["stateDiff"]
    assert not TELLTALE.search(json.dumps(found["stateDiff"]))


def test_a_branch_differs_from_its_source_only_after_the_fork_point(acme: Wire) -> None:
    source = acme.run("conformance-multi-node")["runId"]
    branch = forked(acme, source, "branch", fromSeq=3)

    found = diff(acme, source, branch)

    assert found["divergedAtSeq"] is None or found["divergedAtSeq"] >= 3


@pytest.mark.parametrize("query", [{}, {"against": ""}])
def test_a_comparison_requires_another_run(acme: Wire, greeting: str, query: JsonObject) -> None:
    run = acme.run(greeting)["runId"]

    response = acme.get(f"/v1/runs/{run}:diff", params=query)

    assert (response.status_code, response.json()["details"]["field"]) == (400, "against")


def test_a_list_of_differences_above_the_limit_is_marked_as_cut(acme: Wire) -> None:
    def counting(start: int) -> JsonObject:
        config: JsonObject = {"name": "x", "value": start}
        names = [f"n{number}" for number in range(600)]
        nodes = [node(name, "core.setVariable", config=config) for name in names]
        return workflow(nodes, variables=[variable("x", "number", defaultValue=0)])

    a = acme.run(acme.register(counting(1)), configurable={"recursionLimit": 1000})["runId"]
    b = acme.run(acme.register(counting(2)), configurable={"recursionLimit": 1000})["runId"]

    found = diff(acme, a, b)

    assert found["truncated"] is True
    assert len(found["eventDiffs"]) == 1000


def test_a_live_run_is_compared_up_to_its_last_event(acme: Wire) -> None:
    gate = node("gate", "core.approvalGate", config={"title": "May it?", "actions": ["accept"]})
    workflow_id = acme.register(workflow([node("first"), gate, node("last")]))
    ended, waiting, other = (acme.create(workflow_id) for _ in range(3))
    for run_id in (ended, waiting, other):
        acme.events_until(run_id, "approval.requested")
    acme.post(f"/v1/runs/{ended}/interrupts/gate", {"resumeValue": {"action": "accept"}})
    acme.finished(ended)

    for a, b in ((ended, waiting), (waiting, ended), (waiting, other), (waiting, waiting)):
        found = diff(acme, a, b)
        assert (found["truncated"], found["divergedAtSeq"]) == (True, None)
        assert (found["eventDiffs"], found["stateDiff"]) == ([], {})


def test_a_live_run_differs_where_its_log_differs(acme: Wire, greeting: str) -> None:
    gate = node("gate", "core.approvalGate", config={"title": "May it?", "actions": ["accept"]})
    waiting = acme.create(acme.register(workflow([gate])))
    acme.events_until(waiting, "approval.requested")
    ended = acme.run(greeting)["runId"]

    found = diff(acme, waiting, ended)

    assert (found["truncated"], found["divergedAtSeq"]) == (True, 0)
