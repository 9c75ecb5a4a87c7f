"""A JSON Schema of 2 kB whose expansion is 2^30, sent in requests and already stored.

The stored ones stand for definitions of earlier versions: the limits are raised for them.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx

from tests.attack.attacked_host import MALLORY, AttackedHost, HonestClient, attacked
from tests.support.client import Wire
from tests.support.definitions import node, workflow
from tests.support.eventually import eventually
from tests.support.schemas import disguised_expanding_schemas, expanding_schema
from wopr.protocol.documents import JsonObject

UNLIMITED = {"WOPR_MAX_SCHEMA_SUBSCHEMAS": str(10**15)}
REQUESTS = 12
GROWTH_MIB = 200


def interrupt(schema: JsonObject) -> JsonObject:
    data = {"customKind": "mallory.ask"}
    config: JsonObject = {"kind": "custom", "data": data, "resumeSchema": schema}
    return workflow([node("ask", "core.interrupt", config=config)])


def channel_write(schema: JsonObject) -> JsonObject:
    config: JsonObject = {"channelName": "notes", "value": {}}
    return workflow(
        [node("write", "core.channelWrite", config=config)],
        channels={"notes": {"reducer": "replace", "schema": schema}},
    )


def test_a_schema_that_expands_without_bound_is_refused_while_others_are_served(
    tmp_path: Path,
) -> None:
    definition = workflow([node("a")], configurableSchema=expanding_schema(keyword="anyOf"))

    with attacked(tmp_path) as host, HonestClient(host) as honest:
        answers = at_once(host, "/v1/workflows:validate", [definition] * REQUESTS)
        refused = at_once(host, "/v1/workflows", [definition] * REQUESTS)
        honest.wait_for_round()

    assert all(not answer.json()["valid"] for answer in answers)
    assert {answer.status_code for answer in refused} == {400}
    assert "expands to more than 10^9 subschemas" in refused[0].json()["message"]
    assert honest.growth_mib < GROWTH_MIB


def test_requests_that_wait_for_long_checks_leave_capacity_to_other_tenants(tmp_path: Path) -> None:
    definition = workflow([node("a")], configurableSchema=disguised_expanding_schemas()["a base"])
    body = {"workflowId": definition["id"]}
    header = {"Idempotency-Key": "the same"}

    with attacked(tmp_path, WOPR_MAX_IN_FLIGHT="16", WOPR_CHECK_SECONDS="0.3") as host:
        with host.client() as mallory:
            assert mallory.post("/v1/workflows", definition).status_code == 201
        with HonestClient(host) as honest, ThreadPoolExecutor(24) as threads:
            make = partial(httpx.post, f"{host.url}/v1/runs", json=body, timeout=60)
            headers = {"Authorization": f"Bearer {MALLORY}", **header}
            answers = [threads.submit(make, headers=headers) for _ in range(24)]
            honest.wait_for_round()

    statuses = Counter(answer.result().status_code for answer in answers)
    # Each of the others was checked separately, one after the other.
    assert statuses.keys() == {400, 503}
    assert statuses[400] <= 8


def test_a_disguised_expanding_schema_is_refused_or_stopped_while_others_are_served(
    tmp_path: Path,
) -> None:
    bombs = [
        workflow([node("a")], configurableSchema=schema)
        for schema in disguised_expanding_schemas().values()
    ]

    with attacked(tmp_path) as host, HonestClient(host) as honest:
        registered = at_once(host, "/v1/workflows", bombs)
        begun = at_once(host, "/v1/runs", [{"workflowId": each["id"]} for each in bombs])
        honest.wait_for_round()

    for at_registration, at_start in zip(registered, begun, strict=True):
        if at_registration.status_code == 201:
            # The checks of one tenant wait for each other, and the last of them for too long.
            assert at_start.status_code in (400, 503)
            assert re.search("could not be checked: |for its turn", at_start.json()["message"])
        else:
            assert at_registration.status_code == 400
            assert re.search("expands to|names no part", at_registration.json()["message"])
    assert honest.growth_mib < GROWTH_MIB


def test_stored_expanding_schemas_are_stopped_at_a_deadline_and_survive_a_kill(
    tmp_path: Path,
) -> None:
    with attacked(tmp_path, **UNLIMITED) as host:
        with host.client() as mallory:
            starts = mallory.register(workflow([node("a")], configurableSchema=expanding_schema()))
            writes = mallory.register(channel_write(expanding_schema()))
            asking = mallory.create(mallory.register(interrupt(expanding_schema())))
            mallory.events_until(asking, "interrupt.requested")

        with HonestClient(host) as honest:
            answers = attack(host, starts, writes, asking)
            honest.wait_for_round()
        judge(answers)
        assert honest.growth_mib < GROWTH_MIB

        # Killed during a check of an expanding schema: no subprocess is left, and the run
        # continues.
        workers = subprocesses_of(host)
        with ThreadPoolExecutor() as senders:
            doomed = senders.submit(create, host.url, writes)
            eventually(lambda: bool(subprocesses_of(host) - workers) or doomed.done())
            workers |= subprocesses_of(host)
            host.kill_and_recover()
        eventually(lambda: not any(map(exists, workers)))

        with HonestClient(host) as honest:
            judge(attack(host, starts, writes, asking))
            honest.wait_for_round()


def attack(host: AttackedHost, starts: str, writes: str, asking: str) -> list[httpx.Response]:
    """Start runs that check expanding schemas, and answer one, concurrently."""
    begun = at_once(host, "/v1/runs", [{"workflowId": starts}] * 2 + [{"workflowId": writes}] * 2)
    path = f"/v1/runs/{asking}/interrupts/ask"
    return [*begun, *at_once(host, path, [{"resumeValue": {}}] * 2)]


def judge(answers: list[httpx.Response]) -> None:
    """Check that each request and each run of the attacker has a reason for its refusal."""
    refused = [answer for answer in answers if answer.status_code != 201]
    assert {answer.status_code for answer in refused} == {400}
    assert all("could not be checked: " in answer.json()["message"] for answer in refused)
    url = str(answers[0].url.copy_with(path="/"))
    with Wire(url, MALLORY) as mallory:
        for answer in answers:
            if answer.status_code == 201:
                ended = mallory.finished(answer.json()["runId"])
                assert (ended["status"], ended["error"]["code"]) == (
                    "failed",
                    "schema_check_failed",
                )


def at_once(host: AttackedHost, path: str, bodies: list[JsonObject]) -> list[httpx.Response]:
    with ThreadPoolExecutor(max_workers=len(bodies)) as senders:
        return list(senders.map(partial(post, host.url, path), bodies))


def post(url: str, path: str, body: JsonObject) -> httpx.Response:
    headers = {"Authorization": f"Bearer {MALLORY}"}
    return httpx.post(f"{url}{path}", json=body, headers=headers, timeout=60)


def create(url: str, workflow_id: str) -> None:
    """Start a run on a host that may be killed before it responds."""
    try:
        post(url, "/v1/runs", {"workflowId": workflow_id})
    except httpx.HTTPError:
        return


def subprocesses_of(host: AttackedHost) -> set[int]:
    pid = host.running.pid
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
