from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.definitions import fresh, node, workflow
from tests.support.feedback import CANARY, listed, rating
from tests.support.host import DEVELOPER, REVIEWER, VIEWER
from tests.wire.conftest import Connect
from wopr.protocol.documents import Json, JsonObject

pytestmark = pytest.mark.both_stores

RUBRIC: list[JsonObject] = [
    {"kind": "rating", "question": "How good is it?"},
    {"kind": "label", "labels": ["right", "wrong"], "required": False},
]


def tagged_runs(wire: Wire, count: int) -> tuple[str, list[str]]:
    """Return a new tag and the runs that have it, newest first."""
    tag = fresh("tag")
    runs = [wire.run("conformance-noop", tags=[tag])["runId"] for _ in range(count)]
    return tag, runs[::-1]


def open_queue(wire: Wire, **fields: Json) -> JsonObject:
    response = wire.post("/v1/queues", {"name": "review", "rubric": RUBRIC, **fields})
    assert response.status_code == 201, response.text
    queue: JsonObject = response.json()
    return queue


def take(wire: Wire, queue: JsonObject) -> JsonObject | None:
    response = wire.post(f"/v1/queues/{queue['queueId']}/items:next")
    assert response.status_code in (200, 204), response.text
    return response.json() if response.status_code == 200 else None


def taken_run(wire: Wire, queue: JsonObject) -> str:
    item = take(wire, queue)
    assert item is not None
    return str(item["runId"])


def done_path(queue: JsonObject, run_id: str) -> str:
    return f"/v1/queues/{queue['queueId']}/items/{run_id}:done"


def review(wire: Wire, queue: JsonObject, run_id: str, *signals: JsonObject) -> JsonObject:
    body = {"annotations": [{"signal": signal} for signal in signals]}
    response = wire.post(done_path(queue, run_id), body)
    assert response.status_code == 200, response.text
    taken: JsonObject = response.json()
    return taken


def progress(wire: Wire, queue: JsonObject) -> JsonObject:
    found: JsonObject = wire.document(f"/v1/queues/{queue['queueId']}")["progress"]
    return found


@pytest.fixture
def reviewer(connect: Connect) -> Wire:
    return connect(REVIEWER)


@pytest.fixture
def developer(connect: Connect) -> Wire:
    return connect(DEVELOPER)


def test_a_queue_contains_the_chosen_runs_in_order(acme: Wire) -> None:
    _, runs = tagged_runs(acme, 2)

    queue = open_queue(acme, runIds=runs)

    assert queue["rubric"] == RUBRIC
    assert progress(acme, queue) == {
        **{"items": 2, "finished": 0, "locked": 0, "reviews": 0},
        **{"compared": 0, "agreed": 0},
    }
    item = take(acme, queue)
    assert item is not None
    assert (item["runId"], item["rubric"]) == (runs[0], RUBRIC)
    assert item["statusUrl"] == f"/v1/runs/{runs[0]}"


def test_a_queue_with_a_filter_adds_runs_that_end_later(acme: Wire, reviewer: Wire) -> None:
    tag, [first] = tagged_runs(acme, 1)
    queue = open_queue(acme, filter={"tag": tag})
    review(reviewer, queue, taken_run(reviewer, queue), rating(3))
    assert take(reviewer, queue) is None

    later = acme.run("conformance-noop", tags=[tag])["runId"]

    assert taken_run(reviewer, queue) == later != first
    assert progress(acme, queue)["items"] == 2


def test_a_queue_with_a_filter_has_at_most_the_requested_number(acme: Wire) -> None:
    tag, runs = tagged_runs(acme, 3)

    queue = open_queue(acme, filter={"tag": tag}, mostItems=2)
    for run_id in runs[:2]:
        review(acme, queue, taken_run(acme, queue), rating(3))
        assert len(listed(acme, run_id)) == 1

    assert take(acme, queue) is None
    assert progress(acme, queue)["items"] == 2


def test_only_ended_runs_are_reviewed_by_default(acme: Wire) -> None:
    tag = fresh("tag")
    waiting = acme.register(workflow([node("gate", "core.delay", config={"ms": 60_000})]))
    run_id = acme.create(waiting, tags=[tag])

    assert progress(acme, open_queue(acme, filter={"tag": tag}))["items"] == 0
    unfinished = open_queue(acme, filter={"tag": tag, "status": ["running"]})
    assert progress(acme, unfinished)["items"] == 1
    acme.post(f"/v1/runs/{run_id}/cancel")


def test_a_run_is_held_for_one_reviewer_until_it_is_completed(
    acme: Wire, reviewer: Wire, developer: Wire
) -> None:
    _, runs = tagged_runs(acme, 2)
    queue = open_queue(acme, runIds=runs)

    assert taken_run(reviewer, queue) == taken_run(reviewer, queue) == runs[0]
    assert taken_run(developer, queue) == runs[1]
    assert take(acme, queue) is None
    assert progress(acme, queue)["locked"] == 2

    taken = review(reviewer, queue, runs[0], rating(4), {"kind": "label", "label": "right"})

    assert (taken["reviews"], taken["finished"]) == (1, True)
    assert listed(acme, runs[0]) == taken["annotations"]
    assert take(reviewer, queue) is None


def test_agreeing_and_disagreeing_reviewers_are_counted(
    acme: Wire, reviewer: Wire, developer: Wire
) -> None:
    _, runs = tagged_runs(acme, 2)
    queue = open_queue(acme, runIds=runs, overlap=2)
    for wire, stars in ((reviewer, (4, 2)), (developer, (4, 5))):
        for value in stars:
            review(wire, queue, taken_run(wire, queue), rating(value))

    found = progress(acme, queue)

    assert (found["finished"], found["reviews"]) == (2, 4)
    assert (found["compared"], found["agreed"], found["agreement"]) == (2, 1, 0.5)


@pytest.mark.parametrize(
    ("signals", "wrong"),
    [
        ([], "annotations"),
        ([{"kind": "label", "label": "right"}], "annotations"),
        ([rating(3), {"kind": "flag"}], "annotations.1.signal"),
        ([rating(3), rating(4)], "annotations.1.signal"),
        ([rating(3), {"kind": "label", "label": "odd"}], "annotations.1.signal"),
    ],
    ids=str,
)
def test_a_review_must_answer_the_rubric(acme: Wire, signals: list[JsonObject], wrong: str) -> None:
    _, [run_id] = tagged_runs(acme, 1)
    queue = open_queue(acme, runIds=[run_id])
    take(acme, queue)

    body = {"annotations": [{"signal": signal} for signal in signals]}
    response = acme.post(done_path(queue, run_id), body)

    assert response.status_code == 400
    assert response.json()["details"]["field"] == wrong
    assert listed(acme, run_id) == []


def test_a_run_must_be_claimed_before_its_review_and_is_reviewed_once(acme: Wire) -> None:
    _, [run_id] = tagged_runs(acme, 1)
    queue = open_queue(acme, runIds=[run_id])
    body = {"annotations": [{"signal": rating(3)}]}

    too_early = acme.post(done_path(queue, run_id), body)
    take(acme, queue)
    review(acme, queue, run_id, rating(3))
    again = acme.post(done_path(queue, run_id), body)

    assert (too_early.status_code, again.status_code) == (409, 409)
    assert too_early.json()["error"] == "review_conflict"
    assert len(listed(acme, run_id)) == 1


def test_a_queue_for_named_reviewers_is_closed_to_others(acme: Wire, reviewer: Wire) -> None:
    _, [run_id] = tagged_runs(acme, 1)
    name = acme.post(f"/v1/runs/{run_id}/annotations", {"signal": rating(1)}).json()["actor"]
    queue = open_queue(acme, runIds=[run_id], reviewers=[name["principalRef"]])

    refused = reviewer.post(f"/v1/queues/{queue['queueId']}/items:next")

    assert refused.status_code == 403
    assert taken_run(acme, queue) == run_id


def test_the_texts_of_a_queue_are_redacted(acme: Wire) -> None:
    rubric = [{"kind": "flag", "question": f"does it show {CANARY}?"}]
    _, runs = tagged_runs(acme, 1)

    queue = open_queue(acme, name=CANARY, rubric=rubric, runIds=runs)

    assert CANARY not in str(queue)
    assert CANARY not in acme.get(f"/v1/queues/{queue['queueId']}").text


@pytest.mark.parametrize(
    "changes",
    [
        {"runIds": []},
        {"filter": {}, "runIds": ["x"]},
        {"rubric": []},
        {"rubric": [{"kind": "flag"}, {"kind": "flag"}]},
        {"rubric": [{"kind": "flag", "labels": ["x"]}]},
        {"overlap": 0},
        {"overlap": 2, "reviewers": ["one"]},
        {"lockMinutes": 0},
        {"filter": {"since": "yesterday"}},
        {"filter": {"colour": "red"}},
        {"owner": "me"},
    ],
    ids=str,
)
def test_an_invalid_queue_is_refused(acme: Wire, changes: JsonObject) -> None:
    body: JsonObject = {"name": "q", "rubric": RUBRIC, **changes}
    if "filter" not in changes and "runIds" not in changes:
        body["filter"] = {}

    response = acme.post("/v1/queues", body)

    assert response.status_code == 400, response.text


def test_queues_are_listed_newest_first_in_pages(globex: Wire) -> None:
    made = [open_queue(globex, filter={})["queueId"] for _ in range(3)]
    found: list[str] = []
    query: JsonObject = {"limit": 2}

    while True:
        page = globex.document("/v1/queues", params=query)
        found += [queue["queueId"] for queue in page["items"]]
        if "nextCursor" not in page:
            break
        query = {"limit": 2, "cursor": page["nextCursor"]}

    assert found[:3] == made[::-1]


def test_a_viewer_sees_queues_and_can_claim_nothing(acme: Wire, connect: Connect) -> None:
    queue = open_queue(acme, filter={"tag": fresh("tag")})
    viewer = connect(VIEWER)

    assert viewer.get(f"/v1/queues/{queue['queueId']}").status_code == 200
    assert viewer.post("/v1/queues", {"name": "q"}).status_code == 403
    assert viewer.post(f"/v1/queues/{queue['queueId']}/items:next").status_code == 403
    assert viewer.post(done_path(queue, "x"), {"annotations": []}).status_code == 403


def test_another_tenant_s_queues_and_runs_are_not_found(acme: Wire, globex: Wire) -> None:
    _, [run_id] = tagged_runs(acme, 1)
    queue = open_queue(acme, runIds=[run_id])
    take(acme, queue)
    path = f"/v1/queues/{queue['queueId']}"
    body = {"annotations": [{"signal": rating(1)}]}

    assert globex.get(path).status_code == 404
    assert globex.post(f"{path}/items:next").status_code == 404
    assert globex.post(done_path(queue, run_id), body).status_code == 404
    assert queue["queueId"] not in globex.get("/v1/queues", params={"limit": 200}).text
    foreign = globex.post("/v1/queues", {"name": "q", "rubric": RUBRIC, "runIds": [run_id]})
    assert foreign.status_code == 404
    assert listed(acme, run_id) == []
