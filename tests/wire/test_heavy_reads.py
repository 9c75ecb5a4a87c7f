"""Reads of large runs are cut to a size, and marked as cut."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.client import Wire
from tests.support.console import Person
from tests.support.definitions import node, variable, workflow
from tests.support.host import ACME, ServedHost
from wopr.protocol.documents import JsonObject

Connect = Callable[..., Wire]
LARGEST_DIFF_BYTES = 8 * 1024 * 1024
LARGEST_PAGE_BYTES = 2 * 1024 * 1024


def _run(wire: Wire, letter: str) -> str:
    """Run 12 inputs of about 200 kB, with three nodes for each that output it.

    Larger values would be stored separately, and the log would only refer to them.
    """
    names = [f"payload{number}" for number in range(12)]
    echoes = [
        node(f"{name}-{number}", "core.identity", inputs={"payload": _variable(name)})
        for name in names
        for number in range(3)
    ]
    variables = [variable(name, "object", required=True) for name in names]
    payload = {"a": [{f"k{letter}": number} for number in range(15_000)]}
    run_id = wire.create(
        wire.register(workflow(echoes, variables=variables)), dict.fromkeys(names, payload)
    )
    wire.finished(run_id)
    return run_id


def _variable(name: str) -> JsonObject:
    return {"type": "variable", "variableName": name}


def test_a_diff_of_large_runs_is_cut_and_marked(acme: Wire) -> None:
    a, b = _run(acme, "a"), _run(acme, "b")

    response = acme.get(f"/v1/runs/{a}:diff", params={"against": b})

    found = response.json()
    assert response.status_code == 200
    assert len(response.content) < LARGEST_DIFF_BYTES
    assert found["truncated"] is True
    assert found["divergedAtSeq"] == found["eventDiffs"][0]["seq"]
    # Every difference is listed, those of large events without the events.
    assert len(found["eventDiffs"]) > 6
    assert not any("aEvent" in each for each in found["eventDiffs"][-3:-1])
    assert found["stateDiff"]["variables"]["payload0"] != {}
    assert found["stateDiff"]["variables"]["payload9"] == {}


def test_a_diff_of_small_runs_is_complete(acme: Wire) -> None:
    definition = workflow([node("a", "core.identity")])
    workflow_id = acme.register(definition)
    runs = [acme.create(workflow_id) for _ in range(2)]
    for run_id in runs:
        acme.finished(run_id)

    found = acme.get(f"/v1/runs/{runs[0]}:diff", params={"against": runs[1]}).json()

    assert "truncated" not in found


def test_the_page_of_a_large_run_shows_the_beginning_of_its_values_and_links_to_the_rest(
    acme: Wire, host: ServedHost
) -> None:
    run_id = _run(acme, "a")

    with Person(host.url) as person:
        person.sign_in(ACME)
        page = person.get(f"/runs/{run_id}")
        event = person.get(f"/runs/{run_id}/events/0")
        output = person.get(f"/runs/{run_id}/nodes/payload0-0")
        compared = person.get("/compare", params={"a": run_id, "b": _run(acme, "b")})

    assert page.status_code == compared.status_code == 200
    assert len(page.content) < LARGEST_PAGE_BYTES
    assert len(compared.content) < LARGEST_PAGE_BYTES
    for each in (page, event, output):
        assert "Only the first 65536 of " in each.text
        assert f'is in the <a href="/runs/{run_id}/bundle">debug bundle</a>' in each.text
