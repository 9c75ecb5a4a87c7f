from __future__ import annotations

import pytest

from tests.support.agent_definitions import (
    CHAIN,
    DONE,
    answer,
    child,
    children,
    events_of,
    next_worker,
    phases,
    supervised,
)
from tests.support.client import Wire
from tests.support.definitions import edge, from_variable, node, variable
from wopr.protocol.documents import Json, JsonObject

MINE = [variable("mine", defaultValue="alice"), variable("other", defaultValue="bob")]


def echo(**variables: Json) -> JsonObject:
    """Return a worker that returns its input, with own variables."""
    own = [variable(name, defaultValue=value) for name, value in variables.items()]
    given = node("echo", "core.identity", inputs={})
    return child(given, variables=own)


def mapped(
    wire: Wire, *workers: str, variables: list[JsonObject] | None = None, **dispatch: Json
) -> tuple[JsonObject, list[JsonObject], list[JsonObject]]:
    """Return the snapshot, the log and the children of a run that dispatches these workers."""
    definition = supervised(
        next_worker(*workers), DONE, dispatch=dispatch, variables=variables or MINE
    )
    run_id = wire.create(wire.register(definition))
    found = wire.finished(run_id)
    log = wire.log(run_id)
    assert found["status"] == "completed", found
    return found, log, [wire.snapshot(child_id) for child_id in children(log)]


# Inputs


def test_a_child_gets_the_parent_s_variable_under_its_own_name(acme: Wire) -> None:
    _, _, (born,) = mapped(acme, acme.register(echo()), inputMapping={"greeting": "mine"})

    assert born["inputs"] == {"greeting": "alice"}


def test_an_input_mapping_overrides_the_child_s_default(acme: Wire) -> None:
    worker = acme.register(echo(greeting="nobody"))
    _, _, (born,) = mapped(acme, worker, inputMapping={"greeting": "mine"})

    assert born["variables"]["greeting"] == "alice"


def test_without_a_mapping_a_child_gets_nothing(acme: Wire) -> None:
    _, _, (born,) = mapped(acme, acme.register(echo()))

    assert born["inputs"] == {}


@pytest.mark.parametrize("unset", ["undeclared", "empty"])
def test_a_variable_without_a_value_is_omitted_and_never_null(acme: Wire, unset: str) -> None:
    variables = [*MINE, variable("empty")]
    worker = acme.register(echo())
    mapping = {"greeting": "mine", "missing": unset}
    _, _, (born,) = mapped(acme, worker, variables=variables, inputMapping=mapping)

    assert born["inputs"] == {"greeting": "alice"}


def test_a_child_s_default_is_kept_where_nothing_is_mapped(acme: Wire) -> None:
    worker = acme.register(echo(greeting="own"))
    _, _, (born,) = mapped(acme, worker, inputMapping={"greeting": "undeclared"})

    assert born["variables"]["greeting"] == "own"


def test_a_null_value_of_the_parent_is_passed_on(acme: Wire) -> None:
    sets = node("set", "core.setVariable", config={"name": "mine", "value": None})
    definition = supervised(
        next_worker(acme.register(echo())),
        DONE,
        dispatch={"inputMapping": {"greeting": "mine"}},
        variables=MINE,
    )
    definition["nodes"].insert(0, sets)
    definition["edges"] = [
        {"id": "in", "sourceNodeId": "set", "targetNodeId": "supervisor"},
        *definition["edges"],
    ]
    run_id = acme.create(acme.register(definition))
    acme.finished(run_id)

    assert acme.snapshot(children(acme.log(run_id))[0])["inputs"] == {"greeting": None}


def test_a_worker_s_mapping_replaces_the_default_one(acme: Wire) -> None:
    one, two = acme.register(echo()), acme.register(echo())
    _, _, (first, second) = mapped(
        acme,
        one,
        two,
        inputMapping={"greeting": "mine"},
        perWorkerInputMappings={two: {"name": "other"}},
    )

    assert first["inputs"] == {"greeting": "alice"}
    assert second["inputs"] == {"name": "bob"}


def test_a_worker_s_empty_mapping_disables_the_default(acme: Wire) -> None:
    worker = acme.register(echo())
    _, _, (born,) = mapped(
        acme, worker, inputMapping={"greeting": "mine"}, perWorkerInputMappings={worker: {}}
    )

    assert born["inputs"] == {}


def test_two_children_of_one_workflow_share_its_mapping(acme: Wire) -> None:
    worker = acme.register(echo())
    _, _, born = mapped(acme, worker, worker, perWorkerInputMappings={worker: {"name": "other"}})

    assert [each["inputs"] for each in born] == [{"name": "bob"}] * 2


# Outputs


def test_a_parent_gets_a_completed_child_s_variable_under_its_own_name(acme: Wire) -> None:
    worker = acme.register(echo(outcome="done"))
    found, log, _ = mapped(acme, worker, outputMapping={"mine": "outcome"})

    assert found["variables"] == {"mine": "done", "other": "bob"}
    harvested = events_of(log, CHAIN)[-1]["payload"]
    assert harvested["harvestedKeys"] == ["mine"]


def test_a_variable_missing_in_the_child_does_not_change_the_parent_s(acme: Wire) -> None:
    worker = acme.register(echo(outcome="done"))
    found, log, _ = mapped(acme, worker, outputMapping={"mine": "outcome", "other": "nothing"})

    assert found["variables"] == {"mine": "done", "other": "bob"}
    assert events_of(log, CHAIN)[-1]["payload"]["harvestedKeys"] == ["mine"]


def test_a_harvest_without_values_is_still_a_harvest(acme: Wire) -> None:
    found, log, _ = mapped(acme, acme.register(echo()), outputMapping={"mine": "nothing"})

    assert found["variables"]["mine"] == "alice"
    assert events_of(log, CHAIN)[-1]["payload"]["harvestedKeys"] == []
    assert phases(log)[-1] == "output.harvested"


def test_a_worker_s_empty_output_mapping_disables_the_default(acme: Wire) -> None:
    worker = acme.register(echo(outcome="done"))
    found, log, _ = mapped(
        acme, worker, outputMapping={"mine": "outcome"}, perWorkerOutputMappings={worker: {}}
    )

    assert found["variables"]["mine"] == "alice"
    assert "output.harvested" not in phases(log)


def test_the_output_of_one_worker_reaches_the_next(acme: Wire) -> None:
    one, two = acme.register(echo(output="hello")), acme.register(echo())
    found, _, (_, second) = mapped(
        acme,
        one,
        two,
        perWorkerOutputMappings={one: {"mine": "output"}},
        perWorkerInputMappings={two: {"input": "mine"}},
    )

    assert found["variables"]["mine"] == "hello"
    assert second["inputs"] == {"input": "hello"}


def test_harvested_values_of_a_turn_reach_the_next_turn(acme: Wire) -> None:
    one, two = acme.register(echo(output="hello")), acme.register(echo())
    definition = supervised(
        next_worker(one),
        next_worker(two),
        DONE,
        dispatch={
            "perWorkerOutputMappings": {one: {"mine": "output"}},
            "perWorkerInputMappings": {two: {"input": "mine"}},
        },
        variables=MINE,
    )
    run_id = acme.create(acme.register(definition))
    acme.finished(run_id)

    last = acme.snapshot(children(acme.log(run_id))[-1])
    assert last["inputs"] == {"input": "hello"}


def test_a_child_s_value_is_returned_as_json_and_not_as_text(acme: Wire) -> None:
    deep = {"list": [1, {"a": None}], "text": "ü"}
    worker = acme.register(child(variables=[variable("outcome", "object", defaultValue=deep)]))
    found, _, _ = mapped(
        acme,
        worker,
        variables=[variable("mine", "object", defaultValue={})],
        outputMapping={"mine": "outcome"},
    )

    assert found["variables"]["mine"] == deep


def test_inputs_are_mapped_once_and_later_changes_stay_in_the_parent(acme: Wire) -> None:
    gate = node("gate", "core.approvalGate", config={"title": "Go on?"})
    after = node("after", "core.identity", inputs={"seen": from_variable("greeting")})
    worker = acme.register(child(gate, after, variables=[variable("greeting")]))
    definition = supervised(
        next_worker(worker), DONE, dispatch={"inputMapping": {"greeting": "mine"}}, variables=MINE
    )
    sets = node("set", "core.setVariable", config={"name": "mine", "value": "changed"})
    definition["nodes"] += [gate, sets]
    definition["edges"] = [*definition["edges"], edge("gate", "set")]
    run_id = acme.create(acme.register(definition))
    (child_id,) = children(acme.events_until(run_id, "node.dispatched"))
    acme.events_until(child_id, "interrupt.requested")
    answer(acme, run_id, "gate", {"action": "accept"})
    answer(acme, child_id, "gate", {"action": "accept"})

    found, born = acme.finished(run_id), acme.finished(child_id)

    assert found["variables"]["mine"] == "changed"
    assert born["outputs"]["after"] == {"seen": "alice"}
