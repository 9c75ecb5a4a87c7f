from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.wire.at_rest import stored
from tests.wire.client import Wire
from tests.wire.definitions import fresh, node, workflow
from tests.wire.host import ACME, INGEST, ROLES, ServedHost, served
from tests.wire.timing import in_time
from wopr.http.app import OPERATIONS
from wopr.http.operation import Operation
from wopr.protocol.documents import JsonObject

OPEN_PATHS = [
    "/.well-known/openwop",
    "/v1/openapi.json",
    "/v1/schemas/run-snapshot",
    "/healthz",
    "/readyz",
    "/metrics",
]
GUARDED = [operation for operation in OPERATIONS if operation.scope is not None]
BEARER = "Bearer "
# Long and odd enough that no part of it is in an answer by chance.
UNKNOWN = "wopr_live_Zq8VxK3mTtY7pLw2RbN9cHd5JfGs4AeU"
REVOCATION_SECONDS = 5


def _path(operation: Operation) -> str:
    """The operation's path with ids that nothing has."""
    return re.sub(r"\{\w+\}", "nothing", operation.path)


def _call(wire: Wire, operation: Operation, **headers: str) -> httpx.Response:
    body: JsonObject | None = {} if operation.body is not None else None
    return wire.request(operation.method, _path(operation), json=body, headers=headers)


# Who are you


@pytest.mark.parametrize("path", OPEN_PATHS)
def test_what_everybody_may_read_needs_no_key(nobody: Wire, path: str) -> None:
    assert nobody.get(path).status_code == 200


@pytest.mark.parametrize("path", OPEN_PATHS)
def test_what_everybody_may_read_does_not_look_at_a_key(
    connect: Callable[..., Wire], path: str
) -> None:
    assert connect(UNKNOWN).get(path).status_code == 200


@pytest.mark.parametrize("operation", GUARDED, ids=lambda each: each.name)
def test_everything_else_refuses_a_caller_without_a_key(nobody: Wire, operation: Operation) -> None:
    response = _call(nobody, operation)

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
def test_a_key_that_is_malformed_or_unknown_is_refused_without_an_echo(
    nobody: Wire, host: ServedHost, sent: str
) -> None:
    response = nobody.get("/v1/runs", headers={"Authorization": sent.encode("latin-1")})

    answered = response.text + str(response.headers)
    assert response.status_code == 401
    assert response.json()["error"] == "unauthenticated"
    assert UNKNOWN[-12:] not in answered
    assert ACME[:-1] not in answered
    assert UNKNOWN not in host.log()


def test_the_scheme_is_read_whatever_its_case(nobody: Wire) -> None:
    for scheme in ("bearer", "BEARER", "Bearer  "):
        response = nobody.get("/v1/runs", headers={"Authorization": f"{scheme} {ACME}"})
        assert response.status_code == 200, scheme


# Keys made while the host runs


def _make(host: ServedHost, *options: str) -> JsonObject:
    made: JsonObject = json.loads(host.command("keys", "create", "--json", *options))
    return made


def _status(wire: Wire) -> tuple[int, str]:
    response = wire.get("/v1/runs")
    return response.status_code, response.json().get("error", "")


def _until(wire: Wire, expected: tuple[int, str], seconds: float = REVOCATION_SECONDS) -> None:
    """Call until the answer is as expected; a key that was seen is trusted for a moment.

    What counts is when a call begins: the answer to one that began in time may be slow to come.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if (found := _status(wire)) == expected:
            return
        assert began < deadline, found


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """A host whose keys the tests of this file may change."""
    with served(tmp_path_factory.mktemp("auth"), "--conformance") as running:
        yield running


def test_a_key_made_while_the_host_runs_opens_it(
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
        # Long enough that the key still holds when the command that made it has returned.
        life = 4 * milliseconds // 1000
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


def test_after_a_rotation_both_keys_are_good_until_the_grace_is_over(
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


def test_a_test_key_made_by_the_command_may_use_mocks(
    own: ServedHost, connect: Callable[..., Wire]
) -> None:
    body = {"workflowId": "hello", "configurable": {"mockProvider": {"id": "stream-text"}}}
    test, live = _make(own, "--test"), _make(own)

    assert connect(test["key"], own).post("/v1/runs", body).status_code != 403
    assert connect(live["key"], own).post("/v1/runs", body).status_code == 403


# What may you do


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("operation", GUARDED, ids=lambda each: each.name)
def test_a_role_may_do_what_its_scopes_say_and_nothing_else(
    connect: Callable[..., Wire], role: str, operation: Operation
) -> None:
    wire = connect(ROLES[role])
    advertised = wire.document("/.well-known/openwop")["authorization"]["roles"]
    scopes = next(entry["scopes"] for entry in advertised if entry["role"] == role)

    response = _call(wire, operation)

    if not operation.scope or operation.scope in scopes:
        assert response.status_code not in (401, 403)
    else:
        assert response.status_code == 403
        assert response.json()["error"] == "forbidden"
        assert response.json()["details"] == {"scopeRequired": operation.scope}


def test_a_scope_beside_the_role_opens_just_that(
    own: ServedHost, connect: Callable[..., Wire]
) -> None:
    made = _make(own, "--tenant", "acme", "--role", "ingest", "--scope", "runs:read")
    wire = connect(made["key"], own)

    assert wire.get("/v1/runs").status_code == 200
    assert wire.get("/v1/workflows").status_code == 403


def test_a_missing_scope_comes_before_the_body_and_the_thing_itself(
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
