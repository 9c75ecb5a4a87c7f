from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.client import Wire
from tests.support.definitions import fresh, node, workflow
from tests.support.host import ACME, ServedHost
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.both_stores


def _ids(wire: Wire, **params: str | int) -> list[str]:
    """Return the ids of one page."""
    items: list[JsonObject] = wire.document("/v1/runs", params=params)["items"]
    return [item["runId"] for item in items]


def _walk(wire: Wire, **params: str | int) -> list[str]:
    """Return the ids of all pages."""
    found: list[str] = []
    page = wire.document("/v1/runs", params=params)
    while True:
        found += [item["runId"] for item in page["items"]]
        if "nextCursor" not in page:
            return found
        page = wire.document("/v1/runs", params={**params, "cursor": page["nextCursor"]})


def test_the_newest_run_is_first(acme: Wire) -> None:
    tag = fresh("tag")
    created = [acme.create("conformance-noop", tags=[tag]) for _ in range(5)]

    assert _ids(acme, tag=tag) == created[::-1]


def test_an_item_has_the_members_that_a_list_needs(acme: Wire) -> None:
    tag = fresh("tag")
    run_id = acme.create("conformance-noop", tags=[tag, "second"])

    (item,) = acme.document("/v1/runs", params={"tag": tag})["items"]

    assert item.pop("createdAt") <= item.pop("updatedAt") <= item.pop("endedAt")
    assert item == {
        "runId": run_id,
        "workflowId": "conformance-noop",
        "workflowVersion": "1.0",
        "status": "completed",
        "tags": [tag, "second"],
    }


def test_runs_are_filtered_by_status(acme: Wire) -> None:
    tag = fresh("tag")
    done = acme.create("conformance-noop", tags=[tag])
    failed = acme.create("conformance-failure", tags=[tag])
    running = acme.create("conformance-cancellable", tags=[tag])

    assert _ids(acme, tag=tag, status="completed") == [done]
    assert _ids(acme, tag=tag, status="completed,failed") == [failed, done]
    assert _ids(acme, tag=tag, status="running") == [running]
    assert _ids(acme, tag=tag, status="paused") == []
    acme.post(f"/v1/runs/{running}/cancel")


def test_runs_are_filtered_by_workflow_and_tag_and_both(acme: Wire) -> None:
    tag, other = fresh("tag"), fresh("tag")
    own = acme.register(workflow([node("a")]))
    first = acme.create(own, tags=[tag])
    second = acme.create(own, tags=[other])
    third = acme.create("conformance-noop", tags=[tag])

    assert _ids(acme, workflowId=own) == [second, first]
    assert _ids(acme, tag=tag) == [third, first]
    assert _ids(acme, tag=tag, workflowId=own) == [first]
    assert _ids(acme, tag=tag, workflowId=own, status="failed") == []
    assert _ids(acme, workflowId="nowhere") == []


def test_the_children_of_a_run_are_found_by_their_parent(acme: Wire) -> None:
    parent = acme.run("conformance-subworkflow-parent")

    found = acme.document("/v1/runs", params={"parentRunId": parent["runId"]})["items"]

    assert [item["runId"] for item in found] == [parent["childRuns"][0]["runId"]]
    assert found[0]["parentRunId"] == parent["runId"]


def test_runs_are_filtered_by_time(acme: Wire) -> None:
    tag = fresh("tag")
    runs = [acme.create("conformance-delay", {"delayMs": 30}, tags=[tag]) for _ in range(3)]
    times = []
    for run_id in runs:
        times.append(acme.finished(run_id)["startedAt"])
    middle = times[1]

    assert set(_ids(acme, tag=tag, since=middle)) >= {runs[2], runs[1]}
    assert runs[1] not in _ids(acme, tag=tag, until=middle)
    assert _ids(acme, tag=tag, since="2999-01-01T00:00:00Z") == []
    assert _ids(acme, tag=tag, until="2999-01-01T00:00:00Z") == runs[::-1]
    assert _ids(acme, tag=tag, since="2001-01-01T00:00:00+02:00") == runs[::-1]


@pytest.mark.parametrize("limit", [1, 3, 7, 200])
def test_pages_of_any_size_add_up_to_the_whole_list(acme: Wire, limit: int) -> None:
    tag = fresh("tag")
    created = [acme.create("conformance-noop", tags=[tag]) for _ in range(7)]

    assert _walk(acme, tag=tag, limit=limit) == created[::-1]


def test_paging_shows_every_old_run_once_while_new_ones_are_created(
    acme: Wire, host: ServedHost
) -> None:
    tag = fresh("tag")
    old = [acme.create("conformance-noop", tags=[tag]) for _ in range(30)]

    def create_more(_: int) -> list[str]:
        with Wire(host.url, ACME) as wire:
            return [wire.create("conformance-noop", tags=[tag]) for _ in range(15)]

    with ThreadPoolExecutor(3) as pool:
        more = pool.map(create_more, range(3))
        walked = _walk(acme, tag=tag, limit=4)
        new = {run_id for runs in more for run_id in runs}

    assert len(walked) == len(set(walked))
    assert [run_id for run_id in walked if run_id in old] == old[::-1]
    assert set(walked) <= set(old) | new
    assert set(_walk(acme, tag=tag, limit=50)) == set(old) | new


@pytest.mark.parametrize(
    "cursor",
    [
        "!!!",
        "abc",
        "",
        base64.urlsafe_b64encode(b"12").decode(),
        base64.urlsafe_b64encode(b"x:run").decode(),
        base64.urlsafe_b64encode(b"-1:run").decode(),
        base64.urlsafe_b64encode(b"99999999999999999999:run").decode(),
        base64.urlsafe_b64encode(b"1:\xff").decode(),
        base64.urlsafe_b64encode("١٢:run".encode()).decode(),
        "é",
        "A" * 5000,
    ],
)
def test_an_unknown_cursor_is_refused(acme: Wire, cursor: str) -> None:
    response = acme.get("/v1/runs", params={"cursor": cursor})

    assert response.status_code == 400
    assert response.json()["error"] == "validation_error"
    assert response.json()["details"]["field"] == "cursor"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", "0"),
        ("limit", "201"),
        ("limit", "-1"),
        ("limit", "many"),
        ("limit", "1" * 25),
        ("status", "nonsense"),
        ("status", "completed,"),
        ("since", "yesterday"),
        ("since", "2026-13-01T00:00:00Z"),
        ("until", "1e9"),
        ("until", "9999999-01-01T00:00:00Z"),
    ],
)
def test_an_invalid_filter_is_refused_by_name(acme: Wire, name: str, value: str) -> None:
    response = acme.get("/v1/runs", params={name: value})

    assert response.status_code == 400
    assert response.json()["error"] == "validation_error"
    assert response.json()["details"]["field"] == name


def test_an_unknown_parameter_is_ignored(acme: Wire) -> None:
    assert acme.get("/v1/runs", params={"limit": 1, "colour": "red"}).status_code == 200
