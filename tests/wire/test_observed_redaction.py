"""A secret in a pushed line stays in the KAHN archive: the observed run's log never contains it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from tests.support.client import Wire
from tests.support.console import Person
from tests.support.forked import run
from tests.support.host import ACME, ServedHost
from tests.support.kahn import ASKS, GOES_ON, KahnRun, push, push_run, transitions
from tests.support.stored_files import audit_entries, tables, unmask_observed_runs
from tests.support.surfaces import CANARIES, SECRETS, leaks, surfaces
from wopr.protocol.documents import JsonObject

SECRET = " ".join(CANARIES.values())
# The columns with the producer's bytes.
ARCHIVE = "fleet_chunks"


def leaking(story: KahnRun) -> list[bytes]:
    """Return a run whose producer redacts nothing."""
    return [
        story.start(task=f"use {SECRET}", model=CANARIES["openai"]),
        story.move(0, "thinking", "tool_call", reason=f"tool_call:{SECRET}", own={SECRET: SECRET}),
        story.call(tool_name=CANARIES["github"], input_summary=SECRET, output_summary=SECRET),
        story.call(ok=False, error=SECRET),
        story.move(1, *ASKS, reason=SECRET),
        story.move(2, *GOES_ON, reason=SECRET),
        story.move(3, "reflect", "thinking", reason=SECRET),
        story.check(evidence={"seen": SECRET}),
        story.check(agent_id=None, checkpoint_id="sk-" + "proj4bc9de2fg7hj1kl5mn8pq3"),
        story.move(4, "thinking", "failed", reason=SECRET),
        # Written with an escape: the decoded text is the secret.
        story.move(4, "failed", "failed", reason=CANARIES["openai"]).replace(b"sk-", b"sk\\u002d"),
        story.end(note=SECRET),
    ]


def test_a_secret_in_a_pushed_line_is_in_the_archive_and_nowhere_else(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host("--log-format", "json", "--log-level", "debug")
    wire, story = connect(ACME, host), KahnRun()
    lines = leaking(story)
    run_id = push_run(wire, *lines[:6])
    push_run(wire, *lines[6:])

    seen = surfaces(wire, run_id)
    for path in ("debug-bundle", "annotations", "ancestry"):
        seen += wire.get(f"/v1/runs/{run_id}/{path}").text
    for path in ("/v1/audit", "/api/agents/coder/agent-runs?window=all"):
        seen += wire.get(path).text
    with Person(host.url) as person:
        person.sign_in(ACME)
        pages = (f"/runs/{run_id}", f"/runs/{run_id}.md", f"/runs/{run_id}/bundle")
        for page in (*pages, f"/fleet/runs/{story.run_id}", "/fleet/agents/coder", "/fleet"):
            answer = person.get(page)
            assert answer.status_code == 200, (page, answer.text)
            seen += answer.text

    assert "[REDACTED]" in seen
    assert not leaks(seen, *SECRETS)
    assert not leaks(host.log(), *SECRETS)
    assert transitions(wire, run_id) == lines
    assert wire.get("/v1/export/transitions").content.split(b"\n")[:-1] == lines
    host.stop()
    held = tables(host)
    archive = held.pop(ARCHIVE)
    assert leaks(archive, *SECRETS) != []
    assert not leaks(b"\n".join(held.values()), *SECRETS)


def test_a_restarted_host_continues_from_a_redacted_log(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host, story, whole = new_host(), KahnRun(agent_id="sk-" + "a1b2c3d4e5f6g7h8i9j0"), KahnRun()
    lines = leaking(story)
    run_id = push_run(connect(at=host), *lines[:5])
    host.restart()
    wire = connect(at=host)

    push_run(wire, *lines[5:])

    assert transitions(wire, run_id) == lines
    assert not leaks(surfaces(wire, run_id), *SECRETS, story.agent_id)
    at_once = push_run(wire, *leaking(whole))
    assert wire.types(run_id) == wire.types(at_once)


def redacted(host: ServedHost, *options: str, tenant: str = "acme") -> JsonObject:
    """Run `wopr fleet redact` on the database of a host."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WOPR_")}
    place = {"WOPR_DATA_DIR": str(host.data_dir)}
    given = ("fleet", "redact", "--tenant", tenant, "--json", *options)
    done = run(given, kept | place | host.variables)
    assert done.returncode == 0, done.stderr
    document: JsonObject = json.loads(done.stdout)
    return document


def test_observed_runs_built_without_masking_are_masked_by_a_command(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host, story, clean = new_host(), KahnRun(), KahnRun()
    wire = connect(ACME, host)
    lines = leaking(story)
    run_id, other = push_run(wire, *lines), push_run(wire, clean.start(), clean.end())
    types, untouched = wire.types(run_id), wire.log(other)
    host.stop()
    unmask_observed_runs(host, CANARIES["github"])
    held = tables(host)
    assert leaks(held["events"], CANARIES["github"])

    elsewhere = redacted(host, tenant="globex")
    planned = redacted(host, "--dry-run")
    done = redacted(host)
    again = redacted(host)
    host.start()

    wire = connect(ACME, host)
    assert elsewhere["runs"] == again["runs"] == []
    assert [each["runId"] for each in done["runs"]] == [run_id]
    assert planned["runs"] == done["runs"]
    assert wire.types(run_id) == types
    assert wire.log(other) == untouched
    assert transitions(wire, run_id) == lines
    assert not leaks(surfaces(wire, run_id) + wire.get("/api/runs").text, *SECRETS)
    [entry] = [e for e in audit_entries(host) if e["action"] == "fleet.redact"]
    assert (entry["tenant"], entry["resource"]) == ("acme", run_id)
    host.stop()
    held = tables(host)
    held.pop(ARCHIVE)
    assert not leaks(b"\n".join(held.values()), *SECRETS)


def test_an_annotated_run_is_masked_only_when_the_operator_requests_it(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host, story = new_host(), KahnRun()
    wire = connect(ACME, host)
    run_id = push_run(wire, *leaking(story))
    wire.post(f"/v1/runs/{run_id}/annotations", {"signal": {"kind": "flag"}})
    host.stop()
    unmask_observed_runs(host, CANARIES["github"])

    left = redacted(host)
    kept = tables(host)["annotations"]
    rebuilt = redacted(host, "--with-feedback")

    assert [each["outcome"] for each in left["runs"]] == ["left"]
    assert b'"flag"' in kept
    assert [each["outcome"] for each in rebuilt["runs"]] == ["rebuilt"]
    host.start()
    assert not leaks(surfaces(connect(ACME, host), run_id), *SECRETS)


@pytest.mark.parametrize("result", ["pass", "fail"])
def test_an_annotation_from_an_audit_has_an_audit_entry(
    acme: Wire, host: ServedHost, result: str
) -> None:
    story = KahnRun()
    run_id = push_run(acme, story.start(), story.check(agent_id=None, result=result))

    [kept] = acme.document(f"/v1/runs/{run_id}/annotations")["annotations"]

    entries = [e for e in audit_entries(host) if e["resource"] == run_id]
    [entry] = [e for e in entries if e["action"] == "run.annotate"]
    assert entry["tenant"] == "acme"
    assert entry["principal"] == f"kahn:{story.run_id}"
    assert entry["facts"]["annotationId"] == kept["annotationId"]
    assert entry["facts"]["signalKind"] == kept["signal"]["kind"]


def test_a_repeated_audit_has_one_entry(acme: Wire, host: ServedHost) -> None:
    story = KahnRun()
    lines = [story.start(), story.check(agent_id=None)]
    run_id = push_run(acme, *lines)

    push(acme, *lines)

    assert len(acme.document(f"/v1/runs/{run_id}/annotations")["annotations"]) == 1
    entries = [e for e in audit_entries(host) if e["resource"] == run_id]
    assert [e["action"] for e in entries] == ["run.annotate"]


def test_a_run_id_that_contains_a_secret_is_refused_and_not_repeated(acme: Wire) -> None:
    story = KahnRun()
    named = story.start(run_id=CANARIES["openai"])

    refused = push(acme, story.start(), named)

    assert refused.status_code == 400
    assert refused.json()["message"].startswith(
        "line 2: run_id: this id looks like an API key or a token"
    )
    assert CANARIES["openai"] not in refused.text
    assert acme.get(f"/api/runs/{story.run_id}").status_code == 404
