"""The audit log over HTTP: the recorded operations, the readers, and the integrity."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator

import pytest
import rfc8785
from cryptography.hazmat.primitives.serialization import load_der_public_key

from tests.support.client import Wire
from tests.support.definitions import delay, node, workflow
from tests.support.host import ACME, GLOBEX, OPERATOR, REVIEWER, VIEWER, ServedHost
from tests.support.stored_files import audit_entries
from tests.wire.conftest import Connect
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.both_stores

APPROVAL = {"title": "May it?", "actions": ["accept", "reject"]}
URL = "https://hooks.example.com/"


@pytest.fixture
def own_host(new_host: Callable[..., ServedHost]) -> ServedHost:
    """Start a host with an empty log."""
    return new_host("--conformance")


@pytest.fixture(scope="module")
def host(module_host: Callable[..., ServedHost]) -> ServedHost:
    """Start the host that the other tests share; each reads only new entries."""
    return module_host("--conformance")


class Auditor(Wire):
    """A client that knows the end of the log at the start of the test."""

    since = -1


@pytest.fixture
def acme(host: ServedHost) -> Iterator[Auditor]:
    with Auditor(host.url, ACME) as wire:
        wire.since = max((row["sequence"] for row in audit_entries(host)), default=-1)
        yield wire


@pytest.fixture
def globex(host: ServedHost, acme: Auditor) -> Iterator[Auditor]:
    with Auditor(host.url, GLOBEX) as wire:
        wire.since = acme.since
        yield wire


def entries(wire: Wire) -> list[JsonObject]:
    """Return a tenant's new entries, oldest first."""
    items: list[JsonObject] = wire.document("/v1/audit", params={"limit": 200})["items"]
    since = wire.since if isinstance(wire, Auditor) else -1
    return [item for item in items[::-1] if item["sequence"] > since]


def told(wire: Wire) -> list[tuple[str, str, str]]:
    return [(each["action"], each["resource"], each["outcome"]) for each in entries(wire)]


def verdict(wire: Wire, start: int = 0, end: int = 10_000) -> JsonObject:
    return wire.document("/v1/audit/verify", params={"fromSeq": start, "toSeq": end})


def test_operations_on_runs_are_audited_with_their_actor(acme: Auditor, connect: Connect) -> None:
    operator = connect(OPERATOR)
    definition = workflow([delay("wait", 60_000)])
    run_id = acme.create(acme.register(definition))
    operator.post(f"/v1/runs/{run_id}:pause", {"drainPolicy": "immediate"})
    operator.post(f"/v1/runs/{run_id}:resume")
    operator.post(f"/v1/runs/{run_id}:pause", {"drainPolicy": "drain-current-node"})
    fork = operator.post(f"/v1/runs/{run_id}:fork", {"mode": "branch", "fromSeq": 1}).json()
    operator.post(f"/v1/runs/{run_id}/cancel", {"reason": "enough"})
    operator.post("/v1/runs:bulk-cancel", {"runIds": [fork["runId"]]})

    found = entries(acme)

    assert [(each["action"], each["resource"]) for each in found] == [
        ("run.pause", run_id),
        ("run.resume", run_id),
        ("run.pause", run_id),
        ("run.fork", fork["runId"]),
        ("run.cancel", run_id),
        ("run.cancel", fork["runId"]),
    ]
    assert len({each["principal"] for each in found}) == 1
    assert found[0]["principal"] != acme.snapshot(run_id)["owner"]["principal"]
    assert found[3]["facts"] == {"sourceRunId": run_id, "mode": "branch", "fromSeq": 1}


def test_operations_refused_by_the_state_of_a_run_are_not_audited(acme: Auditor) -> None:
    run_id = acme.run("conformance-noop")["runId"]

    assert acme.post(f"/v1/runs/{run_id}:pause").status_code == 409
    assert acme.post(f"/v1/runs/{run_id}/cancel").status_code == 200

    assert entries(acme) == []


def test_an_answer_is_audited_without_its_value(acme: Auditor) -> None:
    definition = workflow([node("gate", "core.approvalGate", config=APPROVAL)])
    run_id = acme.create(acme.register(definition))
    acme.events_until(run_id, "approval.requested")
    value = {"action": "accept", "comment": "a private word"}
    acme.post(f"/v1/runs/{run_id}/interrupts/gate", {"resumeValue": value})

    [entry] = entries(acme)

    assert (entry["action"], entry["resource"]) == ("interrupt.resolve", run_id)
    assert entry["facts"] == {"nodeId": "gate", "kind": "approval", "role": "admin"}
    assert "private word" not in json.dumps(entry)


def test_an_answer_by_token_is_audited_under_its_wait(acme: Auditor, connect: Connect) -> None:
    definition = workflow([node("gate", "core.approvalGate", config=APPROVAL)])
    run_id = acme.create(acme.register(definition))
    acme.events_until(run_id, "approval.requested")
    interrupt = acme.snapshot(run_id)["interrupt"]
    body = {"resumeValue": {"action": "accept"}}
    connect(None).post(f"/v1/interrupts/{interrupt['interruptToken']}", body)

    [entry] = entries(acme)

    assert entry["principal"] == f"token:{interrupt['interruptId']}"
    assert interrupt["interruptToken"] not in json.dumps(entry)


def test_changes_of_webhooks_and_exports_of_runs_are_audited(acme: Auditor) -> None:
    made = acme.post("/v1/webhooks", {"url": URL, "events": ["*"]}).json()
    path = f"/v1/webhooks/{made['webhookId']}"
    secret = acme.post(f"{path}:rotate").json()["secret"]
    acme.post(f"{path}/dead-letters:redeliver")
    acme.request("DELETE", path)
    run_id = acme.run("conformance-noop")["runId"]
    acme.get(f"/v1/runs/{run_id}/debug-bundle")

    assert told(acme) == [
        ("webhook.create", made["webhookId"], "allowed"),
        ("webhook.rotate", made["webhookId"], "allowed"),
        ("webhook.redeliver", made["webhookId"], "allowed"),
        ("webhook.delete", made["webhookId"], "allowed"),
        ("run.export", run_id, "allowed"),
    ]
    assert secret not in json.dumps(entries(acme))
    assert made["secret"] not in json.dumps(entries(acme))


def test_forbidden_operations_are_audited(acme: Auditor, connect: Connect) -> None:
    viewer = connect(VIEWER)
    run_id = acme.run("conformance-noop")["runId"]
    viewer.post(f"/v1/runs/{run_id}/cancel")
    viewer.post("/v1/webhooks", {"url": URL, "events": ["*"]})
    acme.post("/v1/runs", {"workflowId": "conformance-noop", "tenantId": "globex"})

    found = entries(acme)

    assert [(each["action"], each["resource"], each["outcome"]) for each in found] == [
        ("cancelRun", run_id, "denied"),
        ("registerWebhook", "/v1/webhooks", "denied"),
        ("createRun", "/v1/runs", "denied"),
    ]
    assert found[0]["facts"] == {"code": "forbidden", "scopeRequired": "runs:cancel"}


def test_repeated_refusals_of_one_caller_do_not_fill_the_log(
    own_host: ServedHost, connect: Connect
) -> None:
    acme, viewer = connect(ACME, own_host), connect(VIEWER, own_host)

    for _ in range(60):
        viewer.post("/v1/webhooks", {"url": URL, "events": ["*"]})

    assert 20 <= len(entries(acme)) <= 40


def test_failed_authentication_is_audited_without_the_presented_key(
    own_host: ServedHost, connect: Connect
) -> None:
    connect("wopr_live_somebody_elses_key", own_host).get("/v1/runs")
    connect(None, own_host).get("/v1/runs")

    rows = audit_entries(own_host)

    assert [(row["action"], row["tenant"], row["outcome"]) for row in rows] == [
        ("listRuns", "", "denied"),
        ("listRuns", "", "denied"),
    ]
    assert "somebody" not in json.dumps(rows)


def test_keys_created_rotated_and_revoked_on_the_command_line_are_audited(
    host: ServedHost, acme: Auditor
) -> None:
    made = json.loads(host.command("keys", "create", "--tenant", "acme", "--json"))
    rotated = json.loads(host.command("keys", "rotate", made["keyId"], "--json"))
    host.command("keys", "revoke", rotated["keyId"])

    found = entries(acme)

    assert [(each["action"], each["resource"]) for each in found] == [
        ("key.create", made["keyId"]),
        ("key.rotate", made["keyId"]),
        ("key.revoke", rotated["keyId"]),
    ]
    assert all(each["principal"].startswith("cli") for each in found)
    assert made["key"] not in json.dumps(found)


def test_an_entry_names_the_trace_of_its_request(acme: Auditor) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}

    acme.post("/v1/webhooks", {"url": URL, "events": ["*"]}, headers=headers)
    acme.post("/v1/webhooks", {"url": URL, "events": ["*"]}, headers={"traceparent": "junk"})

    first, second = entries(acme)
    assert first["correlationId"] == trace
    assert "correlationId" not in second


def test_a_secret_in_an_entry_is_masked(acme: Auditor) -> None:
    path = "/v1/runs/sk-proj-abcdefghijklmnopqrstuvwxyz0123456789/cancel"
    acme.request("POST", path)
    viewer = acme.http.post(path, headers={"Authorization": f"Bearer {VIEWER}"})

    assert viewer.status_code == 403
    assert "abcdefghijklmnop" not in json.dumps(entries(acme))


def test_a_tenant_reads_its_own_entries_only(acme: Auditor, globex: Auditor) -> None:
    acme.post("/v1/webhooks", {"url": URL, "events": ["*"]})
    globex.post("/v1/webhooks", {"url": URL, "events": ["*"]})

    for wire, name in ((acme, "acme"), (globex, "globex")):
        assert [each["tenant"] for each in entries(wire)] == [name]


def test_entries_are_listed_newest_first_in_pages(acme: Auditor) -> None:
    for _ in range(5):
        acme.post("/v1/webhooks", {"url": URL, "events": ["*"]})

    pages = [acme.document("/v1/audit", params={"limit": 2})]
    while "nextCursor" in pages[-1]:
        pages.append(
            acme.document("/v1/audit", params={"limit": 2, "cursor": pages[-1]["nextCursor"]})
        )

    sequences = [item["sequence"] for page in pages for item in page["items"]]
    last = acme.since + 5
    assert sequences[:5] == list(range(last, last - 5, -1))
    assert sequences == sorted(set(sequences), reverse=True)


@pytest.mark.parametrize("path", ["/v1/audit", "/v1/audit/verify?fromSeq=0&toSeq=1"])
@pytest.mark.parametrize("key", [VIEWER, REVIEWER])
def test_reading_the_log_needs_its_own_scope(connect: Connect, path: str, key: str) -> None:
    response = connect(key).get(path)

    assert response.status_code == 403
    assert response.json()["details"]["scopeRequired"] == "audit:read"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "fromSeq"),
        ("fromSeq=0", "toSeq"),
        ("toSeq=0", "fromSeq"),
        ("fromSeq=2&toSeq=1", "toSeq"),
        ("fromSeq=-1&toSeq=1", "fromSeq"),
        ("fromSeq=x&toSeq=1", "fromSeq"),
        ("fromSeq=0&toSeq=1.5", "toSeq"),
    ],
)
def test_verifying_requires_a_range(acme: Auditor, query: str, field: str) -> None:
    response = acme.get(f"/v1/audit/verify?{query}")

    assert (response.status_code, response.json()["error"]) == (400, "validation_error")
    assert response.json()["details"]["field"] == field


def test_a_verification_result_has_the_published_form(acme: Auditor) -> None:
    found = verdict(acme, 0, 5)

    acme.recorder.check("audit-verify-result.schema.json", found)
    assert found == {
        "fromSeq": 0,
        "toSeq": 5,
        "chainValid": True,
        "checkpointsValid": True,
        "checkpoints": [],
        "anomalies": [],
    }


def test_anyone_can_verify_the_chain_and_the_signed_root_with_published_data(
    own_host: ServedHost, connect: Connect
) -> None:
    for _ in range(7):
        connect(ACME, own_host).post("/v1/webhooks", {"url": URL, "events": ["*"]})
    own_host.restart()
    acme = connect(ACME, own_host)

    found = verdict(acme)
    log = entries(acme)
    integrity = acme.document("/.well-known/openwop")["auth"]["auditLogIntegrity"]

    acme.recorder.check("audit-verify-result.schema.json", found)
    [checkpoint] = found["checkpoints"]
    assert checkpoint["atSequence"] == 6
    forms = [rfc8785.dumps(entry) for entry in log]
    previous = [None, *(hashlib.sha256(form).hexdigest() for form in forms)]
    assert [entry["prevHash"] for entry in log] == previous[:-1]
    root = bytes.fromhex(checkpoint["merkleRoot"])
    assert root == _root(forms)
    public_key = load_der_public_key(base64.b64decode(integrity["checkpointPublicKey"]))
    public_key.verify(base64.b64decode(checkpoint["signature"]), root)  # type: ignore[union-attr,call-arg]  # an Ed25519 key
    assert integrity["checkpointSignatureAlgorithm"] == "ed25519"
    assert (integrity["checkpointIntervalEntries"], integrity["checkpointIntervalSeconds"]) == (
        1000,
        300,
    )
    profiles = acme.document("/.well-known/openwop")["auth"]["profiles"]
    assert "openwop-audit-log-integrity" in profiles


def _root(leaves: list[bytes]) -> bytes:
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\x01" + _root(leaves[:split]) + _root(leaves[split:])).digest()


@pytest.mark.sqlite("several processes derive the key from the one that they share")
def test_the_signing_key_is_readable_by_its_owner_only_and_survives_a_restart(
    own_host: ServedHost, connect: Connect
) -> None:
    file = own_host.data_dir / "audit.key"
    before = connect(ACME, own_host).document("/.well-known/openwop")["auth"]["auditLogIntegrity"]

    own_host.restart()

    assert file.stat().st_mode & 0o777 == 0o600
    after = connect(ACME, own_host).document("/.well-known/openwop")["auth"]["auditLogIntegrity"]
    assert after == before


@pytest.mark.sqlite("several processes derive the key from the one that they share")
def test_old_checkpoints_stay_valid_after_a_key_change(
    own_host: ServedHost, connect: Connect
) -> None:
    connect(ACME, own_host).post("/v1/webhooks", {"url": URL, "events": ["*"]})
    own_host.stop()
    (own_host.data_dir / "audit.key").rename(own_host.data_dir / "audit.key.old")
    own_host.start()
    connect(GLOBEX, own_host).post("/v1/webhooks", {"url": URL, "events": ["*"]})
    own_host.restart()

    found = verdict(connect(ACME, own_host))
    report = json.loads(own_host.command("audit", "verify", "--json"))

    assert found["chainValid"]
    assert len(found["checkpoints"]) == 2
    assert len(report["publicKeys"]) == 2
