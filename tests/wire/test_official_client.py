from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest
from openwop_client.client import OpenwopClient  # type: ignore[import-untyped]  # ships no types
from openwop_client.errors import WopError  # type: ignore[import-untyped]  # ships no types
from openwop_client.types import (  # type: ignore[import-untyped]  # ships no types
    BulkCancelRunsRequest,
    CancelRunRequest,
    CreateRunRequest,
    ForkRunRequest,
    PauseRunRequest,
    RegisterWebhookRequest,
)

from tests.support.definitions import fresh
from tests.support.host import ACME, ServedHost
from tests.wire.timing import in_time

pytestmark = pytest.mark.both_stores

SPOKEN = ["Hello", " ", "world", "!"]
MOCK = {"mockProvider": {"id": "stream-text", "config": {"tokens": SPOKEN}}}
MODES = [
    ("updates", ["run.started", "node.completed", "run.completed"]),
    ("debug", ["run.started", "node.started", "node.completed", "run.completed"]),
    (("updates", "debug"), ["run.started", "node.started", "node.completed", "run.completed"]),
    (("updates", "messages"), ["run.started", "node.completed", "run.completed"]),
]


@pytest.fixture
def client(host: ServedHost) -> OpenwopClient:
    return OpenwopClient(host.url, ACME)


def _create(client: OpenwopClient, workflow_id: str = "conformance-noop", **inputs: object) -> str:
    created = client.runs_create(CreateRunRequest(workflowId=workflow_id, inputs=inputs))
    return str(created.runId)


def _streamed(
    client: OpenwopClient, run_id: str, mode: str | Sequence[str] | None, **options: int
) -> list[str]:
    events = client.runs_events(run_id, stream_mode=mode, **options)
    return [event.type for event in events]


def test_the_client_reads_discovery(client: OpenwopClient) -> None:
    found = client.discovery_capabilities()

    assert found.protocolVersion == "1.0"
    assert found.limits.envelopesPerTurn == 5


def test_the_client_reads_the_openapi_document(client: OpenwopClient) -> None:
    assert client.discovery_openapi()["openapi"].startswith("3.1")


def test_the_client_reads_a_workflow(client: OpenwopClient) -> None:
    found = client.workflows_get("conformance-configurable-schema")

    assert found["configurableSchema"]["additionalProperties"] is False


def test_the_client_creates_a_run_and_reads_its_snapshot(client: OpenwopClient) -> None:
    request = CreateRunRequest(
        workflowId="conformance-identity", inputs={"payload": {"a": [1]}}, tags=["from-client"]
    )

    created = client.runs_create(request)
    list(client.runs_events(created.runId))
    found = client.runs_get(created.runId)

    assert created.eventsUrl == f"/v1/runs/{created.runId}/events"
    assert (found.status, found.variables) == ("completed", {"payload": {"a": [1]}})
    assert found.tags == ["from-client"]


@pytest.mark.parametrize(("mode", "expected"), MODES)
def test_the_client_streams_a_run_in_a_mode(
    client: OpenwopClient, mode: str | Sequence[str], expected: list[str]
) -> None:
    run_id = _create(client)

    assert _streamed(client, run_id, mode) == expected


def test_the_client_streams_updates_by_default(client: OpenwopClient) -> None:
    run_id = _create(client)

    assert _streamed(client, run_id, None) == ["run.started", "node.completed", "run.completed"]


def test_the_client_streams_snapshots(client: OpenwopClient) -> None:
    run_id = _create(client)

    frames = list(client.runs_events(run_id, stream_mode="values"))

    assert {frame.type for frame in frames} == {"state.snapshot"}
    assert frames[-1].payload["status"] == "completed"


def test_the_client_streams_a_buffered_run(client: OpenwopClient) -> None:
    run_id = _create(client)

    assert _streamed(client, run_id, "debug", buffer_ms=200) == MODES[1][1]


def test_the_client_reads_a_stream_of_messages(client: OpenwopClient) -> None:
    created = client.runs_create(
        CreateRunRequest(workflowId="conformance-stream-text", configurable=MOCK)
    )

    # A chunk is no event document, so this client skips it; the stream ends all the same.
    assert _streamed(client, created.runId, "messages") == []


def test_the_client_resumes_a_stream_after_an_event(client: OpenwopClient) -> None:
    run_id = _create(client)

    resumed = client.runs_events(run_id, stream_mode="debug", last_event_id="1")

    assert [event.sequence for event in resumed] == [2, 3]


def test_the_client_polls_a_run_to_its_end(client: OpenwopClient) -> None:
    run_id = _create(client, "conformance-delay", delayMs=50)
    list(client.runs_events(run_id))

    page = client.runs_poll_events(run_id, timeout_seconds=1)
    rest = client.runs_poll_events(run_id, last_sequence=1, timeout_seconds=1)

    assert [event.sequence for event in page.events] == [0, 1, 2, 3]
    assert [event.sequence for event in rest.events] == [2, 3]
    assert page.isComplete
    assert rest.isComplete


def test_the_client_cancels_a_run(client: OpenwopClient) -> None:
    run_id = _create(client, "conformance-cancellable")

    answer = client.runs_cancel(run_id, CancelRunRequest(reason="enough"))

    assert answer.status in ("cancelling", "cancelled")
    assert _streamed(client, run_id, "updates")[-1] == "run.cancelled"


def test_the_client_cancels_many_runs(client: OpenwopClient) -> None:
    running, done = _create(client, "conformance-cancellable"), _create(client)
    list(client.runs_events(done))

    answer = client.runs_bulk_cancel(BulkCancelRunsRequest(runIds=[running, done, "nowhere"]))

    assert [(item.runId, item.ok) for item in answer.results] == [
        (running, True),
        (done, False),
        ("nowhere", False),
    ]


def test_the_client_pauses_and_resumes_a_run(client: OpenwopClient) -> None:
    def paused_in_time(milliseconds: int) -> tuple[str, str] | None:
        run_id = _create(client, "conformance-delay", delayMs=milliseconds)
        # A late answer is refused.
        with suppress(WopError):
            answer = client.runs_pause(run_id, PauseRunRequest(drainPolicy="immediate"))
            return run_id, str(answer.status)
        return None

    run_id, paused = in_time(paused_in_time)
    status = client.runs_get(run_id).status
    resumed = client.runs_resume(run_id)

    assert (paused, status, resumed.status) == ("paused", "paused", "running")
    assert _streamed(client, run_id, "updates")[-1] == "run.completed"


def test_a_retry_of_the_client_with_the_same_key_returns_the_same_run(
    client: OpenwopClient,
) -> None:
    request = CreateRunRequest(workflowId="conformance-idempotent", inputs={"nonce": "n"})
    key = fresh("key")

    first = client.runs_create(request, idempotency_key=key)
    second = client.runs_create(request, idempotency_key=key)

    assert first == second


def test_the_client_reads_the_error_envelope(client: OpenwopClient) -> None:
    with pytest.raises(WopError) as caught:
        client.runs_get("nowhere")

    assert caught.value.status == 404
    assert caught.value.envelope is not None
    assert caught.value.envelope.error == "not_found"


def test_the_client_forks_compares_and_exports_runs(client: OpenwopClient) -> None:
    run_id = _create(client)

    fork = client.runs_fork(run_id, ForkRunRequest(fromSeq=0, mode="branch"))
    _streamed(client, fork.runId, "debug")
    diff = client.runs_diff(run_id, fork.runId)
    bundle = client.runs_debug_bundle(run_id, max_events=2)
    ancestry = client.runs_ancestry(run_id)

    assert (fork.sourceRunId, fork.mode) == (run_id, "branch")
    assert (diff.divergedAtSeq, diff.eventDiffs) == (None, [])
    assert (len(bundle.events), bundle.truncated, bundle.redactionMode) == (2, True, "mask")
    assert (ancestry.runId, ancestry.parent) == (run_id, None)


def test_the_client_registers_and_removes_webhooks(client: OpenwopClient) -> None:
    url = "https://hooks.example.com/in"

    made = client.webhooks_register(RegisterWebhookRequest(url=url, events=["run.completed"]))
    client.webhooks_unregister(made.subscriptionId, "acme")

    assert (made.url, made.eventTypes, len(made.secret)) == (url, ["run.completed"], 64)
    with pytest.raises(WopError) as unknown:
        client.webhooks_unregister(made.subscriptionId, "acme")
    assert unknown.value.status == 404


def test_the_client_verifies_the_audit_log(client: OpenwopClient) -> None:
    found = client.audit_verify(0, 1000)

    assert found.chainValid
    assert found.anomalies == []
