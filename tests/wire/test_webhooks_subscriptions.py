"""Webhook subscriptions over HTTP: registration, refusals, and lists."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

import pytest

from tests.support.client import Wire
from tests.support.definitions import fresh
from tests.support.host import ACME, GLOBEX, OPERATOR, REVIEWER, VIEWER, ServedHost
from tests.support.stored_files import stored
from tests.wire.conftest import Connect
from wopr.protocol.documents import Json, JsonObject

pytestmark = pytest.mark.both_stores

URL = "https://hooks.example.com/in?x=1"
EVENTS = ["run.completed"]
UNKNOWN = "wh_000000000000000000000000"


@pytest.fixture
def webhook(acme: Wire) -> Iterator[JsonObject]:
    made: JsonObject = acme.post("/v1/webhooks", {"url": URL, "events": EVENTS}).json()
    yield made
    acme.request("DELETE", f"/v1/webhooks/{made['webhookId']}")


def find(wire: Wire, webhook_id: str) -> JsonObject | None:
    items = wire.document("/v1/webhooks", params={"limit": 200})["items"]
    return next((item for item in items if item["webhookId"] == webhook_id), None)


def test_the_secret_is_generated_by_the_host_and_shown_once(
    acme: Wire, webhook: JsonObject
) -> None:
    digest = hashlib.sha256(webhook["secret"].encode()).hexdigest()

    assert webhook.pop("createdAt")
    assert webhook | {"secret": "", "secretFingerprint": ""} == {
        "webhookId": webhook["webhookId"],
        "subscriptionId": webhook["webhookId"],
        "url": URL,
        "eventTypes": EVENTS,
        "secret": "",
        "secretFingerprint": "",
    }
    assert re.fullmatch(r"[0-9a-f]{64}", webhook["secret"])
    assert webhook["secretFingerprint"] == digest[:8]
    assert webhook["secret"] not in acme.get("/v1/webhooks").text


def test_a_registration_must_not_be_cached(acme: Wire) -> None:
    response = acme.post("/v1/webhooks", {"url": URL, "events": EVENTS})

    assert response.status_code == 201
    assert response.headers["cache-control"] == "no-store"


def test_listing_shows_everything_except_the_secret(acme: Wire) -> None:
    tag = fresh("tag")
    body = {"url": URL, "events": ["run.*", "node.failed"], "tags": [tag], "tenantId": "acme"}
    made = acme.post("/v1/webhooks", body).json()

    found = find(acme, made["webhookId"])

    assert found is not None
    assert found.pop("createdAt")
    assert found == {
        "webhookId": made["webhookId"],
        "url": URL,
        "events": ["run.*", "node.failed"],
        "tags": [tag],
        "secretFingerprint": made["secretFingerprint"],
        "state": "active",
        "consecutiveFailures": 0,
    }


def test_a_credential_in_a_url_is_not_shown(acme: Wire) -> None:
    token = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567"

    made = acme.post("/v1/webhooks", {"url": f"{URL}?k=job-{token}", "events": EVENTS}).json()
    listed = acme.document("/v1/webhooks", params={"limit": 1})["items"][0]

    assert listed["webhookId"] == made["webhookId"]
    assert made["url"] == listed["url"] == f"{URL}?k=job-[REDACTED]"


def test_webhooks_are_listed_newest_first_in_pages(acme: Wire) -> None:
    made = [
        acme.post("/v1/webhooks", {"url": URL, "events": EVENTS}).json()["webhookId"]
        for _ in range(3)
    ]

    first = acme.document("/v1/webhooks", params={"limit": 2})
    second = acme.document("/v1/webhooks", params={"limit": 2, "cursor": first["nextCursor"]})

    seen = [item["webhookId"] for item in first["items"] + second["items"]]
    assert [name for name in seen if name in made] == made[::-1]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"events": EVENTS}, "url"),
        ({"url": URL}, "events"),
        ({"url": URL, "events": []}, "events"),
        ({"url": URL, "events": "run.completed"}, "events"),
        ({"url": URL, "events": [""]}, "events[0]"),
        ({"url": URL, "events": ["run.exploded"]}, "events"),
        ({"url": URL, "events": ["run.*.*"]}, "events"),
        ({"url": "", "events": EVENTS}, "url"),
        ({"url": "hooks.example.com", "events": EVENTS}, "url"),
        ({"url": "://", "events": EVENTS}, "url"),
        ({"url": "https://", "events": EVENTS}, "url"),
        ({"url": 7, "events": EVENTS}, "url"),
        ({"url": URL + "x" * 3000, "events": EVENTS}, "url"),
        ({"url": URL, "events": EVENTS, "secret": "f" * 64}, "secret"),
        ({"url": URL, "events": EVENTS, "tags": [7]}, "tags[0]"),
    ],
)
def test_an_invalid_registration_is_refused_by_its_field(
    acme: Wire, body: JsonObject, field: str
) -> None:
    response = acme.post("/v1/webhooks", body)

    assert (response.status_code, response.json()["error"]) == (400, "validation_error")
    assert response.json()["details"]["field"] == field


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/",
        "ftp://hooks.example.com/",
        "https://127.0.0.1/",
        "https://127.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0177.0.0.1/",
        "https://localhost/",
        "https://localhost./",
        "https://a.localhost/",
        "https://10.0.0.1/",
        "https://172.16.3.4/",
        "https://192.168.0.1/",
        "https://100.64.0.1/",
        "https://169.254.169.254/latest/meta-data",
        "https://metadata.google.internal/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[fe80::1]/",
        "https://[fc00::1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://0.0.0.0/",
        "https://user:pass@hooks.example.com/",
    ],
)
def test_a_forbidden_destination_is_refused(acme: Wire, url: str) -> None:
    response = acme.post("/v1/webhooks", {"url": url, "events": EVENTS})

    assert (response.status_code, response.json()["error"]) == (400, "webhook_url_rejected")


def test_another_tenant_can_be_neither_subscribed_for_nor_deleted_from(
    acme: Wire, webhook: JsonObject
) -> None:
    body = {"url": URL, "events": EVENTS, "tenantId": "globex"}

    assert acme.post("/v1/webhooks", body).status_code == 403
    path = f"/v1/webhooks/{webhook['webhookId']}?tenantId=globex"
    assert acme.request("DELETE", path).status_code == 403


def test_a_deleted_webhook_is_gone(acme: Wire) -> None:
    made = acme.post("/v1/webhooks", {"url": URL, "events": EVENTS}).json()
    path = f"/v1/webhooks/{made['webhookId']}"

    assert acme.request("DELETE", path, params={"tenantId": "acme"}).status_code == 204

    again = acme.request("DELETE", path)
    assert (again.status_code, again.json()["error"]) == (404, "subscription_not_found")


ROUTES = [
    ("DELETE", "/v1/webhooks/{id}"),
    ("POST", "/v1/webhooks/{id}:rotate"),
    ("GET", "/v1/webhooks/{id}/dead-letters"),
    ("POST", "/v1/webhooks/{id}/dead-letters:redeliver"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_another_tenant_s_webhook_looks_like_a_missing_one(
    acme: Wire, globex: Wire, webhook: JsonObject, method: str, path: str
) -> None:
    foreign = globex.request(method, path.format(id=webhook["webhookId"]))
    missing = globex.request(method, path.format(id=UNKNOWN))
    longer = globex.request(method, path.format(id="x" * 200))

    assert foreign.status_code == missing.status_code == longer.status_code == 404
    assert foreign.json()["error"] == "subscription_not_found"
    assert foreign.text.replace(webhook["webhookId"], "") == missing.text.replace(UNKNOWN, "")
    assert find(acme, webhook["webhookId"]) is not None
    assert find(globex, webhook["webhookId"]) is None


@pytest.mark.parametrize("key", [VIEWER, REVIEWER])
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/webhooks"), ("GET", "/v1/webhooks"), *ROUTES]
)
def test_a_key_without_the_scope_can_do_nothing_with_webhooks(
    connect: Connect, webhook: JsonObject, key: str, method: str, path: str
) -> None:
    response = connect(key).request(method, path.format(id=webhook["webhookId"]), json={})

    assert response.status_code == 403
    assert response.json()["details"]["scopeRequired"] == "webhooks:manage"


def test_rotation_creates_a_new_secret_and_shows_until_when_the_old_one_signs(
    connect: Connect, webhook: JsonObject
) -> None:
    operator = connect(OPERATOR)

    made = operator.post(f"/v1/webhooks/{webhook['webhookId']}:rotate?graceSeconds=60")

    answer = made.json()
    assert made.status_code == 200
    assert made.headers["cache-control"] == "no-store"
    assert answer["secret"] != webhook["secret"]
    assert answer["secretFingerprint"] != webhook["secretFingerprint"]
    found = find(operator, webhook["webhookId"])
    assert found is not None
    assert found["previousSecretUntil"] == answer["previousSecretUntil"]
    assert found["secretFingerprint"] == answer["secretFingerprint"]


@pytest.mark.parametrize("grace", ["-1", "x", "99999999"])
def test_the_grace_period_is_a_number_of_seconds_within_a_month(
    acme: Wire, webhook: JsonObject, grace: str
) -> None:
    response = acme.post(f"/v1/webhooks/{webhook['webhookId']}:rotate?graceSeconds={grace}")

    assert (response.status_code, response.json()["details"]["field"]) == (400, "graceSeconds")


def test_a_repeated_registration_with_its_key_is_the_same_and_does_not_show_the_secret_again(
    acme: Wire,
) -> None:
    headers = {"Idempotency-Key": fresh("hook")}
    body = {"url": URL, "events": EVENTS}

    first = acme.post("/v1/webhooks", body, headers=headers)
    second = acme.post("/v1/webhooks", body, headers=headers)

    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["webhookId"] == second.json()["webhookId"]
    assert "secret" in first.json()
    assert "secret" not in second.json()


def test_no_secret_is_stored_in_plain_text(
    acme: Wire, host: ServedHost, webhook: JsonObject
) -> None:
    headers = {"Idempotency-Key": fresh("hook")}
    secrets: list[Json] = [
        webhook["secret"],
        acme.post("/v1/webhooks", {"url": URL, "events": EVENTS}, headers=headers).json()["secret"],
        acme.post(
            f"/v1/webhooks/{webhook['webhookId']}:rotate", headers={"Idempotency-Key": fresh()}
        ).json()["secret"],
    ]

    everything = stored(host)
    for secret in secrets:
        assert str(secret).encode() not in everything
        assert bytes.fromhex(str(secret)) not in everything
        assert secret not in host.log()


def test_the_host_advertises_durable_delivery(acme: Wire) -> None:
    found = acme.document("/.well-known/openwop")["webhooks"]

    assert found == {"supported": True, "signatureAlgorithms": ["v1"], "durable": True}


def test_a_loopback_url_is_refused_with_the_setting_to_allow_it(acme: Wire) -> None:
    response = acme.post("/v1/runs", {"workflowId": "conformance-noop", "callbackUrl": URL})

    assert (response.status_code, response.json()["error"]) == (400, "capability_required")
    assert "register a webhook" in response.json()["message"]


def test_both_tenants_keep_their_own_list(connect: Connect) -> None:
    acme, globex = connect(ACME), connect(GLOBEX)
    theirs = globex.post("/v1/webhooks", {"url": URL, "events": EVENTS}).json()["webhookId"]

    assert find(globex, theirs) is not None
    assert find(acme, theirs) is None
