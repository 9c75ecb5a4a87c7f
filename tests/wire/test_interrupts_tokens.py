from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.wire.client import Wire
from tests.wire.conftest import Connect
from tests.wire.definitions import node, workflow
from tests.wire.host import DEVELOPER, OPERATOR, VIEWER, ServedHost
from tests.wire.waiting import (
    ACCEPT,
    EVENT,
    REFINE,
    by_token,
    events,
    external,
    gate,
    inbox,
    payload,
    refused,
    signed,
    taken,
    token_of,
    until_waiting,
    waiting,
)
from wopr.protocol.documents import Json, JsonObject

HALF_AN_HOUR = 30 * 60_000


def contents(token: str) -> JsonObject:
    encoded = token.partition(".")[0]
    found: JsonObject = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    return found


@pytest.fixture
def forge(host: ServedHost) -> Callable[..., str]:
    """Tokens with the shared host's own signature."""

    def make(run_id: str, **members: Json) -> str:
        later = round(time.time() * 1000) + HALF_AN_HOUR
        fields = {"tenant": "acme", "runId": run_id, "expiresAt": later} | members
        return signed(host.data_dir, **fields)

    return make


# What it is


def test_a_token_says_for_which_wait_it_holds_until_when_and_for_what(acme: Wire) -> None:
    before = round(time.time() * 1000)
    run_id = waiting(acme, gate())

    said = contents(token_of(acme, run_id))

    expires_at = said.pop("expiresAt")
    assert said == {
        "tenant": "acme",
        "runId": run_id,
        "nodeId": "gate",
        "interruptId": "int-gate:0",
        "intent": "resolve",
    }
    assert before + HALF_AN_HOUR <= expires_at <= round(time.time() * 1000) + HALF_AN_HOUR


def test_a_token_never_outlives_the_wait(acme: Wire) -> None:
    run_id = waiting(acme, gate(timeoutMs=60_000))

    expires_at = contents(token_of(acme, run_id))["expiresAt"]

    assert expires_at <= round(time.time() * 1000) + 60_000
    [item] = inbox(acme, runId=run_id)
    inspected = acme.document(f"/v1/interrupts/{token_of(acme, run_id)}")
    assert inspected["expiresAt"] == item["expiresAt"]


def test_the_snapshot_of_a_waiting_run_shows_the_wait_and_how_to_answer_it(acme: Wire) -> None:
    run_id = waiting(acme, gate())

    shown = acme.snapshot(run_id)["interrupt"]

    token = shown["interruptToken"]
    assert shown["callbackUrl"] == f"/v1/interrupts/{token}"
    assert (shown["kind"], shown["nodeId"], shown["interruptId"]) == (
        "approval",
        "gate",
        "int-gate:0",
    )
    assert shown["payload"] == payload(acme, run_id, "interrupt.requested")


# Looking


def test_a_token_lets_anybody_see_what_waits_and_resolves_nothing(
    fixtures: Wire, nobody: Wire
) -> None:
    run_id = fixtures.create("conformance-interrupt-external-event")
    token = token_of(fixtures, run_id)

    for _ in range(2):
        response = fixtures.get(f"/v1/interrupts/{token}", headers={"Authorization": ""})
        seen = response.json()
        assert response.status_code == 200
        assert response.headers["cache-control"] == "no-store"
        requested = events(fixtures, run_id, "interrupt.requested")[0]
        assert seen.pop("requestedAt") == requested["timestamp"]
        assert seen.pop("expiresAt") > requested["timestamp"]
        assert seen == requested["payload"]

    assert fixtures.snapshot(run_id)["status"] == "waiting-external"


def test_the_schema_of_the_answer_is_shown_with_the_wait(acme: Wire, nobody: Wire) -> None:
    schema = {"type": "integer"}
    config = {"kind": "custom", "data": {"customKind": "k"}, "resumeSchema": schema}
    run_id = waiting(acme, gate("w", "core.interrupt", **config))

    seen = nobody.document(f"/v1/interrupts/{token_of(acme, run_id)}")

    assert seen["resumeSchema"] == schema
    assert by_token(nobody, token_of(acme, run_id), "x").status_code == 400
    assert by_token(nobody, token_of(acme, run_id), 1).json()["status"] == "completed"


def test_a_token_for_looking_does_not_answer(
    acme: Wire, nobody: Wire, forge: Callable[..., str]
) -> None:
    run_id = waiting(acme, gate())
    token = forge(run_id, intent="inspect")

    response = by_token(nobody, token, ACCEPT)

    assert (response.status_code, response.json()["error"]) == (403, "forbidden")
    assert nobody.document(f"/v1/interrupts/{token}")["kind"] == "approval"
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


# Answering


def test_the_token_alone_is_the_credential(acme: Wire, nobody: Wire) -> None:
    run_id = waiting(acme, gate())

    response = by_token(nobody, token_of(acme, run_id), ACCEPT)

    assert (response.status_code, response.json()["status"]) == (200, "completed")
    received = payload(acme, run_id, "approval.received")
    assert received["decidedBy"] == "token:int-gate:0"


@pytest.mark.parametrize("body", [{}, {"resumeValue": ACCEPT, "x": 1}, {"resumeValue": "maybe"}])
def test_an_answer_by_token_is_checked_like_any_other(acme: Wire, nobody: Wire, body: Json) -> None:
    run_id = waiting(acme, gate())

    response = nobody.post(f"/v1/interrupts/{token_of(acme, run_id)}", body)

    assert (response.status_code, response.json()["error"]) == (400, "validation_error")
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


# Refusing


def tampered(token: str) -> dict[str, str]:
    encoded, _, signature = token.partition(".")
    other = contents(token) | {"nodeId": "other"}
    body = base64.urlsafe_b64encode(json.dumps(other).encode()).decode().rstrip("=")
    flipped = ("1" if signature[0] == "0" else "0") + signature[1:]
    return {
        "other payload": f"{body}.{signature}",
        "other signature": f"{encoded}.{flipped}",
        "no signature": encoded,
        "empty signature": f"{encoded}.",
        "short signature": f"{encoded}.{signature[:-2]}",
        "upper case": f"{encoded}.{signature.upper()}",
        "stray character": f"{encoded[:5]}!{encoded[5:]}.{signature}",
        "padding": f"{encoded}=.{signature}",
        "further part": f"{token}.x",
        "nonsense": "nonsense",
        "not latin": "t\u00f6ken.\u0661",
    }


@pytest.mark.parametrize("how", tampered("e30.00").keys())
def test_a_token_that_was_touched_is_not_known(acme: Wire, nobody: Wire, how: str) -> None:
    run_id = waiting(acme, gate())
    token = tampered(token_of(acme, run_id))[how]

    looked = nobody.get(f"/v1/interrupts/{token}")
    answered = by_token(nobody, token, ACCEPT)

    assert (looked.status_code, looked.json()["error"]) == (404, "interrupt_not_found")
    assert looked.content == answered.content
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b'{"more":1}'])
def test_an_unknown_token_is_looked_at_before_the_body(nobody: Wire, content: bytes) -> None:
    response = nobody.request("POST", "/v1/interrupts/unknown.00", content=content)

    assert (response.status_code, response.json()["error"]) == (404, "interrupt_not_found")


def test_an_expired_token_is_gone(acme: Wire, nobody: Wire, forge: Callable[..., str]) -> None:
    run_id = waiting(acme, gate())
    token = forge(run_id, expiresAt=round(time.time() * 1000) - 1)

    looked = nobody.get(f"/v1/interrupts/{token}")
    answered = by_token(nobody, token, ACCEPT)

    assert (looked.status_code, looked.json()["error"]) == (410, "interrupt_expired")
    assert (answered.status_code, answered.json()["error"]) == (410, "interrupt_expired")
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_a_token_of_a_run_that_is_no_more_is_not_known(
    nobody: Wire, forge: Callable[..., str]
) -> None:
    unknown = nobody.get("/v1/interrupts/unknown.00")

    assert nobody.get(f"/v1/interrupts/{forge('no-such-run')}").content == unknown.content
    assert by_token(nobody, forge("no-such-run"), ACCEPT).content == unknown.content


def test_a_token_that_names_another_tenant_finds_nothing_there(
    acme: Wire, nobody: Wire, forge: Callable[..., str]
) -> None:
    run_id = waiting(acme, gate())
    unknown = nobody.get("/v1/interrupts/unknown.00")
    token = forge(run_id, tenant="globex")

    assert nobody.get(f"/v1/interrupts/{token}").content == unknown.content
    assert by_token(nobody, token, ACCEPT).content == unknown.content
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_a_key_of_another_tenant_changes_nothing_about_a_token(acme: Wire, globex: Wire) -> None:
    run_id = waiting(acme, gate())

    response = by_token(globex, token_of(acme, run_id), ACCEPT)

    assert response.json()["status"] == "completed"
    assert payload(acme, run_id, "approval.received")["decidedBy"] == "token:int-gate:0"


def test_a_token_of_another_host_is_not_known(acme: Wire, nobody: Wire, tmp_path: Path) -> None:
    run_id = waiting(acme, gate())
    later = round(time.time() * 1000) + HALF_AN_HOUR

    token = signed(tmp_path, tenant="acme", runId=run_id, expiresAt=later)

    assert by_token(nobody, token, ACCEPT).status_code == 404


# Dying


def test_a_token_dies_when_its_wait_is_answered(acme: Wire, nobody: Wire) -> None:
    run_id = waiting(acme, gate(), gate("second"))
    token = token_of(acme, run_id)
    taken(acme, run_id, "gate", ACCEPT)

    for response in (nobody.get(f"/v1/interrupts/{token}"), by_token(nobody, token, ACCEPT)):
        assert response.status_code == 409
        assert response.json()["error"] == "interrupt_already_resolved"
    assert acme.snapshot(run_id)["currentNodeId"] == "second"


def test_a_token_dies_when_its_run_is_cancelled(acme: Wire, nobody: Wire) -> None:
    run_id = waiting(acme, gate())
    token = token_of(acme, run_id)
    acme.post(f"/v1/runs/{run_id}/cancel", {})

    for response in (nobody.get(f"/v1/interrupts/{token}"), by_token(nobody, token, ACCEPT)):
        assert response.status_code == 409
        assert response.json()["error"] == "interrupt_already_resolved"


def test_a_token_dies_when_its_run_ends_without_it(acme: Wire, nobody: Wire) -> None:
    slow = node("broken", "core.delay", config={"ms": 300})
    fails = node("fails", "core.fail")
    ends = [{"id": "e", "sourceNodeId": "broken", "targetNodeId": "fails"}]
    run_id = acme.create(acme.register(workflow([gate(), slow, fails], edges=ends)))
    token = token_of(acme, run_id)

    assert acme.finished(run_id)["status"] == "failed"

    assert by_token(nobody, token, ACCEPT).json()["error"] == "interrupt_already_resolved"


def test_a_token_of_an_earlier_version_does_not_approve_the_next(acme: Wire, nobody: Wire) -> None:
    run_id = waiting(acme, node("work"), gate(actions=["accept", "refine"]))
    token = token_of(acme, run_id)
    taken(acme, run_id, "gate", REFINE)

    assert by_token(nobody, token, ACCEPT).status_code == 409
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


# Gates that take none


def test_a_gate_that_requires_sign_in_takes_no_token(
    fixtures: Wire, connect: Connect, request: pytest.FixtureRequest
) -> None:
    run_id = fixtures.create("conformance-interrupt-auth-required")
    current = "published" in request.node.callspec.id
    running: ServedHost = request.getfixturevalue("official_host" if current else "host")
    later = round(time.time() * 1000) + HALF_AN_HOUR
    token = signed(running.data_dir, tenant="acme", runId=run_id, expiresAt=later)
    shown = fixtures.snapshot(run_id)["interrupt"]

    by_its_token = by_token(fixtures, token, ACCEPT)
    viewer = refused(connect(VIEWER, running), run_id, "gate", ACCEPT)
    anonymous = refused(connect(None, running), run_id, "gate", ACCEPT)

    assert "interruptToken" not in shown
    assert "callbackUrl" not in shown
    assert (by_its_token.status_code, by_its_token.json()["error"]) == (403, "forbidden")
    assert viewer == (403, "forbidden")
    assert anonymous == (401, "unauthenticated")
    assert fixtures.snapshot(run_id)["status"] == "waiting-approval"
    assert taken(connect(OPERATOR, running), run_id, "gate", ACCEPT) == "completed"


@pytest.mark.parametrize(
    "config",
    [
        {"approversList": ["someone"]},
        {"approverRoleRefs": ["reviewer"]},
        {"requiredApprovals": 2},
    ],
)
def test_a_gate_that_asks_for_certain_people_takes_no_token(
    acme: Wire, nobody: Wire, forge: Callable[..., str], config: dict[str, Json]
) -> None:
    run_id = waiting(acme, gate(**config))

    assert "interruptToken" not in acme.snapshot(run_id)["interrupt"]
    assert by_token(nobody, forge(run_id), ACCEPT).status_code == 403
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


# Keeping it secret


@pytest.mark.parametrize("key", [VIEWER, DEVELOPER])
def test_who_may_not_answer_sees_the_wait_without_its_token(
    acme: Wire, connect: Connect, key: str
) -> None:
    run_id = waiting(acme, gate())

    shown = connect(key).snapshot(run_id)["interrupt"]

    assert shown["interruptId"] == "int-gate:0"
    assert not {"interruptToken", "callbackUrl"} & shown.keys()


def test_a_snapshot_with_a_token_is_kept_nowhere_on_the_way(acme: Wire, connect: Connect) -> None:
    run_id = waiting(acme, gate())

    assert acme.get(f"/v1/runs/{run_id}").headers["cache-control"] == "no-store"
    assert connect(VIEWER).get(f"/v1/runs/{run_id}").headers["cache-control"] == "no-cache"


def test_no_token_is_in_events_streams_listings_or_the_hosts_log(
    acme: Wire, nobody: Wire, host: ServedHost
) -> None:
    run_id = waiting(acme, external())
    token = token_of(acme, run_id)
    nobody.get(f"/v1/interrupts/{token}")
    by_token(nobody, token, {"orderId": "wrong"})
    seen = [str(inbox(acme, runId=run_id)), str(acme.get("/v1/runs").text)]
    by_token(nobody, token, EVENT | {"orderId": "o1"})
    by_token(nobody, token, EVENT | {"orderId": "o1"})

    frames = acme.frames(run_id, streamMode="values") + acme.frames(run_id, streamMode="debug")
    seen += [str(acme.log(run_id)), *(frame.data for frame in frames)]

    signature = token.partition(".")[2]
    assert until_host_logged(host, "answerByToken")
    assert not [text for text in (*seen, host.log()) if signature in text]
    assert "/v1/interrupts/[TOKEN]" in host.log()


def until_host_logged(host: ServedHost, text: str) -> bool:
    deadline = time.monotonic() + 10
    while text not in host.log():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return True


def test_the_parent_of_a_waiting_child_shows_no_token(acme: Wire) -> None:
    run_id = acme.create("conformance-interrupt-parent-child-cancel")

    shown = until_waiting(acme, run_id)

    assert "interrupt" not in shown
