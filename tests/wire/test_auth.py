from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.client import Wire
from tests.support.definitions import fresh, node, workflow
from tests.support.host import ACME, INGEST, METRICS, ROLES, ServedHost, kept_port, served
from tests.support.stored_files import audit_entries, stored
from tests.wire.timing import in_time
from wopr.console.app import pages
from wopr.http.app import OPERATIONS
from wopr.http.operation import Operation
from wopr.protocol.documents import JsonObject

OPEN_PATHS = [
    "/.well-known/openwop",
    "/v1/openapi.json",
    "/v1/schemas/run-snapshot",
    "/healthz",
    "/readyz",
]
GUARDED = [operation for operation in OPERATIONS if operation.scope is not None]
BEARER = "Bearer "
# Long and odd enough that no part of it is in a response by chance.
UNKNOWN = "wopr_live_Zq8VxK3mTtY7pLw2RbN9cHd5JfGs4AeU"
REVOCATION_SECONDS = 5


def _path(operation: Operation) -> str:
    """Return the operation's path with unused ids."""
    return re.sub(r"\{\w+\}", "nothing", operation.path)


def _call(wire: Wire, operation: Operation, **headers: str) -> httpx.Response:
    body: JsonObject | None = {} if operation.body is not None else None
    return wire.request(operation.method, _path(operation), json=body, headers=headers)


# Authentication


@pytest.mark.parametrize("path", OPEN_PATHS)
def test_public_resources_need_no_key(anonymous: Wire, path: str) -> None:
    assert anonymous.get(path).status_code == 200


@pytest.mark.parametrize("path", OPEN_PATHS)
def test_public_resources_ignore_an_invalid_key(connect: Callable[..., Wire], path: str) -> None:
    assert connect(UNKNOWN).get(path).status_code == 200


@pytest.mark.parametrize("operation", GUARDED, ids=lambda each: each.name)
def test_every_other_resource_refuses_a_request_without_a_key(
    anonymous: Wire, operation: Operation
) -> None:
    response = _call(anonymous, operation)

    assert response.status_code == 401
    assert response.json()["error"] == "unauthenticated"
    assert response.headers["www-authenticate"] == "Bearer"
    assert not response.has_redirect_location


@pytest.mark.parametrize(
    "sent",
    [
        UNKNOWN,
        f"Basic {UNKNOWN}",
        "Bearer",
        f"Bearer{UNKNOWN}",
        f"{BEARER}{UNKNOWN}",
        f"{BEARER}{ACME} {UNKNOWN}",
        f"{BEARER}{ACME[:-1]}",
        f"{BEARER}{ACME}x",
        f"{BEARER}{ACME.upper()}",
        f"{BEARER}{'x' * 7000}",
        f"{BEARER}\xff\xfe",
    ],
)
def test_a_malformed_or_unknown_key_is_refused_without_an_echo(
    anonymous: Wire, host: ServedHost, sent: str
) -> None:
    response = anonymous.get("/v1/runs", headers={"Authorization": sent.encode("latin-1")})

    answered = response.text + str(response.headers)
    assert response.status_code == 401
    assert response.json()["error"] == "unauthenticated"
    assert UNKNOWN[-12:] not in answered
    assert ACME[:-1] not in answered
    assert UNKNOWN not in host.log()


def test_the_scheme_is_accepted_in_any_case(anonymous: Wire) -> None:
    for scheme in ("bearer", "BEARER", "Bearer  "):
        response = anonymous.get("/v1/runs", headers={"Authorization": f"{scheme} {ACME}"})
        assert response.status_code == 200, scheme


# Keys created while the host runs


def _make(host: ServedHost, *options: str) -> JsonObject:
    made: JsonObject = json.loads(host.command("keys", "create", "--json", *options))
    return made


def _status(wire: Wire) -> tuple[int, str]:
    response = wire.get("/v1/runs")
    return response.status_code, response.json().get("error", "")


def _until(wire: Wire, expected: tuple[int, str], seconds: float = REVOCATION_SECONDS) -> None:
    """Call until the response is as expected; the host caches keys for a moment.

    The start of a call counts: the response to one that began in time may be slow.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if (found := _status(wire)) == expected:
            return
        assert began < deadline, found


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """Start a host whose keys the tests of this file may change."""
    with served(tmp_path_factory.mktemp("auth"), "--conformance") as running:
        yield running


def test_a_key_created_while_the_host_runs_is_accepted(
    own: ServedHost, connect: Callable[..., Wire]
) -> None:
    made = _make(own, "--tenant", "acme", "--role", "viewer")

    wire = connect(made["key"], own)

    assert _status(wire) == (200, "")
    assert wire.post("/v1/runs", {"workflowId": "hello"}).status_code == 403


def test_an_expired_key_is_refused_as_expired(
    own: ServedHost, connect: Callable[..., Wire]
) -> None:
    def seen_valid(milliseconds: int) -> tuple[Wire, int] | None:
        # Long enough that the key is still valid when the command has returned.
        life = 2 + milliseconds // 200
        wire = connect(_make(own, "--expires", f"{life}s")["key"], own)
        return (wire, life) if _status(wire) == (200, "") else None

    wire, life = in_time(seen_valid)

    _until(wire, (401, "key_expired"), seconds=life + REVOCATION_SECONDS)


def test_a_revoked_key_is_refused_as_revoked(own: ServedHost, connect: Callable[..., Wire]) -> None:
    made = _make(own)
    wire = connect(made["key"], own)
    assert _status(wire) == (200, "")

    own.command("keys", "revoke", made["keyId"])

    _until(wire, (401, "key_revoked"))


def test_after_a_rotation_both_keys_are_valid_until_the_grace_period_is_over(
    own: ServedHost, connect: Callable[..., Wire]
) -> None:
    old = _make(own, "--tenant", "acme", "--role", "operator")
    new = json.loads(own.command("keys", "rotate", old["keyId"], "--json"))
    brief = _make(own)
    after = json.loads(own.command("keys", "rotate", brief["keyId"], "--grace", "1s", "--json"))

    assert _status(connect(old["key"], own)) == (200, "")
    assert _status(connect(new["key"], own)) == (200, "")
    _until(connect(brief["key"], own), (401, "key_expired"))
    assert _status(connect(after["key"], own)) == (200, "")
    assert (new["tenant"], new["role"]) == ("acme", "operator")


def test_no_key_is_in_the_database_or_the_log(
    own: ServedHost, connect: Callable[..., Wire]
) -> None:
    made = _make(own)
    _status(connect(made["key"], own))

    assert made["key"].encode() not in stored(own)
    assert made["key"] not in own.log()


def test_a_test_key_created_by_the_command_can_use_mocks(
    own: ServedHost, connect: Callable[..., Wire]
) -> None:
    body = {"workflowId": "hello", "configurable": {"mockProvider": {"id": "stream-text"}}}
    test, live = _make(own, "--test"), _make(own)

    assert connect(test["key"], own).post("/v1/runs", body).status_code != 403
    assert connect(live["key"], own).post("/v1/runs", body).status_code == 403


# Authorization


@pytest.fixture(scope="module")
def advertised(host: ServedHost) -> dict[str, list[str]]:
    """Return the advertised scopes of each role."""
    with Wire(host.url, None) as wire:
        roles = wire.document("/.well-known/openwop")["authorization"]["roles"]
    return {entry["role"]: entry["scopes"] for entry in roles}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("operation", GUARDED, ids=lambda each: each.name)
def test_a_role_allows_exactly_its_scopes(
    connect: Callable[..., Wire],
    advertised: dict[str, list[str]],
    role: str,
    operation: Operation,
) -> None:
    response = _call(connect(ROLES[role]), operation)

    if not operation.scope or operation.scope in advertised[role]:
        assert response.status_code not in (401, 403)
    else:
        assert response.status_code == 403
        assert response.json()["error"] == "forbidden"
        assert response.json()["details"] == {"scopeRequired": operation.scope}


def test_a_scope_beside_the_role_allows_just_that(
    own: ServedHost, connect: Callable[..., Wire]
) -> None:
    made = _make(own, "--tenant", "acme", "--role", "ingest", "--scope", "runs:read")
    wire = connect(made["key"], own)

    assert wire.get("/v1/runs").status_code == 200
    assert wire.get("/v1/workflows").status_code == 403


def test_a_missing_scope_is_reported_before_the_body_and_the_resource_are_checked(
    connect: Callable[..., Wire],
) -> None:
    wire = connect(INGEST)

    for response in (
        wire.post("/v1/runs", content=b"{ not json"),
        wire.get("/v1/runs/nowhere"),
        wire.post("/v1/runs/nowhere/cancel", content=b"["),
    ):
        assert response.status_code == 403


def test_an_own_workflow_needs_the_scope_to_write_it(connect: Callable[..., Wire]) -> None:
    definition = workflow([node("a")], id=fresh())

    assert connect(ROLES["operator"]).post("/v1/workflows", definition).status_code == 403
    assert connect(ROLES["developer"]).post("/v1/workflows", definition).status_code == 201


def test_metrics_need_a_key_unless_they_are_public(
    new_host: Callable[..., ServedHost], anonymous: Wire, connect: Callable[..., Wire]
) -> None:
    host = new_host(WOPR_METRICS_OPEN="1")

    assert anonymous.get("/metrics").status_code == 401
    found = connect(METRICS).get("/metrics")
    assert (found.status_code, found.headers["content-type"][:10]) == (200, "text/plain")
    assert connect(METRICS).get("/v1/runs").status_code == 403
    assert connect(None, host).get("/metrics").status_code == 200


@pytest.mark.parametrize("role", ROLES)
def test_no_role_of_a_tenant_reads_the_metrics_of_all_tenants(
    connect: Callable[..., Wire], role: str
) -> None:
    refused = connect(ROLES[role]).get("/metrics")

    assert refused.status_code == 403
    assert refused.json()["details"] == {"scopeRequired": "metrics:read"}


def test_a_key_with_the_scope_beside_its_role_reads_metrics(
    own: ServedHost, connect: Callable[..., Wire]
) -> None:
    made = _make(own, "--tenant", "acme", "--role", "admin", "--scope", "metrics:read")

    assert connect(made["key"], own).get("/metrics").status_code == 200


# Failed attempts


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """Start a host that lets an address fail three times, behind a proxy at 127.0.0.1.

    Requests without a key are answered once a second, and four times at once.
    """
    with served(
        tmp_path_factory.mktemp("strict"),
        WOPR_FAILED_AUTH_LIMIT="3",
        WOPR_OPEN_RATE_LIMIT="1",
        WOPR_TRUSTED_PROXIES="127.0.0.1",
    ) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "key"), [("/v1/runs", UNKNOWN), ("/v1/runs", None), ("/mcp", None)]
)
def test_an_address_with_many_failed_attempts_must_wait_unless_its_key_is_valid(
    strict: ServedHost, connect: Callable[..., Wire], path: str, key: str | None
) -> None:
    number = len(path) + (key is None)
    address = {"X-Forwarded-For": f"203.0.113.{number}"}
    wire = connect(key, strict)
    failures = [wire.http.get(path, headers=address).status_code for _ in range(3)]

    refused = wire.http.get(path, headers=address)
    other = {"X-Forwarded-For": f"203.0.113.{number}, 198.51.100.{number}"}
    elsewhere = wire.http.get(path, headers=other)

    assert failures == [401, 401, 401]
    assert refused.status_code == 429
    assert refused.json()["error"] == "rate_limited"
    assert refused.json()["details"]["scope"] == "address"
    assert int(refused.headers["retry-after"]) >= 1
    assert "valid key" in refused.json()["message"]
    assert elsewhere.status_code == 401
    assert connect(ACME, strict).get("/v1/runs", headers=address).status_code == 200


def test_metrics_can_have_a_separate_port(tmp_path: Path) -> None:
    port = kept_port()
    with served(tmp_path, WOPR_METRICS_PORT=str(port)) as host:
        beside = f"http://127.0.0.1:{port}"
        found = httpx.get(f"{beside}/metrics")
        others = [httpx.get(f"{beside}{path}") for path in ("/v1/runs", "/healthz", "/")]
        wrong = httpx.post(f"{beside}/metrics")
        on_the_main_port = httpx.get(f"{host.url}/metrics")

    assert found.status_code == 200
    assert "wopr_runs_created_total" in found.text
    assert found.headers["x-content-type-options"] == "nosniff"
    assert {answer.status_code for answer in others} == {404}
    assert wrong.status_code == 405
    assert on_the_main_port.status_code == 401


def test_the_metrics_port_has_its_own_address(tmp_path: Path) -> None:
    port = kept_port()
    variables = {"WOPR_METRICS_PORT": str(port), "WOPR_METRICS_HOST": "127.0.0.3"}
    with served(tmp_path, **variables):
        found = httpx.get(f"http://127.0.0.3:{port}/metrics")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/metrics")

    assert found.status_code == 200


def test_a_host_whose_metrics_port_is_in_use_does_not_start(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(AssertionError, match="cannot listen on"),
        served(tmp_path, WOPR_METRICS_PORT=str(taken.getsockname()[1])),
    ):
        pass


@pytest.mark.parametrize(
    "path",
    [
        "/.well-known/openwop",
        "/v1/openapi.json",
        "/sign-in",
        "/no-such-path",
        "/v1/interrupts/nothing",
        "/runs",
        "/settings",
    ],
)
def test_an_address_with_many_requests_without_a_key_must_wait(
    strict: ServedHost, connect: Callable[..., Wire], path: str
) -> None:
    address = {"X-Forwarded-For": f"203.0.113.{100 + len(path)}"}
    wire = connect(None, strict)
    answers = [wire.http.get(path, headers=address) for _ in range(20)]
    refused = [answer for answer in answers if answer.status_code == 429]

    assert [answer.status_code for answer in answers[:4]] == [answers[0].status_code] * 4
    assert answers[0].status_code != 429
    assert refused
    assert "without a key" in refused[0].text
    assert int(refused[0].headers["retry-after"]) >= 1
    other = {"X-Forwarded-For": f"198.51.100.{100 + len(path)}"}
    assert wire.http.get(path, headers=other).status_code != 429
    assert wire.http.get("/healthz", headers=address).status_code == 200
    assert connect(ACME, strict).get("/v1/runs", headers=address).status_code == 200


def test_wrong_console_sessions_count_as_requests_without_a_key(
    strict: ServedHost, connect: Callable[..., Wire]
) -> None:
    headers = {"X-Forwarded-For": "203.0.113.90", "Cookie": "wopr_session=wrong"}
    wire = connect(None, strict)

    # More than enough calls for a machine that pauses for some seconds between two of them.
    read = [wire.http.get("/runs", headers=headers).status_code for _ in range(30)]
    sent = [wire.http.post("/theme", headers=headers).status_code for _ in range(30)]

    assert read[:4] == [303] * 4
    assert 429 in read
    assert 429 in sent


def test_a_path_without_a_valid_key_is_not_logged(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    word = "quokkaparade"
    host = new_host("--log-format", "json", "--log-level", "debug")
    wire = connect(None, host)
    paths = {operation.path for operation in OPERATIONS} | {page.path for page in pages()}
    named = [re.sub(r"\{\w+\}", word, path) for path in paths if "{run_id}" in path]

    for number, path in enumerate(named):
        cookie = {"Cookie": "wopr_session=wrong"} if number % 2 else {}
        assert wire.http.get(path, headers=cookie).status_code < 500
        assert wire.http.post(path, headers=cookie).status_code < 500
    host.stop()

    assert len(named) > 20
    assert "/v1/runs/{run_id}" in host.log()
    assert word not in host.log()
    assert audit_entries(host)
    assert word not in json.dumps(audit_entries(host))


def test_an_id_in_the_path_is_cut_in_the_log(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host()

    connect(ROLES["viewer"], host).post(f"/v1/runs/{'x' * 60_000}/cancel")
    host.stop()

    [entry] = audit_entries(host)
    assert entry["action"] == "cancelRun"
    assert len(entry["resource"]) == 256
