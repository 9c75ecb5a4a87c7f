"""Audited reads: off unless enabled, and then with the reader and the resource."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.client import Wire
from tests.support.console import Person
from tests.support.definitions import fresh, from_variable, node, variable, workflow
from tests.support.forked import run
from tests.support.host import ACME, GLOBEX, VIEWER, ServedHost, environment
from tests.support.mcp_clients import connected, run_of
from tests.support.stored_files import audit_entries
from wopr.protocol.documents import JsonObject

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
GATE = workflow(
    [node("gate", "core.approvalGate", config={"title": "May it?", "actions": ["accept"]})]
)
NewHost = Callable[..., ServedHost]


class Reader(Wire):
    """A client of a host whose audit log the test reads from the database."""

    host: ServedHost

    def reads(self, since: int = 0) -> list[JsonObject]:
        """Return the entries about reads, oldest first."""
        return [each for each in audit_entries(self.host)[since:] if "principal" in each]


@pytest.fixture
def reader(new_host: NewHost) -> Iterator[Callable[..., Reader]]:
    opened: list[Reader] = []

    def start(level: str, key: str = ACME) -> Reader:
        if not opened:
            variables = {} if not level else {"WOPR_AUDIT_READS": level}
            host = new_host("--conformance", **variables)
        else:
            host = opened[0].host
        wire = Reader(host.url, key)
        wire.host = host
        opened.append(wire)
        return wire

    yield start
    for wire in opened:
        wire.http.close()


def told(entries: list[JsonObject]) -> list[tuple[str, str, str]]:
    return [(each["action"], each["resource"], each["outcome"]) for each in entries]


def test_reads_are_not_audited_unless_enabled(
    reader: Callable[..., Reader],
) -> None:
    acme = reader("")
    run_id = acme.run("conformance-noop")["runId"]
    since = len(audit_entries(acme.host))

    acme.get("/v1/export/runs")
    acme.get("/v1/audit")
    acme.get("/v1/webhooks")
    acme.get(f"/v1/runs/{run_id}/transitions")
    acme.get(f"/v1/runs/{run_id}/debug-bundle")

    # Entries from before the setting existed are still written.
    assert told(acme.reads(since)) == [("run.export", run_id, "allowed")]


def test_sensitive_reads_are_audited_with_reader_and_resource(
    reader: Callable[..., Reader],
) -> None:
    acme = reader("sensitive")
    run = acme.run("conformance-noop")
    run_id = run["runId"]
    since = len(audit_entries(acme.host))

    acme.get("/v1/export/runs", headers={"traceparent": TRACE})
    acme.get("/v1/audit")
    acme.get("/v1/audit/verify", params={"fromSeq": 0, "toSeq": 1})
    acme.get("/v1/webhooks")
    acme.get(f"/v1/runs/{run_id}/transitions")
    acme.get(f"/v1/runs/{run_id}/debug-bundle")
    acme.get("/v1/export/transitions")

    found = acme.reads(since)
    assert told(found) == [
        ("exportRuns", "/v1/export/runs", "allowed"),
        ("listAudit", "/v1/audit", "allowed"),
        ("verifyAudit", "/v1/audit/verify", "allowed"),
        ("listWebhooks", "/v1/webhooks", "allowed"),
        ("getTransitions", run_id, "allowed"),
        ("run.export", run_id, "allowed"),
        ("exportTransitions", "/v1/export/transitions", "allowed"),
    ]
    assert {each["tenant"] for each in found} == {"acme"}
    assert {each["principal"] for each in found} == {run["owner"]["principal"]}
    assert found[0]["correlationId"] == TRACE.split("-")[1]


def test_list_reads_are_audited_only_when_all_reads_are(reader: Callable[..., Reader]) -> None:
    acme = reader("sensitive")
    run_id = acme.run("conformance-noop")["runId"]
    since = len(audit_entries(acme.host))

    acme.get(f"/v1/runs/{run_id}")
    acme.log(run_id)
    acme.get("/v1/runs")

    assert acme.reads(since) == []


def test_all_reads_are_audited_when_enabled(
    reader: Callable[..., Reader],
) -> None:
    acme = reader("all")
    run_id = acme.create("conformance-noop")
    acme.finished(run_id)
    since = len(audit_entries(acme.host))

    acme.get(f"/v1/runs/{run_id}")
    acme.log(run_id)
    acme.frames(run_id)
    acme.poll(run_id, lastSequence=-1, timeout=0)
    acme.get("/v1/runs")
    acme.get("/healthz")
    acme.get("/.well-known/openwop")

    assert told(acme.reads(since)) == [
        ("getRun", run_id, "allowed"),
        ("getEvents", run_id, "allowed"),
        ("getEvents", run_id, "allowed"),
        ("pollEvents", run_id, "allowed"),
        ("listRuns", "/v1/runs", "allowed"),
    ]


def test_a_failed_read_is_audited_with_its_code(reader: Callable[..., Reader]) -> None:
    acme = reader("sensitive")
    run_id = acme.run("conformance-noop")["runId"]
    globex, viewer = reader("", GLOBEX), reader("", VIEWER)
    since = len(audit_entries(acme.host))

    assert acme.get(f"/v1/runs/{run_id}/artifacts/none").status_code == 404
    assert globex.get(f"/v1/runs/{run_id}/artifacts/none").status_code == 404
    assert viewer.get("/v1/audit").status_code == 403

    found = acme.reads(since)
    assert told(found) == [
        ("getArtifact", run_id, "failed"),
        ("getArtifact", run_id, "failed"),
        ("listAudit", "/v1/audit", "denied"),
    ]
    assert found[0]["facts"] == {"code": "not_found", "artifactId": "none"}
    # Another tenant's attempt is in its own log: the owner's log does not contain it.
    assert [each["tenant"] for each in found] == ["acme", "globex", "acme"]


def test_the_entry_of_a_read_contains_neither_content_nor_a_credential(
    reader: Callable[..., Reader],
) -> None:
    acme = reader("all")
    run_id = acme.run("conformance-noop")["runId"]
    secret = "sk-ant-REDACTED"
    since = len(audit_entries(acme.host))

    acme.get(f"/v1/runs/{run_id}/artifacts/{secret}")
    acme.get("/v1/runs", params={"tag": secret})

    found = acme.reads(since)
    assert [each["action"] for each in found] == ["getArtifact", "listRuns"]
    assert secret not in json.dumps(found)


def test_a_read_by_token_is_audited_without_the_token(
    reader: Callable[..., Reader],
) -> None:
    acme = reader("sensitive")
    run_id = acme.create(acme.register(GATE))
    acme.events_until(run_id, "approval.requested")
    interrupt = acme.snapshot(run_id)["interrupt"]
    since = len(audit_entries(acme.host))

    assert acme.get(f"/v1/interrupts/{interrupt['interruptToken']}").status_code == 200

    [entry] = acme.reads(since)
    assert (entry["tenant"], entry["action"]) == ("acme", "inspectInterrupt")
    assert entry["principal"] == f"token:{interrupt['interruptId']}"
    assert interrupt["interruptToken"] not in json.dumps(entry)


def test_pages_of_the_console_are_audited_as_reads(reader: Callable[..., Reader]) -> None:
    acme = reader("sensitive")
    run_id = acme.run("conformance-noop")["runId"]
    with Person(acme.host.url) as person:
        person.sign_in(ACME)
        since = len(audit_entries(acme.host))

        assert person.get(f"/runs/{run_id}").status_code == 200
        assert person.get(f"/runs/{run_id}.md").status_code == 200
        assert person.get(f"/runs/{run_id}/bundle").status_code == 200
        assert person.get("/settings").status_code == 200

    assert told(acme.reads(since)) == [
        ("console.markdown", run_id, "allowed"),
        ("run.export", run_id, "allowed"),
        ("console.settings", "/settings", "allowed"),
    ]


@pytest.mark.anyio
async def test_reads_of_an_mcp_client_are_audited(reader: Callable[..., Reader]) -> None:
    acme = reader("all")
    definition = workflow(
        [node("say", "core.identity", inputs={"name": from_variable("name")})],
        id=fresh("greet"),
        variables=[variable("name", required=True)],
    )
    name = acme.register(definition)
    since = len(audit_entries(acme.host))

    async with connected(acme.host.url) as client:
        result = await client.call_tool(name, {"name": "Ada"})

    found = [each for each in acme.reads(since) if each["resource"] == run_of(result)]
    assert found
    assert {each["facts"].get("transport") for each in found} == {"mcp"}


@pytest.mark.parametrize("command", ["keys", "secrets"])
def test_listing_credentials_on_the_command_line_is_audited(
    reader: Callable[..., Reader], command: str
) -> None:
    host = reader("sensitive").host
    since = len(audit_entries(host))

    done = run((command, "list", "--tenant", "acme"), environment(host.data_dir, host.variables))
    assert done.returncode == 0, done.stderr

    [entry] = audit_entries(host)[since:]
    action = {"keys": "key.list", "secrets": "secret.list"}[command]
    assert (entry["tenant"], entry["action"]) == ("acme", action)
    assert entry["principal"].startswith("cli")


def test_a_response_is_sent_only_after_its_entry_is_written(
    reader: Callable[..., Reader],
) -> None:
    acme = reader("all")
    since = len(audit_entries(acme.host))
    paths = [f"/v1/runs/unknown-{number}" for number in range(100)]

    with ThreadPoolExecutor(20) as readers:
        answers = list(readers.map(acme.get, paths))

    assert {answer.status_code for answer in answers} == {404}
    found = acme.reads(since)
    assert {each["resource"] for each in found} == {path.rpartition("/")[2] for path in paths}
    assert acme.document("/v1/audit/verify", params={"fromSeq": 0, "toSeq": 10_000})["chainValid"]


def test_an_unknown_level_is_refused_at_start(tmp_path_factory: pytest.TempPathFactory) -> None:
    variables = environment(tmp_path_factory.mktemp("refused"), {"WOPR_AUDIT_READS": "some"})
    done = run(("serve", "--port", "0"), variables)

    assert done.returncode != 0
    assert "audit_reads must be off, sensitive or all, not some" in done.stderr
