"""Runs are listed, queued and judged by their feedback."""

from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.definitions import fresh
from tests.support.feedback import CANARY, FLAG, annotate, finished_run, rating
from tests.support.kahn import KahnRun, push_run
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.both_stores

CORRECTION: JsonObject = {"kind": "correction", "correction": "so"}


def label(text: str) -> JsonObject:
    return {"kind": "label", "label": text}


def ids(wire: Wire, **query: str | int) -> list[str]:
    """Return the runs of all pages of two runs each."""
    found: list[str] = []
    page = wire.document("/v1/runs", params={"limit": 2, **query})
    while True:
        found += [item["runId"] for item in page["items"]]
        if "nextCursor" not in page:
            return found
        page = wire.document("/v1/runs", params={"limit": 2, **query, "cursor": page["nextCursor"]})


@pytest.fixture
def said(acme: Wire) -> tuple[str, dict[str, str]]:
    """Return a tag, and its five runs by their feedback."""
    tag = fresh("tag")
    runs = {
        name: acme.run("conformance-noop", tags=[tag])["runId"]
        for name in ("nothing", "flag", "rating", "correction", "all")
    }
    signals = {"flag": FLAG, "rating": rating(2), "correction": CORRECTION}
    for name, signal in signals.items():
        annotate(acme, runs[name], signal)
        annotate(acme, runs["all"], signal)
    return tag, runs


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"flagged": "true"}, ["all", "flag"]),
        ({"flagged": "false"}, ["correction", "rating", "nothing"]),
        ({"rated": "true"}, ["all", "rating"]),
        ({"rated": "false"}, ["correction", "flag", "nothing"]),
        ({"corrected": "true"}, ["all", "correction"]),
        ({"corrected": "false"}, ["rating", "flag", "nothing"]),
        ({"flagged": "true", "rated": "false"}, ["flag"]),
        ({"flagged": "false", "rated": "false", "corrected": "false"}, ["nothing"]),
    ],
)
def test_runs_are_listed_by_their_feedback(
    acme: Wire,
    said: tuple[str, dict[str, str]],
    query: dict[str, str],
    expected: list[str],
) -> None:
    tag, runs = said
    wanted = [runs[name] for name in expected]

    assert ids(acme, tag=tag, **query) == wanted
    # Without the tag another index is used, over the runs of the whole host.
    everywhere = ids(acme, **query)
    assert [run for run in everywhere if run in runs.values()] == wanted
    assert ids(acme, tag=tag, status="failed", **query) == []


def test_runs_are_listed_by_a_label(acme: Wire) -> None:
    word, other, long = fresh("a word"), fresh("another"), fresh("x") * 200
    first, second, third = (finished_run(acme) for _ in range(3))
    for run_id, text in ((first, word), (first, word), (second, word), (second, other)):
        annotate(acme, run_id, label(text))
    annotate(acme, third, label(long))

    assert ids(acme, label=word) == [second, first]
    assert ids(acme, label=other) == [second]
    assert ids(acme, label=word, status="completed", workflowId="conformance-noop") == [
        second,
        first,
    ]
    assert ids(acme, label=long) == [third]
    assert ids(acme, label=long + "y") == []
    assert ids(acme, label=word, flagged="true") == []


def test_a_label_with_a_secret_is_found_by_its_original_text(acme: Wire) -> None:
    text = f"{fresh('leak')} {CANARY}"
    run_id = finished_run(acme)
    annotate(acme, run_id, label(text))

    assert ids(acme, label=text) == [run_id]


@pytest.mark.parametrize("name", ["flagged", "rated", "corrected"])
@pytest.mark.parametrize("value", ["yes", "1", "TRUE", ""])
def test_a_filter_accepts_only_true_or_false(acme: Wire, name: str, value: str) -> None:
    response = acme.get("/v1/runs", params={name: value})

    assert response.status_code == 400
    body = response.json()
    assert body["error"] == "validation_error"
    assert body["details"]["field"] == name
    assert "true or false" in body["message"]


def test_an_empty_label_is_refused(acme: Wire) -> None:
    response = acme.get("/v1/runs", params={"label": ""})

    assert response.status_code == 400
    assert response.json()["details"]["field"] == "label"


def test_an_item_of_the_list_has_the_mean_rating_of_its_run(acme: Wire) -> None:
    tag = fresh("tag")
    rated, silent = (acme.run("conformance-noop", tags=[tag])["runId"] for _ in range(2))
    for signal in (rating(5), rating(2), FLAG, label("tone"), CORRECTION):
        annotate(acme, rated, signal)

    items = {i["runId"]: i for i in acme.document("/v1/runs", params={"tag": tag})["items"]}

    assert "feedback" not in items[silent]
    assert items[rated]["feedback"] == {
        "annotations": 5,
        "ratings": 2,
        "meanRating": 3.5,
        "corrections": 1,
        "labels": 1,
        "flags": 1,
    }


def test_another_tenant_finds_no_annotated_run(acme: Wire, globex: Wire) -> None:
    word = fresh("word")
    run_id = finished_run(acme)
    for signal in (FLAG, rating(1), CORRECTION, label(word)):
        annotate(acme, run_id, signal)

    assert (ids(acme, label=word), ids(globex, label=word)) == ([run_id], [])
    for name in ("flagged", "rated", "corrected"):
        assert run_id in ids(acme, **{name: "true"})
        assert run_id not in ids(globex, **{name: "true"})


def test_a_queue_can_select_flagged_runs(acme: Wire, said: tuple[str, dict[str, str]]) -> None:
    tag, runs = said
    rubric = [{"kind": "label"}]
    queue = acme.post(
        "/v1/queues",
        {"name": "flagged", "rubric": rubric, "filter": {"tag": tag, "flagged": True}},
    ).json()
    path = f"/v1/queues/{queue['queueId']}"

    taken = []
    while (answer := acme.post(f"{path}/items:next")).status_code == 200:
        taken.append(answer.json()["runId"])
        review = {"annotations": [{"signal": label("seen")}]}
        assert acme.post(f"{path}/items/{taken[-1]}:done", review).status_code == 200

    assert queue["filter"] == {"tag": tag, "flagged": True}
    assert taken == [runs["all"], runs["flag"]]


def test_a_queue_can_select_runs_with_a_label(acme: Wire) -> None:
    word = fresh("word")
    run_id = finished_run(acme)
    annotate(acme, run_id, label(word))

    queue = acme.post(
        "/v1/queues",
        {"name": "labelled", "rubric": [{"kind": "flag"}], "filter": {"label": word}},
    ).json()

    assert queue["progress"]["items"] == 1


@pytest.mark.parametrize("wrong", [{"flagged": "true"}, {"rated": 1}, {"label": ""}])
def test_a_queue_refuses_an_invalid_filter(acme: Wire, wrong: JsonObject) -> None:
    body = {"name": "q", "rubric": [{"kind": "flag"}], "filter": wrong}

    response = acme.post("/v1/queues", body)

    assert response.status_code == 400
    [name] = wrong
    assert name in response.json()["message"]


def test_checks_of_an_observed_run_are_not_counted_as_human_feedback(acme: Wire) -> None:
    story, word = KahnRun(), fresh("policy")
    checks = [
        story.check(agent_id=None, checkpoint_id=word, result=result) for result in ("pass", "fail")
    ]
    run_id = push_run(acme, story.start(), *checks, story.end())

    listed = acme.document(f"/v1/runs/{run_id}/annotations")["annotations"]
    assert [each["signal"]["kind"] for each in listed] == ["label", "flag"]
    assert run_id not in ids(acme, workflowId="kahn.observed", flagged="true")
    assert ids(acme, label=f"{word}=pass") == []
    items = acme.document("/v1/runs", params={"workflowId": "kahn.observed"})["items"]
    assert ["feedback" in item for item in items if item["runId"] == run_id] == [False]

    annotate(acme, run_id, FLAG)

    assert run_id in ids(acme, workflowId="kahn.observed", flagged="true")
