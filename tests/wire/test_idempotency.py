from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.client import Wire
from tests.support.definitions import delay, fresh, node, workflow
from tests.support.host import ACME, ServedHost
from tests.support.interrupts import ACCEPT, accepted, gate, waiting_run
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.both_stores

REPLAY = "openwop-idempotent-replay"
BODY = {"workflowId": "conformance-idempotent", "inputs": {"nonce": "n"}}


def _create(wire: Wire, key: str, body: JsonObject = BODY) -> httpx.Response:
    return wire.post("/v1/runs", body, headers={"Idempotency-Key": key})


def test_a_repeated_request_gets_the_first_response_marked_as_replayed(acme: Wire) -> None:
    key = fresh("key")

    first, second = _create(acme, key), _create(acme, key)

    assert first.headers.get(REPLAY, "false") == "false"
    assert second.headers[REPLAY] == "true"
    assert (second.status_code, second.content) == (201, first.content)


def test_another_body_under_the_same_key_is_refused_without_the_first_response(acme: Wire) -> None:
    key = fresh("key")
    run_id = _create(acme, key).json()["runId"]

    other = _create(acme, key, {"workflowId": "conformance-idempotent", "inputs": {"nonce": "m"}})

    assert other.status_code == 409
    assert other.json()["error"] == "idempotency_key_mismatch"
    assert run_id not in other.text
    assert REPLAY not in other.headers


def test_another_query_under_the_same_key_is_refused_without_the_first_response(acme: Wire) -> None:
    headers = {"Idempotency-Key": fresh("key")}
    first = acme.post("/v1/runs?a=1&b=2", BODY, headers=headers)

    other = acme.post("/v1/runs?a=1&b=3", BODY, headers=headers)
    without = acme.post("/v1/runs", BODY, headers=headers)
    again = acme.post("/v1/runs?b=2&a=1", BODY, headers=headers)

    for refused in (other, without):
        assert refused.status_code == 409
        assert refused.json()["error"] == "idempotency_key_mismatch"
        assert "query" in refused.json()["message"]
        assert first.json()["runId"] not in refused.text
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers[REPLAY] == "true"


def test_fifty_concurrent_requests_create_one_run(acme: Wire, host: ServedHost) -> None:
    tag = fresh("tag")
    key = fresh("key")
    body = BODY | {"tags": [tag]}

    def create(_: int) -> httpx.Response:
        with Wire(host.url, ACME) as wire:
            return _create(wire, key, body)

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(create, range(20)))

    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    assert sum(answer.headers.get(REPLAY) == "true" for answer in answers) == 19
    assert len(acme.document("/v1/runs", params={"tag": tag})["items"]) == 1


def test_the_same_key_of_another_tenant_is_another_key(acme: Wire, globex: Wire) -> None:
    key = fresh("key")

    ours, theirs = _create(acme, key), _create(globex, key, BODY | {"tags": ["other-body"]})

    assert (ours.status_code, theirs.status_code) == (201, 201)
    assert ours.json()["runId"] != theirs.json()["runId"]
    assert REPLAY not in theirs.headers


def test_the_same_key_on_another_endpoint_is_another_key(acme: Wire) -> None:
    key = fresh("key")
    runs = [acme.create("conformance-cancellable") for _ in range(2)]
    headers = {"Idempotency-Key": key}

    answers = [acme.post(f"/v1/runs/{run_id}/cancel", {}, headers=headers) for run_id in runs]
    created = _create(acme, key)

    assert [answer.json()["runId"] for answer in answers] == runs
    assert created.status_code == 201
    assert all(REPLAY not in answer.headers for answer in (*answers, created))


def test_a_validation_refusal_is_not_stored(acme: Wire) -> None:
    key = fresh("key")
    definition = workflow([node("a")])
    body = {"workflowId": definition["id"], "inputs": {"nonce": 1}, "tags": [""]}

    first = _create(acme, key, body)
    second = _create(acme, key)

    assert (first.status_code, second.status_code) == (400, 201)
    assert REPLAY not in second.headers


def test_a_final_refusal_is_stored(acme: Wire) -> None:
    key = fresh("key")
    definition = workflow([node("a")])
    body = {"workflowId": definition["id"]}
    first = _create(acme, key, body)

    acme.register(definition)
    second = _create(acme, key, body)

    assert (first.status_code, second.status_code) == (404, 404)
    assert second.headers[REPLAY] == "true"
    assert second.content == first.content


@pytest.mark.parametrize("action", ["/cancel", ":pause"])
def test_a_repeated_command_is_carried_out_once(acme: Wire, action: str) -> None:
    run_id = acme.create("conformance-cancellable")
    headers = {"Idempotency-Key": fresh("key")}

    first, second = (acme.post(f"/v1/runs/{run_id}{action}", {}, headers=headers) for _ in range(2))

    acme.post(f"/v1/runs/{run_id}/cancel")
    assert (first.status_code, first.content) == (second.status_code, second.content)
    assert second.headers[REPLAY] == "true"


def test_a_repeated_registration_is_replayed_with_its_status(acme: Wire) -> None:
    headers = {"Idempotency-Key": fresh("key")}
    definition = workflow([node("a")])

    first, second = (acme.post("/v1/workflows", definition, headers=headers) for _ in range(2))

    assert (first.status_code, second.status_code) == (201, 201)
    assert second.headers[REPLAY] == "true"


def test_a_read_ignores_the_key(acme: Wire) -> None:
    run_id = waiting_run(acme, gate())
    headers = {"Idempotency-Key": fresh("key")}

    before = acme.get(f"/v1/runs/{run_id}", headers=headers).json()["status"]
    accepted(acme, run_id, "gate", ACCEPT)
    after = acme.get(f"/v1/runs/{run_id}", headers=headers).json()["status"]

    assert (before, after) == ("waiting-approval", "completed")


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_a_key_of_the_wrong_length_is_refused(acme: Wire, key: str) -> None:
    response = _create(acme, key)

    assert response.status_code == 400
    assert response.json()["details"]["field"] == "Idempotency-Key"


@pytest.mark.parametrize("key", ["k" * 255, "ünïcode", "with spaces: and, signs"])
def test_any_key_of_a_valid_length_is_accepted(acme: Wire, key: str) -> None:
    unique = fresh("")[-8:] + key[8:]
    headers = {"Idempotency-Key": unique.encode()}

    first, second = (acme.post("/v1/runs", BODY, headers=headers) for _ in range(2))

    assert first.content == second.content
    assert second.headers[REPLAY] == "true"


def test_responses_are_stored_across_a_restart(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host("--conformance")
    wire = connect(ACME, host)
    run_id = wire.create(wire.register(workflow([delay("wait", 120_000)])))
    created = _create(wire, "create-1")
    headers = {"Idempotency-Key": "cancel-1"}
    cancelled = wire.post(f"/v1/runs/{run_id}/cancel", {}, headers=headers)

    host.restart()
    wire = connect(ACME, host)
    again = _create(wire, "create-1")
    other = _create(wire, "create-1", BODY | {"tags": ["x"]})
    cancelled_again = wire.post(f"/v1/runs/{run_id}/cancel", {}, headers=headers)

    assert again.content == created.content
    assert again.headers[REPLAY] == "true"
    assert other.status_code == 409
    assert cancelled_again.content == cancelled.content
    assert cancelled_again.headers[REPLAY] == "true"
    assert "create-1" not in host.log()
