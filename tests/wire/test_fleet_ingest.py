"""What producers push: all of it or nothing, once, and never another past."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.fleet.builders import AGENT_VARIANTS, CI_VARIANTS, grave, line
from tests.wire.client import Wire
from tests.wire.definitions import fresh
from tests.wire.fleet import NDJSON, Story, held, push
from tests.wire.host import ACME, INGEST, VIEWER, ServedHost, served
from wopr.protocol.documents import UNSET, JsonObject

MIB = 1024 * 1024
INGEST_PATHS = ["/v1/ingest/transitions", "/v1/ingest/agent-transitions"]


def send(wire: Wire, body: bytes, path: str = INGEST_PATHS[0], **headers: str) -> httpx.Response:
    return wire.request("POST", path, content=body, headers=NDJSON | headers)


def refusal(response: httpx.Response, status: int, code: str) -> JsonObject:
    """The details of a refusal."""
    assert response.status_code == status, response.text
    envelope: JsonObject = response.json()
    assert envelope["error"] == code
    details: JsonObject = envelope["details"]
    return details


def bad_lines(details: JsonObject) -> list[int]:
    assert all(each["message"] for each in details["errors"])
    return [each["line"] for each in details["errors"]]


def test_the_sample_lines_pass_the_checker_the_ingest_and_the_views_byte_for_byte(
    acme: Wire,
) -> None:
    run_id, agent_id = fresh("sample"), fresh("agent")
    same = {"run_id": run_id, "agent_id": agent_id, "ts": Story().ts}
    counts = {"total_audit_checkpoints": 0, "audits_passed": 0}
    sample = [
        line("agent_run_start", **same, model="large"),
        line("agent_transition", **same, step=0, reason="tool_call:search"),
        line("tool_invocation", **same, step=0, ok=True, error=UNSET),
        line("agent_run_end", **same, **counts, outcome="partial", convergence_score=0.71),
    ]

    response = push(acme, *sample)

    assert grave(sample) == []
    assert response.json() == {"accepted": 4, "duplicate": 0, "runs": [run_id]}
    assert held(acme, run_id) == sample
    rows = acme.document("/api/agent-runs/aggregate", params={"window": "all"})["agents"]
    [row] = [each for each in rows if each["agent_id"] == agent_id]
    assert (row["run_count"], row["outcomes"]["partial"]) == (1, 1)
    assert (row["duration_p50_s"], row["mean_convergence"]) == (3.5, 0.71)


@pytest.mark.parametrize("variant", [*CI_VARIANTS, *AGENT_VARIANTS])
def test_every_variant_is_taken_with_what_it_carries_besides(acme: Wire, variant: str) -> None:
    run_id = fresh("variant")
    sent = line(variant, run_id=run_id, graph={"version": 1, "ü": [None, 1.50]}, own="x")

    assert push(acme, sent).status_code == 200
    assert held(acme, run_id) == [sent]


@pytest.mark.parametrize("variant", CI_VARIANTS)
def test_the_agents_route_takes_no_ci_line(acme: Wire, variant: str) -> None:
    story = Story()
    body = story.start() + b"\n" + line(variant, run_id=story.run_id) + b"\n"

    details = refusal(send(acme, body, INGEST_PATHS[1]), 400, "validation_error")

    assert bad_lines(details) == [2]
    assert held(acme, story.run_id) == []
    assert send(acme, story.start(), INGEST_PATHS[1]).json()["accepted"] == 1


def test_a_repeated_push_is_answered_as_held(acme: Wire) -> None:
    story = Story()
    whole = story.whole()
    push(acme, *whole[:5])

    assert push(acme, *whole[:5]).json() == {
        "accepted": 0,
        "duplicate": 5,
        "runs": [story.run_id],
    }
    assert push(acme, *whole[2:]).json()["accepted"] == len(whole) - 5
    assert held(acme, story.run_id) == whole


def test_one_push_may_hold_many_runs_mixed_line_by_line(acme: Wire) -> None:
    first, second = Story(), Story()
    mixed = [each for pair in zip(first.whole(), second.whole(), strict=True) for each in pair]

    answer = push(acme, *mixed).json()

    assert answer["runs"] == [first.run_id, second.run_id]
    assert held(acme, first.run_id) == first.whole()
    assert held(acme, second.run_id) == second.whole()


def test_every_bad_line_is_named_and_nothing_is_stored(acme: Wire) -> None:
    good, other = Story(), Story()
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
    assert held(acme, good.run_id) == held(acme, other.run_id) == []


def test_a_whole_last_line_needs_no_newline(acme: Wire) -> None:
    story = Story()

    assert send(acme, story.start()).json()["accepted"] == 1
    assert held(acme, story.run_id) == [story.start()]


def test_an_empty_push_is_taken(acme: Wire) -> None:
    assert send(acme, b"\n \n").json() == {"accepted": 0, "duplicate": 0, "runs": []}


def test_a_push_that_would_rewrite_is_refused_with_its_lines(acme: Wire) -> None:
    story = Story()
    whole = story.whole()
    push(acme, *whole)
    changed = [whole[0], story.move(0, "thinking", "failed"), *whole[2:]]

    details = refusal(push(acme, *changed), 409, "would_rewrite")

    assert 2 in bad_lines(details)
    assert held(acme, story.run_id) == whole


def test_a_step_below_one_that_is_held_is_a_bad_line(acme: Wire) -> None:
    story = Story()
    push(acme, story.start(), story.move(7, "thinking", "response"))

    details = refusal(
        push(acme, story.move(7, "response", "reflect"), story.move(6, "reflect", "thinking")),
        400,
        "validation_error",
    )

    assert bad_lines(details) == [2]
    assert len(held(acme, story.run_id)) == 2


def test_a_count_beyond_any_store_is_kept(acme: Wire) -> None:
    story = Story()

    assert push(acme, story.start(), story.move(2**64 - 1, "thinking", "response")).is_success
    assert push(acme, story.move(2**64 - 1, "response", "reflect")).is_success


# Sizes, media types, keys and limits


def test_a_push_of_a_mebibyte_is_taken_and_one_byte_more_is_not(acme: Wire) -> None:
    story = Story()
    rest = MIB - len(story.start(task=""))
    largest = story.start(task="x" * rest)

    refused = send(acme, largest + b" ")
    taken = send(acme, largest)

    assert refusal(refused, 413, "payload_too_large")["limit"] == MIB
    assert len(largest) == MIB
    assert taken.status_code == 200, taken.text
    assert taken.json()["accepted"] == 1
    assert held(acme, story.run_id) == [largest]


def test_a_push_too_long_is_refused_before_it_has_come(host: ServedHost) -> None:
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
def test_lines_are_taken_under_each_of_their_names(acme: Wire, media_type: str) -> None:
    response = send(acme, Story().start(), **{"Content-Type": media_type})

    assert response.status_code == 200


@pytest.mark.parametrize("media_type", ["application/json", "application/xml", "x"])
def test_no_other_media_type_is_taken(acme: Wire, media_type: str) -> None:
    response = send(acme, Story().start(), **{"Content-Type": media_type})

    assert refusal(response, 415, "unsupported_media_type")["field"] == "Content-Type"


@pytest.mark.parametrize("path", INGEST_PATHS)
def test_a_key_for_ingest_may_push_and_no_more(connect: Callable[..., Wire], path: str) -> None:
    producer, viewer = connect(INGEST), connect(VIEWER)

    assert send(producer, Story().start(), path).status_code == 200
    assert refusal(send(viewer, Story().start(), path), 403, "forbidden")["scopeRequired"]
    for reading in ("/api/runs", "/api/agent-runs/aggregate", "/v1/export/transitions"):
        assert producer.get(reading).status_code == 403
        assert viewer.get(reading).status_code == 200
    assert producer.get("/api/self/tenant").status_code == 200


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """A host that lets a tenant push once a second."""
    data_dir: Path = tmp_path_factory.mktemp("slow")
    with served(data_dir, WOPR_INGEST_RATE_LIMIT="1") as running:
        yield running


def test_a_tenant_that_pushes_too_often_is_told_when_to_come_back(
    slow: ServedHost, connect: Callable[..., Wire]
) -> None:
    wire = connect(ACME, slow)
    answers = [push(wire, Story().start()) for _ in range(12)]

    limits = wire.document("/api/self/tenant")["rate_limit"]

    refused = [each for each in answers if each.status_code == 429]
    assert refused
    assert refused[0].json()["error"] == "rate_limited"
    assert int(refused[0].headers["retry-after"]) >= 1
    assert limits["recent_throttled_count"] == len(refused)
    assert (limits["capacity"], limits["refill_rate_per_sec"], limits["window_s"]) == (2, 1, 300)
    assert 0 <= limits["remaining_tokens"] <= 2


def test_pushes_of_one_run_at_once_are_taken_one_after_the_other(
    connect: Callable[..., Wire],
) -> None:
    story = Story()
    whole = story.whole()
    wires = [connect(ACME) for _ in range(4)]

    with ThreadPoolExecutor(len(wires)) as pool:
        answers = list(pool.map(lambda wire: push(wire, *whole), wires))

    assert sorted(each.json()["accepted"] for each in answers) == [0, 0, 0, len(whole)]
    assert held(wires[0], story.run_id) == whole


def test_what_was_taken_survives_a_kill(tmp_path: Path) -> None:
    host = ServedHost(tmp_path / "killed")
    host.start()
    story = Story()
    with Wire(host.url, ACME) as wire:
        assert push(wire, *story.whole()).status_code == 200
    assert host.process is not None
    host.process.kill()
    host.process.communicate()

    host.start()
    with Wire(host.url, ACME) as wire:
        found = held(wire, story.run_id)
        rows = wire.document("/api/agent-runs/aggregate", params={"window": "all"})["agents"]
    host.stop()

    assert found == story.whole()
    assert [row["run_count"] for row in rows] == [1]


def test_discovery_says_where_the_fleet_is(nobody: Wire, acme: Wire) -> None:
    document = nobody.document("/.well-known/openwop")

    kahn = document["kahn"]

    assert kahn == document["capabilities"]["kahn"]
    assert (kahn["supported"], kahn["maxBodyBytes"]) == (True, MIB)
    story = Story()
    response = send(acme, b"\n".join(story.whole()), kahn["ingestUrl"])
    assert response.status_code == 200
    assert acme.get(kahn["aggregateUrl"]).status_code == 200
    assert acme.get(kahn["auditsUrl"]).status_code == 200
    assert nobody.document(kahn["schemaUrl"])["$id"] == kahn["schemaUrl"]
    exported = acme.get(kahn["exportUrl"].replace("{runId}", story.run_id))
    assert exported.content == b"".join(each + b"\n" for each in story.whole())


@pytest.mark.parametrize("name", ["kahn-agent-event", "kahn-ci-event"])
def test_the_schemas_of_both_families_are_served(nobody: Wire, name: str) -> None:
    response = nobody.get(f"/v1/schemas/{name}.json")

    assert response.headers["content-type"] == "application/schema+json"
    assert response.json()["$id"] == f"/v1/schemas/{name}.json"
