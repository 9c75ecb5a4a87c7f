"""A secret in a pushed line stays in the KAHN archive: the observed run's log never holds it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

import pytest

from tests.console.client import Person
from tests.wire.at_rest import audit_entries, tables, unmask_observed_runs
from tests.wire.client import Wire
from tests.wire.fleet import ASKS, GOES_ON, Story, push, pushed, transitions
from tests.wire.host import ACME, WOPR, ServedHost
from tests.wire.surfaces import CANARIES, SECRETS, leaks, surfaces
from wopr.protocol.documents import JsonObject

SECRET = " ".join(CANARIES.values())
# Where the producer's bytes are kept.
ARCHIVE = "fleet_chunks"


def leaking(story: Story) -> list[bytes]:
    """A run whose producer redacts nothing."""
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
    wire, story = connect(ACME, host), Story()
    lines = leaking(story)
    run_id = pushed(wire, *lines[:6])
    pushed(wire, *lines[6:])

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


def test_a_host_that_was_restarted_goes_on_from_a_redacted_log(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host, story, whole = new_host(), Story(agent_id="sk-" + "a1b2c3d4e5f6g7h8i9j0"), Story()
    lines = leaking(story)
    run_id = pushed(connect(at=host), *lines[:5])
    host.restart()
    wire = connect(at=host)

    pushed(wire, *lines[5:])

    assert transitions(wire, run_id) == lines
    assert not leaks(surfaces(wire, run_id), *SECRETS, story.agent_id)
    at_once = pushed(wire, *leaking(whole))
    assert wire.types(run_id) == wire.types(at_once)


def redacted(host: ServedHost, *options: str, tenant: str = "acme") -> JsonObject:
    """Run `wopr fleet redact` on the database of a host."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WOPR_")}
    place = {"WOPR_DATA_DIR": str(host.data_dir)}
    done = subprocess.run(
        [WOPR, "fleet", "redact", "--tenant", tenant, "--json", *options],
        env=kept | place | host.variables,
        capture_output=True,
        check=True,
    )
    document: JsonObject = json.loads(done.stdout)
    return document


def test_runs_that_were_built_without_masking_are_masked_by_a_command(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host, story, clean = new_host(), Story(), Story()
    wire = connect(ACME, host)
    lines = leaking(story)
    run_id, other = pushed(wire, *lines), pushed(wire, clean.start(), clean.end())
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


def test_a_run_that_people_annotated_is_masked_only_when_the_operator_says_so(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host, story = new_host(), Story()
    wire = connect(ACME, host)
    run_id = pushed(wire, *leaking(story))
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
def test_an_annotation_that_arises_from_an_audit_has_an_audit_entry(
    acme: Wire, host: ServedHost, result: str
) -> None:
    story = Story()
    run_id = pushed(acme, story.start(), story.check(agent_id=None, result=result))

    [kept] = acme.document(f"/v1/runs/{run_id}/annotations")["annotations"]

    entries = [e for e in audit_entries(host) if e["resource"] == run_id]
    [entry] = [e for e in entries if e["action"] == "run.annotate"]
    assert entry["tenant"] == "acme"
    assert entry["principal"] == f"kahn:{story.run_id}"
    assert entry["facts"]["annotationId"] == kept["annotationId"]
    assert entry["facts"]["signalKind"] == kept["signal"]["kind"]


def test_a_repeated_audit_has_one_entry(acme: Wire, host: ServedHost) -> None:
    story = Story()
    lines = [story.start(), story.check(agent_id=None)]
    run_id = pushed(acme, *lines)

    push(acme, *lines)

    assert len(acme.document(f"/v1/runs/{run_id}/annotations")["annotations"]) == 1
    entries = [e for e in audit_entries(host) if e["resource"] == run_id]
    assert [e["action"] for e in entries] == ["run.annotate"]


def test_a_run_id_that_holds_a_secret_is_refused_and_its_value_not_told(acme: Wire) -> None:
    story = Story()
    named = story.start(run_id=CANARIES["openai"])

    refused = push(acme, story.start(), named)

    assert refused.status_code == 400
    assert refused.json()["message"].startswith(
        "line 2: run_id: expected an id without credentials"
    )
    assert CANARIES["openai"] not in refused.text
    assert acme.get(f"/api/runs/{story.run_id}").status_code == 404
