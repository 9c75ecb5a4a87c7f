from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from openwop_client.client import OpenwopClient  # type: ignore[import-untyped]  # ships no types
from openwop_client.types import (  # type: ignore[import-untyped]  # ships no types
    CreateAnnotationRequest,
)

from tests.support.client import Wire
from tests.support.definitions import fresh, node, workflow
from tests.support.feedback import (
    CANARY,
    FLAG,
    annotate,
    finished_run,
    listed,
    live_run,
    path_of,
    rating,
)
from tests.support.host import ACME, REVIEWER, ROLES, VIEWER, ServedHost
from tests.support.stored_files import stored
from tests.wire.conftest import Connect
from wopr.protocol.documents import Json, JsonObject

pytestmark = pytest.mark.both_stores

SIGNALS: list[JsonObject] = [
    rating(5),
    {"kind": "correction", "correction": "Paris"},
    {"kind": "label", "label": "tone"},
    FLAG,
]


def test_discovery_advertises_targets_and_signals(acme: Wire) -> None:
    found = acme.document("/.well-known/openwop")

    block = {
        "supported": True,
        "targets": ["run", "event", "node"],
        "signals": ["rating", "correction", "label", "flag"],
    }
    assert found["feedback"] == found["capabilities"]["feedback"] == block


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: str(signal["kind"]))
def test_a_signal_is_recorded_and_listed(acme: Wire, signal: JsonObject) -> None:
    run_id = finished_run(acme)

    stored = annotate(acme, run_id, signal, note="because")

    assert stored["signal"] == signal
    assert stored["target"] == {"runId": run_id}
    assert stored["note"] == "because"
    assert stored["annotationId"]
    assert stored["createdAt"].endswith("Z")
    assert listed(acme, run_id) == [stored]


def test_a_live_run_accepts_annotations_too(acme: Wire) -> None:
    with live_run(acme) as run_id:
        stored = annotate(acme, run_id)

        assert listed(acme, run_id) == [stored]


def test_a_rating_written_as_a_fraction_is_stored_as_an_integer(acme: Wire) -> None:
    run_id = finished_run(acme)

    acme.post(path_of(run_id), {"signal": {"kind": "rating", "rating": 4.0}})

    assert '"rating":4}' in acme.get(path_of(run_id)).text


BAD_BODIES: list[tuple[Json, str]] = [
    ([], "body"),
    ({}, "signal"),
    ({"signal": {}}, "signal.kind"),
    ({"signal": {"kind": "stars"}}, "signal.kind"),
    ({"signal": {"kind": "rating"}}, "signal.rating"),
    ({"signal": {"kind": "rating", "rating": 0}}, "signal.rating"),
    ({"signal": {"kind": "rating", "rating": 6}}, "signal.rating"),
    ({"signal": {"kind": "rating", "rating": 2.5}}, "signal.rating"),
    ({"signal": {"kind": "rating", "rating": "4"}}, "signal.rating"),
    ({"signal": {"kind": "rating", "rating": True}}, "signal.rating"),
    ({"signal": {"kind": "label"}}, "signal.label"),
    ({"signal": {"kind": "label", "label": 1}}, "signal.label"),
    ({"signal": {"kind": "correction"}}, "signal.correction"),
    ({"signal": {"kind": "flag", "rating": 3}}, "signal.rating"),
    ({"signal": {"kind": "rating", "rating": 3, "label": "x"}}, "signal.label"),
    ({"signal": {"kind": "flag", "score": 1}}, "signal.score"),
    ({"signal": FLAG, "target": {"runId": "x"}}, "target.runId"),
    ({"signal": FLAG, "target": {"eventId": 1}}, "target.eventId"),
    ({"signal": FLAG, "target": {"eventId": "nowhere"}}, "target.eventId"),
    ({"signal": FLAG, "target": {"eventId": ""}}, "target.eventId"),
    ({"signal": FLAG, "target": {"nodeId": "nowhere"}}, "target.nodeId"),
    ({"signal": FLAG, "target": None}, "target"),
    ({"signal": FLAG, "note": 1}, "note"),
    ({"signal": FLAG, "annotationId": "x"}, "annotationId"),
    ({"signal": FLAG, "createdAt": "x"}, "createdAt"),
    ({"signal": FLAG, "actor": {"principalRef": "somebody-else"}}, "actor"),
]


@pytest.mark.parametrize(("body", "field"), BAD_BODIES, ids=str)
def test_an_invalid_body_is_refused_by_its_field_and_stores_nothing(
    acme: Wire, body: Json, field: str
) -> None:
    run_id = finished_run(acme)

    response = acme.post(path_of(run_id), body)

    assert response.status_code == 400
    assert response.json()["error"] == "validation_error"
    assert response.json()["details"]["field"] == field
    assert listed(acme, run_id) == []


def test_an_annotation_can_refer_to_an_event_and_a_node(acme: Wire) -> None:
    run_id = finished_run(acme)
    event = next(e for e in acme.log(run_id) if e["type"] == "node.completed")
    target = {"eventId": event["eventId"], "nodeId": event["nodeId"]}

    stored = annotate(acme, run_id, target=target)

    assert stored["target"] == {"runId": run_id, **target}


def test_an_event_of_another_run_is_not_a_valid_target(acme: Wire) -> None:
    run_id, other = finished_run(acme), finished_run(acme)
    event_id = acme.log(other)[0]["eventId"]

    response = acme.post(path_of(run_id), {"signal": FLAG, "target": {"eventId": event_id}})

    assert response.status_code == 400


def test_annotations_do_not_change_the_run(acme: Wire) -> None:
    run_id = finished_run(acme)
    before = acme.get(f"/v1/runs/{run_id}")
    log = acme.log(run_id)

    annotate(acme, run_id, rating(1))
    after = acme.get(f"/v1/runs/{run_id}")

    assert after.json() == before.json()
    assert after.headers["etag"] == before.headers["etag"]
    assert acme.log(run_id) == log


def test_many_annotations_are_stored_and_listed_in_order(acme: Wire) -> None:
    run_id = finished_run(acme)

    stored = [annotate(acme, run_id, rating(1 + n % 5)) for n in range(8)]

    assert listed(acme, run_id) == stored
    assert stored == sorted(stored, key=lambda each: (each["createdAt"], each["annotationId"]))


def pages(wire: Wire, run_id: str, limit: int) -> list[list[JsonObject]]:
    """Return the annotations of a run page by page, following the links."""
    found: list[list[JsonObject]] = []
    url: str | None = f"{path_of(run_id)}?limit={limit}"
    while url is not None:
        response = wire.get(url)
        assert response.json().keys() == {"annotations"}
        found.append(response.json()["annotations"])
        url = response.links.get("next", {}).get("url")
    return found


def test_a_page_has_a_link_header_to_the_next_and_a_closed_body(acme: Wire) -> None:
    run_id = finished_run(acme)
    stored = [annotate(acme, run_id) for _ in range(5)]

    found = pages(acme, run_id, 2)

    assert found == [stored[:2], stored[2:4], stored[4:]]
    assert "link" not in acme.get(path_of(run_id)).headers


def test_a_page_of_large_annotations_ends_early(acme: Wire) -> None:
    run_id = finished_run(acme)
    signal: JsonObject = {"kind": "correction", "correction": "x" * 60_000}
    stored = [annotate(acme, run_id, signal) for _ in range(20)]

    first, second = pages(acme, run_id, 200)

    assert len(first) == 18
    assert first + second == stored


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "cursor=nonsense"])
def test_an_invalid_page_is_refused(acme: Wire, query: str) -> None:
    assert acme.get(f"{path_of(finished_run(acme))}?{query}").status_code == 400


def test_a_list_too_long_to_buffer_is_sent_completely(acme: Wire) -> None:
    run_id = finished_run(acme)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: annotate(acme, run_id), range(120)))

    found = listed(acme, run_id)
    assert len({each["annotationId"] for each in found}) == len(found) == 120
    assert found == sorted(found, key=lambda each: (each["createdAt"], each["annotationId"]))


def test_secrets_are_removed_before_anything_is_stored(acme: Wire, host: ServedHost) -> None:
    run_id = finished_run(acme)
    text = f"use {CANARY} instead of {ACME}"

    answers = [
        acme.post(path_of(run_id), {"signal": {"kind": "correction", "correction": text}}),
        acme.post(path_of(run_id), {"signal": {"kind": "label", "label": text}}),
        acme.post(path_of(run_id), {"signal": FLAG, "note": text}),
        acme.get(path_of(run_id)),
    ]

    for answer in answers:
        assert CANARY not in answer.text
        assert ACME not in answer.text
        assert "use [REDACTED] instead of [REDACTED:api-key]" in answer.text
    assert CANARY.encode() not in stored(host)


def test_a_refused_body_does_not_repeat_its_secret(acme: Wire) -> None:
    response = acme.post(path_of(finished_run(acme)), {"signal": {"kind": CANARY}})

    assert response.status_code == 400
    assert CANARY not in response.text


# Authorization


def test_the_actor_is_the_caller_s_key_only(connect: Connect, acme: Wire) -> None:
    run_id = finished_run(acme)

    by_admin = annotate(acme, run_id)
    by_reviewer = annotate(connect(REVIEWER), run_id)

    assert by_admin["actor"].keys() == {"principalRef"}
    assert by_admin["actor"] != by_reviewer["actor"]
    assert ACME not in str(by_admin)


@pytest.mark.parametrize("role", ROLES)
def test_annotating_needs_its_scope(connect: Connect, acme: Wire, role: str) -> None:
    run_id = finished_run(acme)

    response = connect(ROLES[role]).post(path_of(run_id), {"signal": FLAG})

    if role in ("viewer", "ingest"):
        assert response.status_code == 403
        assert response.json()["details"]["scopeRequired"] == "runs:annotate"
        assert listed(acme, run_id) == []
    else:
        assert response.status_code == 201


def test_a_viewer_can_list(connect: Connect, acme: Wire) -> None:
    run_id = finished_run(acme)
    stored = annotate(acme, run_id)

    assert listed(connect(VIEWER), run_id) == [stored]


def test_annotating_and_listing_need_a_key(acme: Wire, anonymous: Wire) -> None:
    run_id = finished_run(acme)

    assert anonymous.post(path_of(run_id), {"signal": FLAG}).status_code == 401
    assert anonymous.get(path_of(run_id)).status_code == 401


def _same_but_for_the_id(one: httpx.Response, other: httpx.Response, run_id: str) -> bool:
    return one.text.replace(run_id, "?") == other.text.replace("unknown-run", "?")


def test_another_tenant_s_run_looks_like_a_missing_one(acme: Wire, globex: Wire) -> None:
    run_id = finished_run(acme)
    annotate(acme, run_id)

    posted = globex.post(path_of(run_id), {"signal": FLAG})
    read = globex.get(path_of(run_id))

    assert (posted.status_code, read.status_code) == (404, 404)
    never = globex.post(path_of("unknown-run"), {"signal": FLAG})
    assert _same_but_for_the_id(posted, never, run_id)
    assert _same_but_for_the_id(read, globex.get(path_of("unknown-run")), run_id)
    assert len(listed(acme, run_id)) == 1


def test_an_unknown_run_is_reported_before_the_body_is_read(acme: Wire) -> None:
    assert acme.post(path_of("unknown-run"), {"signal": "nonsense"}).status_code == 404


def test_a_list_contains_only_its_own_run_s_annotations(acme: Wire) -> None:
    one, other = finished_run(acme), finished_run(acme)
    stored = annotate(acme, one)
    annotate(acme, other)

    assert listed(acme, one) == [stored]


# Idempotency


def test_a_repeated_request_returns_the_same_annotation(acme: Wire) -> None:
    run_id = finished_run(acme)
    headers = {"Idempotency-Key": fresh()}
    body = {"signal": rating(2)}

    first = acme.post(path_of(run_id), body, headers=headers)
    again = acme.post(path_of(run_id), body, headers=headers)
    other = acme.post(path_of(run_id), {"signal": rating(3)}, headers=headers)

    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert again.headers["openwop-idempotent-replay"] == "true"
    assert (other.status_code, other.json()["error"]) == (409, "idempotency_key_mismatch")
    assert len(listed(acme, run_id)) == 1


def test_without_an_idempotency_key_every_request_is_a_new_annotation(acme: Wire) -> None:
    run_id = finished_run(acme)

    first, second = annotate(acme, run_id), annotate(acme, run_id)

    assert first["annotationId"] != second["annotationId"]


def test_idempotency_keys_of_tenants_are_independent(acme: Wire, globex: Wire) -> None:
    headers = {"Idempotency-Key": fresh()}
    acme.post(path_of(finished_run(acme)), {"signal": FLAG}, headers=headers)

    response = globex.post(path_of(finished_run(globex)), {"signal": FLAG}, headers=headers)

    assert response.status_code == 201
    assert "openwop-idempotent-replay" not in response.headers


# Immutability and forks


def test_an_annotation_can_be_neither_changed_nor_deleted(acme: Wire) -> None:
    run_id = finished_run(acme)
    stored = annotate(acme, run_id)
    single = f"{path_of(run_id)}/{stored['annotationId']}"

    assert acme.request("DELETE", path_of(run_id)).status_code == 405
    assert acme.request("PUT", path_of(run_id), json={}).status_code == 405
    assert acme.get(single).status_code == 404


def test_a_fork_starts_without_annotations(acme: Wire) -> None:
    run_id = finished_run(acme)
    annotate(acme, run_id)

    forked = acme.post(f"/v1/runs/{run_id}:fork", {"mode": "branch", "fromSeq": 0})

    assert forked.status_code == 201, forked.text
    assert listed(acme, forked.json()["runId"]) == []
    assert len(listed(acme, run_id)) == 1


def test_the_published_client_annotates_and_lists(acme: Wire, host: ServedHost) -> None:
    client = OpenwopClient(host.url, ACME)
    run_id = acme.run(acme.register(workflow([node("a")])))["runId"]

    made = client.create_annotation(run_id, CreateAnnotationRequest(signal=rating(5), note="good"))
    [listed] = client.list_annotations(run_id)

    assert made == listed
    assert made.signal == rating(5)
