"""Pushes of producers: complete or not at all, once, and never with another past."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.client import Wire
from tests.support.definitions import fresh
from tests.support.host import ACME, INGEST, VIEWER, ServedHost, served
from tests.support.kahn import NDJSON, KahnRun, push, stored_lines
from tests.support.kahn_lines import AGENT_VARIANTS, CI_VARIANTS, errors_and_warnings, line
from wopr.protocol.documents import UNSET, JsonObject

pytestmark = pytest.mark.both_stores

MIB = 1024 * 1024
INGEST_PATHS = ["/v1/ingest/transitions", "/v1/ingest/agent-transitions"]


def send(wire: Wire, body: bytes, path: str = INGEST_PATHS[0], **headers: str) -> httpx.Response:
    return wire.request("POST", path, content=body, headers=NDJSON | headers)


def refusal(response: httpx.Response, status: int, code: str) -> JsonObject:
    """Return the details of a refusal."""
    assert response.status_code == status, response.text
    envelope: JsonObject = response.json()
    assert envelope["error"] == code
    details: JsonObject = envelope["details"]
    return details


def bad_lines(details: JsonObject) -> list[int]:
    assert all(each["message"] for each in details["errors"])
    return [each["line"] for each in details["errors"]]


def test_the_sample_lines_pass_checker_ingest_and_views_byte_for_byte(
    acme: Wire,
) -> None:
    run_id, agent_id = fresh("sample"), fresh("agent")
    same = {"run_id": run_id, "agent_id": agent_id, "ts": KahnRun().ts}
    counts = {"total_audit_checkpoints": 0, "audits_passed": 0}
    sample = [
        line("agent_run_start", **same, model="large"),
        line("agent_transition", **same, step=0, reason="tool_call:search"),
        line("tool_invocation", **same, step=0, ok=True, error=UNSET),
        line("agent_run_end", **same, **counts, outcome="partial", convergence_score=0.71),
    ]

    response = push(acme, *sample)

    assert errors_and_warnings(sample) == []
    assert response.json() == {"accepted": 4, "duplicate": 0, "runs": [run_id]}
    assert stored_lines(acme, run_id) == sample
    rows = acme.document("/api/agent-runs/aggregate", params={"window": "all"})["agents"]
    [row] = [each for each in rows if each["agent_id"] == agent_id]
    assert (row["run_count"], row["outcomes"]["partial"]) == (1, 1)
    assert (row["duration_p50_s"], row["mean_convergence"]) == (3.5, 0.71)


@pytest.mark.parametrize("variant", [*CI_VARIANTS, *AGENT_VARIANTS])
def test_every_variant_is_accepted_with_unknown_fields(acme: Wire, variant: str) -> None:
    run_id = fresh("variant")
    sent = line(variant, run_id=run_id, graph={"version": 1, "ü": [None, 1.50]}, own="x")

    assert push(acme, sent).status_code == 200
    assert stored_lines(acme, run_id) == [sent]


@pytest.mark.parametrize("variant", CI_VARIANTS)
def test_the_agents_route_accepts_no_ci_line(acme: Wire, variant: str) -> None:
    story = KahnRun()
    body = story.start() + b"\n" + line(variant, run_id=story.run_id) + b"\n"

    details = refusal(send(acme, body, INGEST_PATHS[1]), 400, "validation_error")

    assert bad_lines(details) == [2]
    assert stored_lines(acme, story.run_id) == []
    assert send(acme, story.start(), INGEST_PATHS[1]).json()["accepted"] == 1


def test_a_repeated_push_is_reported_as_duplicate(acme: Wire) -> None:
    story = KahnRun()
    whole = story.whole()
    push(acme, *whole[:5])

    assert push(acme, *whole[:5]).json() == {
        "accepted": 0,
        "duplicate": 5,
        "runs": [story.run_id],
    }
    assert push(acme, *whole[2:]).json()["accepted"] == len(whole) - 5
    assert stored_lines(acme, story.run_id) == whole


def test_one_push_can_contain_interleaved_lines_of_many_runs(acme: Wire) -> None:
    first, second = KahnRun(), KahnRun()
    mixed = [each for pair in zip(first.whole(), second.whole(), strict=True) for each in pair]

    answer = push(acme, *mixed).json()

    assert answer["runs"] == [first.run_id, second.run_id]
    assert stored_lines(acme, first.run_id) == first.whole()
    assert stored_lines(acme, second.run_id) == second.whole()


def test_every_invalid_line_is_named_and_nothing_is_stored(acme: Wire) -> None:
    good, other = KahnRun(), KahnRun()
    lines = [
        good.start(),
        b"not json",
        b"",
        line("agent_run_start", run_id="bad id"),
        other.start(),
        other.move(4, "thinking", "response"),
        other.move(3, "response", "reflect"),
        b'{"torn": ',
    ]

    details = refusal(send(acme, b"\n".join(lines)), 400, "validation_error")

    assert bad_lines(details) == [2, 4, 7, 8]
    assert stored_lines(acme, good.run_id) == stored_lines(acme, other.run_id) == []


def test_a_whole_last_line_needs_no_newline(acme: Wire) -> None:
    story = KahnRun()

    assert send(acme, story.start()).json()["accepted"] == 1
    assert stored_lines(acme, story.run_id) == [story.start()]


def test_an_empty_push_is_accepted(acme: Wire) -> None:
    assert send(acme, b"\n \n").json() == {"accepted": 0, "duplicate": 0, "runs": []}


def test_a_push_with_a_different_past_is_refused_with_its_lines(acme: Wire) -> None:
    story = KahnRun()
    whole = story.whole()
    push(acme, *whole)
    changed = [whole[0], story.move(0, "thinking", "failed"), *whole[2:]]

    details = refusal(push(acme, *changed), 409, "would_rewrite")

    assert 2 in bad_lines(details)
    assert stored_lines(acme, story.run_id) == whole


def test_a_step_below_a_stored_one_is_an_invalid_line(acme: Wire) -> None:
    story = KahnRun()
    push(acme, story.start(), story.move(7, "thinking", "response"))

    details = refusal(
        push(acme, story.move(7, "response", "reflect"), story.move(6, "reflect", "thinking")),
        400,
        "validation_error",
    )

    assert bad_lines(details) == [2]
    assert len(stored_lines(acme, story.run_id)) == 2


def test_a_count_larger_than_a_database_integer_is_stored(acme: Wire) -> None:
    story = KahnRun()

    assert push(acme, story.start(), story.move(2**64 - 1, "thinking", "response")).is_success
    assert push(acme, story.move(2**64 - 1, "response", "reflect")).is_success


# Sizes, media types, keys and limits


def test_a_push_of_one_mebibyte_is_accepted_and_one_byte_more_is_not(acme: Wire) -> None:
    story = KahnRun()
    rest = MIB - len(story.start(task=""))
    largest = story.start(task="x" * rest)

    refused = send(acme, largest + b" ")
    taken = send(acme, largest)

    assert refusal(refused, 413, "payload_too_large")["limit"] == MIB
    assert len(largest) == MIB
    assert taken.status_code == 200, taken.text
    assert taken.json()["accepted"] == 1
    assert stored_lines(acme, story.run_id) == [largest]


def test_a_push_that_is_too_long_is_refused_before_it_has_arrived(host: ServedHost) -> None:
    head = (
        f"POST {INGEST_PATHS[0]} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ACME}\r\n"
        f"Content-Type: application/x-ndjson\r\nContent-Length: {MIB + 1}\r\n\r\n"
    )

    with socket.create_connection(("127.0.0.1", host.port), timeout=60) as connection:
        connection.sendall(head.encode())
        answer = connection.recv(65536)

    assert answer.startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "media_type",
    ["application/x-ndjson", "application/json-lines", "text/plain; charset=utf-8"],
)
def test_lines_are_accepted_under_each_media_type(acme: Wire, media_type: str) -> None:
    response = send(acme, KahnRun().start(), **{"Content-Type": media_type})

    assert response.status_code == 200


@pytest.mark.parametrize("media_type", ["application/json", "application/xml", "x"])
def test_no_other_media_type_is_accepted(acme: Wire, media_type: str) -> None:
    response = send(acme, KahnRun().start(), **{"Content-Type": media_type})

    assert refusal(response, 415, "unsupported_media_type")["field"] == "Content-Type"


@pytest.mark.parametrize("path", INGEST_PATHS)
def test_a_key_for_ingest_can_only_push(connect: Callable[..., Wire], path: str) -> None:
    producer, viewer = connect(INGEST), connect(VIEWER)

    assert send(producer, KahnRun().start(), path).status_code == 200
    assert refusal(send(viewer, KahnRun().start(), path), 403, "forbidden")["scopeRequired"]
    for reading in ("/api/runs", "/api/agent-runs/aggregate", "/v1/export/transitions"):
        assert producer.get(reading).status_code == 403
        assert viewer.get(reading).status_code == 200
    assert producer.get("/api/self/tenant").status_code == 200


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """Start a host that lets a tenant push once a second."""
    data_dir: Path = tmp_path_factory.mktemp("slow")
    with served(data_dir, WOPR_INGEST_RATE_LIMIT="1") as running:
        yield running


@pytest.mark.sqlite("the rate of pushes is counted in memory")
def test_a_tenant_that_pushes_too_often_gets_a_retry_time(
    slow: ServedHost, connect: Callable[..., Wire]
) -> None:
    wire = connect(ACME, slow)
    answers = [push(wire, KahnRun().start()) for _ in range(12)]

    limits = wire.document("/api/self/tenant")["rate_limit"]

    refused = [each for each in answers if each.status_code == 429]
    assert refused
    assert refused[0].json()["error"] == "rate_limited"
    assert int(refused[0].headers["retry-after"]) >= 1
    assert limits["recent_throttled_count"] == len(refused)
    assert (limits["capacity"], limits["refill_rate_per_sec"], limits["window_s"]) == (2, 1, 300)
    assert 0 <= limits["remaining_tokens"] <= 2


def test_concurrent_pushes_of_one_run_are_accepted_in_order(
    connect: Callable[..., Wire],
) -> None:
    story = KahnRun()
    whole = story.whole()
    wires = [connect(ACME) for _ in range(4)]

    with ThreadPoolExecutor(len(wires)) as pool:
        answers = list(pool.map(lambda wire: push(wire, *whole), wires))

    assert sorted(each.json()["accepted"] for each in answers) == [0, 0, 0, len(whole)]
    assert stored_lines(wires[0], story.run_id) == whole


def test_accepted_lines_survive_a_kill(tmp_path: Path) -> None:
    host = ServedHost(tmp_path / "killed")
    host.start()
    story = KahnRun()
    with Wire(host.url, ACME) as wire:
        assert push(wire, *story.whole()).status_code == 200
    host.kill()

    host.start()
    with Wire(host.url, ACME) as wire:
        found = stored_lines(wire, story.run_id)
        rows = wire.document("/api/agent-runs/aggregate", params={"window": "all"})["agents"]
    host.stop()

    assert found == story.whole()
    assert [row["run_count"] for row in rows] == [1]


def test_discovery_names_the_fleet_endpoint(anonymous: Wire, acme: Wire) -> None:
    document = anonymous.document("/.well-known/openwop")

    kahn = document["kahn"]

    assert kahn == document["capabilities"]["kahn"]
    assert (kahn["supported"], kahn["maxBodyBytes"]) == (True, MIB)
    story = KahnRun()
    response = send(acme, b"\n".join(story.whole()), kahn["ingestUrl"])
    assert response.status_code == 200
    assert acme.get(kahn["aggregateUrl"]).status_code == 200
    assert acme.get(kahn["auditsUrl"]).status_code == 200
    assert anonymous.document(kahn["schemaUrl"])["$id"] == kahn["schemaUrl"]
    exported = acme.get(kahn["exportUrl"].replace("{runId}", story.run_id))
    assert exported.content == b"".join(each + b"\n" for each in story.whole())


@pytest.mark.parametrize("name", ["kahn-agent-event", "kahn-ci-event"])
def test_the_schemas_of_both_families_are_served(anonymous: Wire, name: str) -> None:
    response = anonymous.get(f"/v1/schemas/{name}.json")

    assert response.headers["content-type"] == "application/schema+json"
    assert response.json()["$id"] == f"/v1/schemas/{name}.json"
