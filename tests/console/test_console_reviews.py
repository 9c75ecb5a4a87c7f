from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.console.conftest import SignedIn
from tests.console.samples import PROBE, PROBES
from tests.support.client import Wire
from tests.support.console import Markup, Person
from tests.support.definitions import fresh
from tests.support.feedback import finished_run, listed, rating
from tests.support.host import ACME, DEVELOPER, OPERATOR, REVIEWER, VIEWER, ServedHost
from tests.support.interrupts import principal_of

RATING = {"ask.rating": "1", "required.rating": "1"}


def opened(person: Person, **fields: str) -> str:
    """Open a queue with the form and return the path of its page."""
    answer = person.post("/reviews/queues/new", **({"name": "q"} | RATING | fields))
    assert answer.status_code == 303, Markup(answer.text).text
    return answer.headers["location"].partition("?")[0]


def held(person: Person, queue: str) -> str:
    """Claim the next run of a queue and return the path of its page, with the lock."""
    answer = person.post(f"{queue}/next")
    assert answer.status_code == 303
    return answer.headers["location"]


# Queues


def test_a_queue_is_opened_over_chosen_runs_and_shows_its_rubric(acme: Person, wire: Wire) -> None:
    runs = [finished_run(wire) for _ in range(2)]
    fields = {
        "name": "Letters",
        "runIds": "\n".join(runs),
        "question.rating": "Friendly?",
        "ask.label": "1",
        "labels": "warm, cold",
        "reviewers": f"{principal_of(ACME)}, {principal_of(REVIEWER)}",
        "overlap": "2",
        "lockMinutes": "20",
    }

    queue = opened(acme, **fields)

    text = acme.page(queue).text
    for words in ("Letters", "Friendly?", "warm", "0 of 2", "20 minutes", principal_of(REVIEWER)):
        assert words in text
    stored = wire.document("/v1" + queue.replace("/reviews", ""))
    assert stored["overlap"] == 2
    assert [item["kind"] for item in stored["rubric"]] == ["rating", "label"]
    assert [item["required"] for item in stored["rubric"] if "required" in item] == [False]


def test_a_queue_is_opened_over_a_saved_filter(acme: Person, wire: Wire) -> None:
    tag = fresh("tag")
    wire.run("conformance-noop", tags=[tag])

    queue = opened(acme, workflowId="conformance-noop", tag=tag)

    assert "0 of 1" in acme.page(queue).text
    assert wire.document("/v1" + queue.replace("/reviews", ""))["filter"]["tag"] == tag


def test_a_queue_is_opened_over_flagged_runs(acme: Person, wire: Wire) -> None:
    tag = fresh("tag")
    flagged, _ = (str(wire.run("conformance-noop", tags=[tag])["runId"]) for _ in range(2))
    wire.post(f"/v1/runs/{flagged}/annotations", {"signal": {"kind": "flag"}})

    queue = opened(acme, tag=tag, feedback="flagged")
    rest = opened(acme, tag=tag, feedback="not flagged", label="tone")

    assert "0 of 1" in acme.page(queue).text
    assert ", flagged" in acme.page(queue).text
    stored = wire.document("/v1" + rest.replace("/reviews", ""))["filter"]
    assert (stored["flagged"], stored["label"]) == (False, "tone")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "", **RATING}, "name"),
        ({"name": "q"}, "select at least one kind of feedback"),
        ({"name": "q", "runIds": "nowhere", **RATING}, "there is no run"),
        ({"name": "q", "overlap": "0", **RATING}, "overlap"),
        ({"name": "q", "overlap": "many", **RATING}, "whole number"),
        ({"name": "q", "overlap": "3", "reviewers": "a,b", **RATING}, "larger than the number"),
    ],
    ids=["no name", "no rubric", "no such run", "no reviewer", "no number", "too much overlap"],
)
def test_an_invalid_queue_is_shown_again_with_its_errors(
    acme: Person, fields: dict[str, str], words: str
) -> None:
    answer = acme.post("/reviews/queues/new", **fields)

    assert answer.status_code == 400
    assert words in Markup(answer.text).text
    assert Markup(answer.text).all("input", name="name", value=fields["name"])


def test_a_run_is_claimed_reviewed_and_followed_by_the_next(acme: Person, wire: Wire) -> None:
    runs = [finished_run(wire) for _ in range(2)]
    queue = opened(acme, runIds=",".join(runs), **{"ask.flag": "1"})

    first = held(acme, queue)
    page = acme.page(first)
    second = acme.post(first.partition("?")[0], rating="4", flag="1", note="good", then="next")
    end = acme.post(second.headers["location"].partition("?")[0], rating="5", then="next")

    assert first.partition("?")[0] == f"{queue}/items/{runs[0]}"
    assert "Locked for you; the lock expires in" in page.text
    assert second.headers["location"].startswith(f"{queue}/items/{runs[1]}?until=")
    assert end.headers["location"] == f"{queue}?done=finished"
    assert [each["signal"] for each in listed(wire, runs[0])] == [rating(4), {"kind": "flag"}]
    assert listed(wire, runs[0])[0]["note"] == "good"
    assert "2 of 2" in acme.page(queue).text


def test_the_holder_of_a_run_gets_it_again_and_others_do_not(
    acme: Person, signed_in: SignedIn, wire: Wire
) -> None:
    queue = opened(acme, runIds=finished_run(wire))
    mine = held(acme, queue)

    again = held(acme, queue)
    others = held(signed_in(REVIEWER), queue)

    assert again.partition("?")[0] == mine.partition("?")[0]
    assert others == f"{queue}?done=empty"


def test_an_incomplete_review_is_shown_again(acme: Person, wire: Wire) -> None:
    run_id = finished_run(wire)
    queue = opened(acme, runIds=run_id, **{"ask.label": "1", "labels": "warm,cold"})
    item = held(acme, queue)
    path, until = item.partition("?")[0], item.rpartition("=")[2]

    missing = acme.post(path, label="warm", until=until)
    wrong = acme.post(path, rating="4", label="hot", until=until)
    nothing = acme.post(path, until=until)

    assert [each.status_code for each in (missing, wrong, nothing)] == [400, 400, 400]
    assert "also requires rating" in missing.text
    assert Markup(missing.text).all("input", name="label", value="warm", checked="")
    assert "must be one of warm, cold" in wrong.text
    assert listed(wire, run_id) == []


def test_a_run_reviewed_by_another_person_is_not_reviewed_twice(
    acme: Person, signed_in: SignedIn, wire: Wire
) -> None:
    run_id = finished_run(wire)
    queue = opened(acme, runIds=run_id)
    held(acme, queue)

    late = signed_in(REVIEWER).post(f"{queue}/items/{run_id}", rating="1", until="1")

    assert late.status_code == 409
    assert "Your lock has expired" in late.text
    assert listed(wire, run_id) == []


def test_an_unclaimed_run_can_be_viewed_and_claimed(acme: Person, wire: Wire) -> None:
    run_id = finished_run(wire)
    queue = opened(acme, runIds=run_id)

    page = acme.page(f"{queue}/items/{run_id}")

    assert "Take the run first" in page.text
    assert not page.all("input", name="rating")
    assert acme.get(f"{queue}/items/{run_id}?until=soon").status_code == 400


def test_agreement_is_shown_once_two_people_have_reviewed(
    acme: Person, signed_in: SignedIn, wire: Wire
) -> None:
    queue = opened(acme, runIds=finished_run(wire), overlap="2")
    before = acme.page(queue).text

    for person, stars in ((acme, "4"), (signed_in(OPERATOR), "4")):
        person.post(held(person, queue).partition("?")[0], rating=stars, then="stop")

    assert "no run has two reviews yet" in before
    assert "100 %" in acme.page(queue).text
    assert "100 %" in acme.page("/reviews").text


def test_a_queue_of_other_reviewers_offers_no_review(
    acme: Person, signed_in: SignedIn, wire: Wire
) -> None:
    run_id = finished_run(wire)
    queue = opened(acme, runIds=run_id, reviewers=principal_of(REVIEWER))
    developer = signed_in(DEVELOPER)

    page = developer.page(queue)

    assert "for other reviewers" in page.text
    assert not page.all("form", action=f"{queue}/next")
    assert developer.post(f"{queue}/next").status_code == 403
    assert developer.post(f"{queue}/items/{run_id}", rating="1").status_code == 403


def test_a_viewer_sees_queues_without_forms(acme: Person, signed_in: SignedIn, wire: Wire) -> None:
    queue = opened(acme, runIds=finished_run(wire))
    viewer = signed_in(VIEWER)

    page, reviews = viewer.page(queue), viewer.page("/reviews")

    assert not page.all("form", action=f"{queue}/next")
    assert "/reviews/queues/new" not in reviews.links
    assert queue in reviews.links


def test_text_of_a_review_is_escaped(acme: Person, wire: Wire) -> None:
    run_id = finished_run(wire)
    fields = {"question.rating": PROBE, "ask.correction": "1", "question.correction": PROBE}
    queue = opened(acme, name=PROBE[:250], runIds=run_id, **fields)
    item = held(acme, queue)
    again = acme.post(item.partition("?")[0], correction=PROBE, note=PROBE, until="9999999999999")
    sent = acme.post(item.partition("?")[0], rating="2", correction=PROBE, note=PROBE)
    bad = acme.post("/reviews/queues/new", name=PROBE, reviewers=PROBE, labels=PROBE)

    pages = [again, bad, acme.get(queue), acme.get(item), acme.get("/reviews")]

    assert sent.status_code == 303
    for answer in [*pages, acme.get(f"/runs/{run_id}")]:
        assert PROBES[0] not in answer.text
        assert "window.pwned" in answer.text


# Two keystrokes without a browser


def test_a_correction_of_one_event_has_its_own_form(acme: Person, wire: Wire) -> None:
    run_id = finished_run(wire)
    event = wire.log(run_id)[1]["eventId"]

    page = acme.page(f"/runs/{run_id}/feedback?eventId={event}")

    assert page.all("input", name="eventId", value=event)
    assert "On event 1" in page.text


def test_runs_can_be_annotated_only_with_the_scope(
    acme: Person, signed_in: SignedIn, wire: Wire
) -> None:
    run_id = finished_run(wire)
    viewer = signed_in(VIEWER)

    for path in ("/runs", f"/runs/{run_id}"):
        assert [e for _, e in acme.page(path).elements if "data-feedback" in e]
        assert not [e for _, e in viewer.page(path).elements if "data-feedback" in e]


def test_with_feedback_off_no_page_links_to_reviews(
    new_host: Callable[..., ServedHost], signed_in: SignedIn
) -> None:
    person = signed_in(ACME, new_host("--conformance", WOPR_FEEDBACK="0"))

    assert "/reviews" not in person.page("/runs").links
    assert person.get("/reviews").status_code == 501
