from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.client import Wire
from tests.support.host import OPERATOR, VIEWER, ServedHost
from tests.support.interrupts import (
    ACCEPT,
    accepted,
    by_token,
    events,
    gate,
    payload,
    refused,
    signed,
    token_of,
    waiting_run,
)
from tests.wire.conftest import Connect
from tests.wire.tokens import HALF_AN_HOUR, contents
from wopr.protocol.documents import Json

pytestmark = pytest.mark.both_stores


@pytest.fixture
def forge(host: ServedHost) -> Callable[..., str]:
    """Create tokens with the shared host's own signature."""

    def make(run_id: str, **members: Json) -> str:
        later = round(time.time() * 1000) + HALF_AN_HOUR
        fields = {"tenant": "acme", "runId": run_id, "expiresAt": later} | members
        return signed(host.data_dir, **fields)

    return make


# Reading


def test_a_read_by_token_needs_no_key_and_resolves_nothing(fixtures: Wire, anonymous: Wire) -> None:
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


def test_the_schema_of_the_answer_is_shown_with_the_wait(acme: Wire, anonymous: Wire) -> None:
    schema = {"type": "integer"}
    config = {"kind": "custom", "data": {"customKind": "k"}, "resumeSchema": schema}
    run_id = waiting_run(acme, gate("w", "core.interrupt", **config))

    seen = anonymous.document(f"/v1/interrupts/{token_of(acme, run_id)}")

    assert seen["resumeSchema"] == schema
    assert by_token(anonymous, token_of(acme, run_id), "x").status_code == 400
    assert by_token(anonymous, token_of(acme, run_id), 1).json()["status"] == "completed"


def test_a_view_token_does_not_answer(
    acme: Wire, anonymous: Wire, forge: Callable[..., str]
) -> None:
    run_id = waiting_run(acme, gate())
    token = forge(run_id, intent="inspect")

    response = by_token(anonymous, token, ACCEPT)

    assert (response.status_code, response.json()["error"]) == (403, "forbidden")
    assert anonymous.document(f"/v1/interrupts/{token}")["kind"] == "approval"
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


# Answering


def test_the_token_alone_is_the_credential(acme: Wire, anonymous: Wire) -> None:
    run_id = waiting_run(acme, gate())

    response = by_token(anonymous, token_of(acme, run_id), ACCEPT)

    assert (response.status_code, response.json()["status"]) == (200, "completed")
    received = payload(acme, run_id, "approval.received")
    assert received["decidedBy"] == "token:int-gate:0"


@pytest.mark.parametrize("body", [{}, {"resumeValue": ACCEPT, "x": 1}, {"resumeValue": "maybe"}])
def test_an_answer_by_token_is_checked_like_any_other(
    acme: Wire, anonymous: Wire, body: Json
) -> None:
    run_id = waiting_run(acme, gate())

    response = anonymous.post(f"/v1/interrupts/{token_of(acme, run_id)}", body)

    assert (response.status_code, response.json()["error"]) == (400, "validation_error")
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


# Refusals


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
def test_a_modified_token_is_unknown(acme: Wire, anonymous: Wire, how: str) -> None:
    run_id = waiting_run(acme, gate())
    token = tampered(token_of(acme, run_id))[how]

    looked = anonymous.get(f"/v1/interrupts/{token}")
    answered = by_token(anonymous, token, ACCEPT)

    assert (looked.status_code, looked.json()["error"]) == (404, "interrupt_not_found")
    assert looked.content == answered.content
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b'{"more":1}'])
def test_an_unknown_token_is_reported_before_the_body(anonymous: Wire, content: bytes) -> None:
    response = anonymous.request("POST", "/v1/interrupts/unknown.00", content=content)

    assert (response.status_code, response.json()["error"]) == (404, "interrupt_not_found")


def test_an_expired_token_is_gone(acme: Wire, anonymous: Wire, forge: Callable[..., str]) -> None:
    run_id = waiting_run(acme, gate())
    token = forge(run_id, expiresAt=round(time.time() * 1000) - 1)

    looked = anonymous.get(f"/v1/interrupts/{token}")
    answered = by_token(anonymous, token, ACCEPT)

    assert (looked.status_code, looked.json()["error"]) == (410, "interrupt_expired")
    assert (answered.status_code, answered.json()["error"]) == (410, "interrupt_expired")
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_a_token_of_a_deleted_run_is_unknown(anonymous: Wire, forge: Callable[..., str]) -> None:
    unknown = anonymous.get("/v1/interrupts/unknown.00")

    assert anonymous.get(f"/v1/interrupts/{forge('no-such-run')}").content == unknown.content
    assert by_token(anonymous, forge("no-such-run"), ACCEPT).content == unknown.content


def test_a_token_that_names_another_tenant_finds_nothing(
    acme: Wire, anonymous: Wire, forge: Callable[..., str]
) -> None:
    run_id = waiting_run(acme, gate())
    unknown = anonymous.get("/v1/interrupts/unknown.00")
    token = forge(run_id, tenant="globex")

    assert anonymous.get(f"/v1/interrupts/{token}").content == unknown.content
    assert by_token(anonymous, token, ACCEPT).content == unknown.content
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_a_key_of_another_tenant_does_not_affect_a_token(acme: Wire, globex: Wire) -> None:
    run_id = waiting_run(acme, gate())

    response = by_token(globex, token_of(acme, run_id), ACCEPT)

    assert response.json()["status"] == "completed"
    assert payload(acme, run_id, "approval.received")["decidedBy"] == "token:int-gate:0"


def test_a_token_of_another_host_is_unknown(acme: Wire, anonymous: Wire, tmp_path: Path) -> None:
    run_id = waiting_run(acme, gate())
    later = round(time.time() * 1000) + HALF_AN_HOUR

    token = signed(tmp_path, tenant="acme", runId=run_id, expiresAt=later)

    assert by_token(anonymous, token, ACCEPT).status_code == 404


# Gates without tokens


def test_a_gate_that_requires_sign_in_accepts_no_token(
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
    refused_without_key = refused(connect(None, running), run_id, "gate", ACCEPT)

    assert "interruptToken" not in shown
    assert "callbackUrl" not in shown
    assert (by_its_token.status_code, by_its_token.json()["error"]) == (403, "forbidden")
    assert viewer == (403, "forbidden")
    assert refused_without_key == (401, "unauthenticated")
    assert fixtures.snapshot(run_id)["status"] == "waiting-approval"
    assert accepted(connect(OPERATOR, running), run_id, "gate", ACCEPT) == "completed"


@pytest.mark.parametrize(
    "config",
    [
        {"approversList": ["someone"]},
        {"approverRoleRefs": ["reviewer"]},
        {"requiredApprovals": 2},
    ],
)
def test_a_gate_with_named_approvers_accepts_no_token(
    acme: Wire, anonymous: Wire, forge: Callable[..., str], config: dict[str, Json]
) -> None:
    run_id = waiting_run(acme, gate(**config))

    assert "interruptToken" not in acme.snapshot(run_id)["interrupt"]
    assert by_token(anonymous, forge(run_id), ACCEPT).status_code == 403
    assert acme.snapshot(run_id)["status"] == "waiting-approval"
