from __future__ import annotations

import pytest

from tests.console.conftest import SignedIn
from tests.console.samples import TenantData
from tests.support.client import Wire
from tests.support.console import Person
from tests.support.definitions import fresh, node, workflow
from tests.support.host import ServedHost


def test_the_list_shows_what_each_run_waits_for(acme: Person, wire: Wire) -> None:
    tag = fresh("tag")
    gate = node("gate", "core.approvalGate", config={"title": "Ship the release?"})
    run_id = wire.create(wire.register(workflow([gate])), tags=[tag])
    wire.events_until(run_id, "interrupt.requested")

    page = acme.page(f"/runs?tag={tag}")

    assert f"/runs/{run_id}" in page.links
    assert "waiting for approval" in page.text
    assert "Ship the release?" in page.text
    assert "anyone with the scope approvals:respond" in page.text


@pytest.mark.parametrize(
    ("query", "is_there"),
    [
        ("status=ended", True),
        ("status=completed", True),
        ("status=active", False),
        ("workflowId=conformance-noop", True),
        ("workflowId=hello", False),
        ("within=1h", True),
        ("until=2020-01-01T00:00:00Z", False),
        ("status=&workflowId=&q=", True),
    ],
)
def test_filters_select_the_listed_runs(
    acme: Person, acme_data: TenantData, query: str, is_there: bool
) -> None:
    page = acme.page(f"/runs?tag={acme_data.tag}&{query}")

    assert (f"/runs/{acme_data.ended}" in page.links) == is_there


def test_an_invalid_filter_is_refused_with_its_name(acme: Person) -> None:
    for query, named in (("status=asleep", "status"), ("within=ever", "within")):
        answer = acme.get(f"/runs?{query}")

        assert answer.status_code == 400
        assert named in answer.text


def test_pages_follow_each_other_without_a_gap(acme: Person, wire: Wire) -> None:
    tag = fresh("tag")
    made = {str(wire.run("conformance-noop", tags=[tag])["runId"]) for _ in range(53)}
    seen: list[str] = []
    path = f"/runs?tag={tag}"
    while path:
        page = acme.page(path)
        seen += [found["title"] for found in page.all("a", **{"class": "id"})]
        path = next((found["href"] for found in page.all("a", rel="next")), "")

    assert len(seen) == 53
    assert set(seen) == made


def test_a_search_finds_the_inputs_of_a_run(acme: Person, wire: Wire) -> None:
    word = fresh("needle")
    run_id = wire.run("hello", {"name": word})["runId"]

    page = acme.page(f"/runs?q={word.upper()}")

    assert f"/runs/{run_id}" in page.links
    assert "Searched" in page.text


def test_an_unchanged_list_is_not_sent_again(acme: Person, acme_data: TenantData) -> None:
    path = f"/runs?tag={acme_data.tag}&status=completed"
    tag = acme.get(path, headers={"x-part": "1"}).headers["etag"]

    answer = acme.get(path, headers={"x-part": "1", "if-none-match": tag})

    assert (answer.status_code, answer.content) == (304, b"")


def test_an_empty_list_suggests_the_next_step(new_empty: Person) -> None:
    page = new_empty.page("/runs")

    assert "No runs yet" in page.text
    assert "/workflows" in page.links


@pytest.fixture
def new_empty(signed_in: SignedIn, host: ServedHost) -> Person:
    """Sign in a person of a tenant without data."""
    key = host.command("keys", "create", "--tenant", fresh("new"), "--role", "admin")
    return signed_in(key.strip())


def test_children_forks_and_feedback_are_marked(acme: Person, wire: Wire) -> None:
    tag = fresh("tag")
    parent = wire.run("conformance-subworkflow-parent", tags=[tag])
    fork = wire.post(f"/v1/runs/{parent['runId']}:fork", {"mode": "branch", "fromSeq": 1})
    wire.post(f"/v1/runs/{parent['runId']}/annotations", {"signal": {"kind": "flag"}})

    page = acme.page("/runs?workflowId=conformance-subworkflow-child")
    own = acme.page(f"/runs?tag={tag}")

    assert f"child of {parent['runId']}" in str(page.elements)
    assert f"forked from {parent['runId']}" in str(own.elements)
    assert "⚑ 1" in own.text
    assert fork.status_code == 201


def test_runs_are_filtered_by_their_feedback(acme: Person, wire: Wire) -> None:
    tag, word = fresh("tag"), fresh("word")
    flagged, other = (str(wire.run("conformance-noop", tags=[tag])["runId"]) for _ in range(2))
    for signal in ({"kind": "flag"}, {"kind": "rating", "rating": 4}):
        wire.post(f"/v1/runs/{flagged}/annotations", {"signal": signal})
    wire.post(f"/v1/runs/{other}/annotations", {"signal": {"kind": "label", "label": word}})

    found = acme.page(f"/runs?tag={tag}&feedback=flagged")
    rest = acme.page(f"/runs?tag={tag}&feedback=not+flagged")
    labelled = acme.page(f"/runs?label={word}")

    assert (f"/runs/{flagged}" in found.links, f"/runs/{other}" in found.links) == (True, False)
    assert "★ 4.0 ⚑ 2" in found.text
    assert (f"/runs/{flagged}" in rest.links, f"/runs/{other}" in rest.links) == (False, True)
    assert f"/runs/{other}" in labelled.links
    assert acme.get("/runs?feedback=loved").status_code == 400
