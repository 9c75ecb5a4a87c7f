"""Events of one process are seen at every other, also when a notification is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import LiteralString

import psycopg
import pytest

from tests.fault.cluster import LOCAL, Cluster, Member, cluster, stream_text
from tests.support.client import Wire
from tests.support.definitions import delay, fresh, workflow
from tests.support.eventually import eventually
from tests.support.feedback import annotate, until
from tests.support.postgres.databases import Databases
from tests.support.recorder import NOTICE
from tests.support.webhook_receiver import receiving

pytestmark = pytest.mark.timeout(300)

# Only this database: other tests listen on the same server. A listener that has been open
# for a while has checked its connection.
_LISTENING = "datname = current_database() AND query IN ('LISTEN wopr', 'SELECT 1')"
CUT: LiteralString = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_LISTENING}"
LISTENERS: LiteralString = f"SELECT count(*) FROM pg_stat_activity WHERE {_LISTENING}"
# Less than the interval at which a process reads changes of others by itself.
HEARD_SECONDS = 25.0


@pytest.fixture(scope="module")
def shared(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("news")
    with (
        databases.lent() as url,
        cluster(
            url,
            folder,
            api_options=("--no-worker",),
            WOPR_ALLOW_PRIVATE_DESTINATIONS="1",
            WOPR_WEBHOOK_RETRY_MS="50",
        ) as running,
    ):
        yield running
        running.until_over()
        running.check()


@pytest.fixture
def first(shared: Cluster) -> Wire:
    return shared.apis[0].wire


@pytest.fixture
def second(shared: Cluster) -> Wire:
    return shared.apis[1].wire


def test_a_stream_at_another_process_has_no_gap_and_no_duplicate(
    shared: Cluster, second: Wire
) -> None:
    run_id = stream_text(shared.apis[0], 50, 20)

    frames = second.frames(run_id, streamMode="debug")

    assert [frame.json["sequence"] for frame in frames] == list(range(len(frames)))
    assert len(frames) == len(shared.events(run_id))


def test_a_reader_gets_every_event_although_its_process_was_disconnected(
    shared: Cluster, second: Wire
) -> None:
    run_id = stream_text(shared.apis[0], 80, 40)

    with second.stream(run_id, streamMode="debug") as frames:
        events = (frame.json for frame in frames if not frame.comment)
        seen = [next(events)["sequence"] for _ in range(5)]
        with psycopg.connect(shared.url, autocommit=True, options=LOCAL) as admin:
            admin.execute(CUT)
        seen += [event["sequence"] for event in events]

    assert seen == list(range(len(shared.events(run_id))))


def test_a_reader_at_another_process_receives_an_annotation_once(
    shared: Cluster, first: Wire, second: Wire
) -> None:
    # A later or resumed listener does not receive it.
    eventually(lambda: shared.one(LISTENERS) >= len(shared.members))
    run_id = first.create(first.register(workflow([delay("a", 20), delay("b", 60_000)])))

    with second.stream(run_id) as frames:
        until(frames, "node.completed")
        stored = annotate(first, run_id)
        heard = until(frames, NOTICE)[-1]
        first.post(f"/v1/runs/{run_id}/cancel")
        rest = [frame.event for frame in frames]

    assert heard.json == stored
    assert NOTICE not in rest


def test_an_open_stream_ends_at_every_process_when_its_key_is_revoked(
    shared: Cluster, first: Wire
) -> None:
    admin, other = shared.apis
    made = admin.command("keys", "create", "--tenant", "acme", "--role", "admin", "--json")
    key = json.loads(made)
    run_id = first.create(first.register(workflow([delay("wait", 600_000)])))

    with Wire(other.url, key["key"]) as wire, wire.stream(run_id) as frames:
        next(frames)
        admin.command("keys", "revoke", key["keyId"])
        rest = list(frames)
        refused = wire.get(f"/v1/runs/{run_id}")

    first.post(f"/v1/runs/{run_id}/cancel")
    assert "run.cancelled" not in [frame.event for frame in rest]
    assert refused.json()["error"] == "key_revoked"


def test_a_key_that_is_revoked_stops_working_everywhere(shared: Cluster) -> None:
    admin = shared.apis[0]
    key = json.loads(
        admin.command("keys", "create", "--tenant", "acme", "--role", "viewer", "--json")
    )

    def codes() -> list[int]:
        found = []
        for api in shared.apis:
            with Wire(api.url, key["key"]) as wire:
                found.append(wire.http.get("/v1/runs").status_code)
        return found

    eventually(lambda: codes() == [200, 200])
    admin.command("keys", "revoke", key["keyId"])

    eventually(lambda: codes() == [401, 401], HEARD_SECONDS)


def test_every_process_starts_the_newest_version(first: Wire, second: Wire) -> None:
    name = fresh()
    first.register(workflow([delay("a", 1)], id=name, version="1"))
    second.run(name)

    first.register(workflow([delay("a", 1)], id=name, version="2"))

    eventually(lambda: second.run(name)["workflowVersion"] == "2", HEARD_SECONDS)


def test_a_webhook_registered_at_one_process_receives_runs_of_another(
    first: Wire, second: Wire
) -> None:
    with receiving() as receiver:
        body = {"url": receiver.url, "events": ["run.completed"]}
        assert first.post("/v1/webhooks", body).status_code == 201

        def is_told() -> bool:
            second.run("conformance-noop")
            return bool(receiver.requests)

        eventually(is_told)


def test_the_limit_of_one_active_run_applies_to_all_processes_together(
    first: Wire, second: Wire
) -> None:
    name = first.register(workflow([delay("a", 60_000)]))
    path = "/v1/runs"
    body = {"workflowId": name}
    headers = {"X-Dedup": "enforce"}

    with ThreadPoolExecutor(2) as both:
        asked = [
            both.submit(wire.http.post, path, json=body, headers=headers)
            for wire in (first, second)
        ]
        answers = [each.result() for each in asked]

    assert sorted(answer.status_code for answer in answers) == [201, 409]
    [made] = [answer.json()["runId"] for answer in answers if answer.status_code == 201]
    first.post(f"/v1/runs/{made}/cancel")


def test_every_process_reports_readiness_and_metrics(shared: Cluster) -> None:
    for member in shared.members:
        # A delayed process reports it until its next heartbeat.
        eventually(partial(is_ready, member))
        text = member.wire.metrics()
        for name in (
            "wopr_queue_depth",
            "wopr_lease_age_seconds",
            "wopr_runs_rescued_total",
            "wopr_append_seconds_count",
        ):
            assert f"\n{name} " in text


def is_ready(member: Member) -> bool:
    response = member.wire.get("/readyz")
    return response.status_code == 200 and response.json()["status"] == "ready"


def test_a_process_with_another_host_key_does_not_start(shared: Cluster) -> None:
    stranger = Member(
        shared.folder / "stranger", (), {"WOPR_DB": shared.url, "WOPR_HOST_KEY": "A" * 44}
    )

    with pytest.raises(AssertionError, match="another host key"):
        stranger.start()
    stranger.wait_for_exit()
