"""What happens at one process is seen at every other, also when a notification is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.fault.cluster import LOCAL, Cluster, Member, cluster, stream_text
from tests.fault.hosts import eventually
from tests.postgres.databases import Databases
from tests.wire.client import Wire
from tests.wire.definitions import delay, fresh, workflow
from tests.wire.feedback import annotate, until
from tests.wire.receiver import receiving
from tests.wire.recorder import NOTICE

pytestmark = pytest.mark.timeout(300)

CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN wopr'"


@pytest.fixture(scope="module")
def shared(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("news")
    with (
        databases.new() as url,
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


def test_a_reader_gets_everything_although_its_process_was_cut_off(
    shared: Cluster, second: Wire
) -> None:
    run_id = stream_text(shared.apis[0], 80, 40)

    with second.stream(run_id, streamMode="debug") as frames:
        seen = [next(frames).json["sequence"] for _ in range(5)]
        with psycopg.connect(shared.url, autocommit=True, options=LOCAL) as admin:
            admin.execute(CUT)
        seen += [frame.json["sequence"] for frame in frames if not frame.comment]

    assert seen == list(range(len(shared.events(run_id))))


def test_a_reader_at_another_process_hears_of_an_annotation_once(
    shared: Cluster, first: Wire, second: Wire
) -> None:
    run_id = first.create(first.register(workflow([delay("a", 20), delay("b", 60_000)])))

    with second.stream(run_id) as frames:
        until(frames, "node.completed")
        stored = annotate(first, run_id)
        heard = until(frames, NOTICE)[-1]
        first.post(f"/v1/runs/{run_id}/cancel")
        rest = [frame.event for frame in frames]

    assert heard.json == stored
    assert NOTICE not in rest


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

    eventually(lambda: codes() == [401, 401], 5)


def test_a_new_version_is_what_every_process_starts(first: Wire, second: Wire) -> None:
    name = fresh()
    first.register(workflow([delay("a", 1)], id=name, version="1"))
    second.run(name)

    first.register(workflow([delay("a", 1)], id=name, version="2"))

    eventually(lambda: second.run(name)["workflowVersion"] == "2", 5)


def test_a_webhook_registered_at_one_process_hears_of_runs_at_another(
    first: Wire, second: Wire
) -> None:
    with receiving() as receiver:
        body = {"url": receiver.url, "events": ["run.completed"]}
        assert first.post("/v1/webhooks", body).status_code == 201

        def is_told() -> bool:
            second.run("conformance-noop")
            return bool(receiver.requests)

        eventually(is_told)


def test_one_active_run_at_a_time_is_one_at_all_processes_together(
    first: Wire, second: Wire, shared: Cluster
) -> None:
    name = first.register(workflow([delay("a", 1500)]))
    path = "/v1/runs"
    body = {"workflowId": name}
    headers = {"X-Dedup": "enforce"}

    with ThreadPoolExecutor(2) as both:
        asked = [
            both.submit(wire.http.post, path, json=body, headers=headers)
            for wire in (first, second)
        ]
        codes = sorted(each.result().status_code for each in asked)

    assert codes == [201, 409]


def test_readiness_and_metrics_are_told_by_every_process(shared: Cluster) -> None:
    for member in shared.members:
        assert member.wire.get("/readyz").json()["status"] == "ready"
        text = member.wire.get("/metrics").text
        for name in (
            "wopr_queue_depth",
            "wopr_lease_age_seconds",
            "wopr_runs_rescued_total",
            "wopr_append_seconds_count",
        ):
            assert f"\n{name} " in text


def test_a_process_with_another_host_key_does_not_start(shared: Cluster) -> None:
    stranger = Member(
        shared.folder / "stranger", (), {"WOPR_DB": shared.url, "WOPR_HOST_KEY": "A" * 44}
    )

    with pytest.raises(AssertionError, match="another host key"):
        stranger.start()
    stranger.wait_for_exit()
