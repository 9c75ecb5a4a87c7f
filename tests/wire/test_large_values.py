"""Values above the inline limit are stored once as artifacts, and events refer to them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.support.client import Wire
from tests.support.console import Person
from tests.support.definitions import edge, from_variable, node, variable, workflow
from tests.support.forked import run
from tests.support.forks import diff, forked, log_content
from tests.support.host import ACME, GLOBEX, ServedHost, environment
from tests.support.interrupts import answer, gate, until_waiting
from tests.support.stored_files import stored
from tests.wire.conftest import Connect
from tests.wire.test_encryption import a_key
from wopr.protocol.documents import Json, JsonObject, is_list, is_object

pytestmark = pytest.mark.both_stores
shown_alike = pytest.mark.sqlite("what is shown of a value does not depend on the store")

NewHost = Callable[..., ServedHost]

LIMIT = "1000"
TEXT = "large " * 1000


def expression(text: str) -> JsonObject:
    return {"type": "expression", "expression": text}


def passing(*between: JsonObject) -> JsonObject:
    """Return a workflow that passes its input through a variable, a channel and conditions."""
    nodes = [
        node(
            "keep",
            "core.setVariable",
            config={"name": "kept"},
            inputs={"value": expression("inputs.text")},
        ),
        node(
            "write",
            "core.channelWrite",
            config={"channelName": "notes", "reducer": "append"},
            inputs={"value": from_variable("kept")},
        ),
        *between,
        node(
            "copy",
            "core.identity",
            inputs={"copied": from_variable("kept"), "size": expression("size(variables.kept)")},
        ),
        node(
            "last",
            "core.identity",
            inputs={"said": expression("nodes.copy.copied")},
            outputRole="primary",
        ),
    ]
    ids = [each["id"] for each in nodes]
    edges = [edge(a, b) for a, b in pairwise(ids)]
    edges[-1]["condition"] = {"type": "expression", "expression": "size(variables.kept) == 6000"}
    return workflow(nodes, edges=edges, variables=[variable("text"), variable("kept")])


@pytest.fixture(scope="module")
def limited(module_host: NewHost) -> ServedHost:
    """Start a host with the limit, for tests that only start runs."""
    return module_host(WOPR_INLINE_VALUE_BYTES=LIMIT)


def referred(wire: Wire, run_id: str, value: JsonObject) -> Json:
    """Return the checked value of a reference."""
    [reference] = value.values()
    assert list(value) == ["$artifact"]
    found = wire.get(f"/v1/runs/{run_id}/artifacts/{reference['artifactId']}")
    assert found.status_code == 200, found.text
    assert hashlib.sha256(found.content).hexdigest() == reference["sha256"]
    assert len(found.content) == reference["bytes"]
    assert found.headers["content-type"].startswith(reference["contentType"])
    return found.json()


def whole(wire: Wire, run_id: str, value: Json) -> Json:
    """Return a value with every reference replaced, like a client does."""
    if is_list(value):
        return [whole(wire, run_id, item) for item in value]
    if is_object(value):
        if list(value) == ["$artifact"]:
            return referred(wire, run_id, value)
        return {name: whole(wire, run_id, member) for name, member in value.items()}
    return value


def test_a_value_above_the_limit_is_one_artifact_and_later_nodes_read_it_in_full(
    connect: Connect, new_host: NewHost
) -> None:
    host = new_host(WOPR_INLINE_VALUE_BYTES=LIMIT)
    wire = connect(at=host)

    found = wire.run(wire.register(passing()), {"text": TEXT})

    run_id = found["runId"]
    assert found["status"] == "completed", found
    assert whole(wire, run_id, found["outputs"]) == {"said": TEXT}
    reference = found["outputs"]["said"]
    assert found["inputs"]["text"] == reference
    assert found["variables"]["kept"] == reference
    assert found["variables"]["notes"] == [reference]
    assert found["nodeStates"]["copy"]["outputs"] == {"copied": reference, "size": 6000}
    assert (
        TEXT
        not in wire.get(f"/v1/runs/{run_id}/events", headers={"Accept": "application/json"}).text
    )
    assert reference["$artifact"]["bytes"] == 6002
    usage = {each["quota"]: each["current"] for each in wire.document("/v1/usage")["quotas"]}
    assert usage["artifactBytes"] == 6002

    exported = wire.http.get("/v1/export/runs")
    assert exported.status_code == 200, exported.text
    assert json.loads(exported.text)["run"]["outputs"] == {"said": TEXT}
    bundle = wire.document(f"/v1/runs/{run_id}/debug-bundle")
    assert bundle["run"]["outputs"]["said"] == reference

    other = connect(GLOBEX, host)
    name = reference["$artifact"]["artifactId"]
    assert other.get(f"/v1/runs/{run_id}/artifacts/{name}").status_code == 404


def test_an_export_keeps_the_references_of_a_run_whose_values_are_too_large_together(
    connect: Connect, new_host: NewHost
) -> None:
    wire = connect(at=new_host(WOPR_INLINE_VALUE_BYTES=LIMIT))
    nodes = [node(f"n{n}", "core.identity", inputs={"v": from_variable("v")}) for n in range(5)]
    definition = workflow(nodes, variables=[variable("v")])

    found = wire.run(wire.register(definition), {"v": "x" * 1_000_000})

    exported = wire.http.get("/v1/export/runs")
    run = json.loads(exported.text)["run"]
    assert run["inputs"] == found["inputs"]
    assert referred(wire, found["runId"], run["inputs"]["v"]) == "x" * 1_000_000


@pytest.mark.parametrize("way", ["stopped", "killed"])
def test_a_run_with_stored_large_values_continues_after_a_restart(
    connect: Connect, new_host: NewHost, way: str
) -> None:
    host = new_host(WOPR_INLINE_VALUE_BYTES=LIMIT)
    wire = connect(at=host)
    run_id = wire.create(wire.register(passing(gate("gate"))), {"text": TEXT})
    before = until_waiting(wire, run_id)

    if way == "killed":
        host.kill()
        host.start()
    else:
        host.restart()

    wire = connect(at=host)
    assert wire.snapshot(run_id)["variables"] == before["variables"]
    comment = {"action": "accept", "comment": "c" * 2000}
    assert answer(wire, run_id, "gate", comment).status_code == 200
    found = wire.finished(run_id)
    assert found["status"] == "completed", found
    assert whole(wire, run_id, found["outputs"]) == {"said": TEXT}


def test_forks_have_their_own_artifacts_of_the_source_s_values(
    connect: Connect, limited: ServedHost
) -> None:
    wire = connect(at=limited)
    run_id = wire.run(wire.register(passing()), {"text": TEXT})["runId"]
    [middle] = [
        event["sequence"]
        for event in wire.log(run_id)
        if event["type"] == "node.completed" and event["nodeId"] == "write"
    ]

    replay = forked(wire, run_id)
    branch = forked(wire, run_id, "branch", fromSeq=middle + 1)

    assert log_content(wire, replay) == log_content(wire, run_id)
    for fork in (replay, branch):
        assert diff(wire, run_id, fork)["eventDiffs"] == []
        found = wire.snapshot(fork)
        assert found["status"] == "completed"
        assert whole(wire, fork, found["outputs"]) == {"said": TEXT}


def test_user_data_that_looks_like_a_reference_is_escaped_and_never_resolved(
    connect: Connect, new_host: NewHost
) -> None:
    host = new_host(WOPR_INLINE_VALUE_BYTES=LIMIT)
    wire = connect(at=host)
    victim = wire.run(wire.register(passing()), {"text": TEXT})
    forged = victim["outputs"]["said"]
    nodes = [
        gate("gate"),
        node(
            "copy",
            "core.identity",
            inputs={"x": expression("inputs.x"), "y": expression("inputs.y")},
        ),
    ]
    flow = wire.register(
        workflow(nodes, variables=[variable("x", "object"), variable("y", "object")])
    )
    run_id = wire.create(flow, {"x": forged, "y": {"$$artifact": [forged]}})
    until_waiting(wire, run_id)

    host.restart()
    wire = connect(at=host)
    assert answer(wire, run_id, "gate", {"action": "accept"}).status_code == 200
    found = wire.finished(run_id)

    escaped = {"$$artifact": forged["$artifact"]}
    assert found["status"] == "completed", found
    assert found["variables"] == {"x": escaped, "y": {"$$$artifact": [escaped]}}
    assert found["outputs"] == {"copy": found["variables"]}


def test_a_secret_is_redacted_before_its_value_is_stored(
    connect: Connect, limited: ServedHost
) -> None:
    secret = "sk-ant-" + "a1B2" * 12
    wire = connect(at=limited)

    text = f"{TEXT} {secret} "[-6000:]
    found = wire.run(wire.register(passing()), {"text": text})

    kept = whole(wire, found["runId"], found["inputs"]["text"])
    assert "a1B2a1B2" not in kept
    assert "large large" in kept


def test_a_sensitive_value_is_masked_and_not_stored_as_an_artifact(
    connect: Connect, new_host: NewHost
) -> None:
    wire = connect(at=new_host(WOPR_INLINE_VALUE_BYTES=LIMIT))
    nodes = [node("size", "core.identity", inputs={"n": expression("size(variables.hidden)")})]
    flow = workflow(nodes, variables=[variable("hidden", sensitive=True)])

    found = wire.run(wire.register(flow), {"hidden": TEXT})

    assert found["outputs"] == {"size": {"n": 6000}}
    assert "$artifact" not in json.dumps(wire.log(found["runId"]))
    usage = {each["quota"]: each["current"] for each in wire.document("/v1/usage")["quotas"]}
    assert usage["artifactBytes"] == 0


def test_a_child_run_gets_the_whole_value_and_returns_it(
    connect: Connect, limited: ServedHost
) -> None:
    wire = connect(at=limited)
    child = wire.register(passing())
    call = {
        "workflowId": child,
        "waitForCompletion": True,
        "inputMapping": {"text": "text"},
        "outputMapping": {"back": "kept"},
    }
    flow = workflow(
        [
            node("call", "core.subWorkflow", config=call),
            node("size", "core.identity", inputs={"n": expression("size(variables.back)")}),
        ],
        variables=[variable("text"), variable("back")],
    )

    found = wire.run(wire.register(flow), {"text": TEXT})

    assert found["status"] == "completed", found.get("error")
    assert found["outputs"] == {"size": {"n": 6000}}
    assert whole(wire, found["runId"], found["variables"]["back"]) == TEXT


def test_the_limit_of_a_run_counts_a_value_once(connect: Connect, new_host: NewHost) -> None:
    wire = connect(at=new_host(WOPR_INLINE_VALUE_BYTES=LIMIT, WOPR_MAX_RUN_BYTES="100000"))
    copies = [
        node(f"n{n}", "core.setVariable", config={"name": f"v{n}", "value": "x" * 20_000})
        for n in range(15)
    ]

    assert wire.run(wire.register(workflow(copies)))["status"] == "completed"

    others = [
        node(f"n{n}", "core.setVariable", config={"name": f"v{n}", "value": f"{n}" * 20_000})
        for n in range(8)
    ]
    found = wire.run(wire.register(workflow(others)))
    assert found["error"]["code"] == "run_data_limit_exceeded"


def test_encrypted_artifacts_of_values_are_not_readable_on_disk(
    connect: Connect, new_host: NewHost
) -> None:
    host = new_host(WOPR_INLINE_VALUE_BYTES=LIMIT, WOPR_ENCRYPTION_KEY=a_key("o"))
    wire = connect(ACME, host)
    found = wire.run(wire.register(passing()), {"text": TEXT})
    assert whole(wire, found["runId"], found["outputs"]) == {"said": TEXT}

    host.stop()

    assert b"large large" not in stored(host)


@pytest.mark.parametrize("inline", ["0", LIMIT, "100000"])
def test_the_outputs_are_the_same_with_any_inline_limit(
    connect: Connect, new_host: NewHost, inline: str
) -> None:
    wire = connect(at=new_host(WOPR_INLINE_VALUE_BYTES=inline))

    found = wire.run(wire.register(passing()), {"text": TEXT})

    assert whole(wire, found["runId"], found["outputs"]) == {"said": TEXT}
    assert ("$artifact" in json.dumps(found)) == (inline == LIMIT)


def test_a_host_with_the_limit_disabled_still_reads_stored_large_values(
    connect: Connect, new_host: NewHost
) -> None:
    host = new_host(WOPR_INLINE_VALUE_BYTES=LIMIT)
    wire = connect(at=host)
    run_id = wire.create(wire.register(passing(gate("gate"))), {"text": TEXT})
    until_waiting(wire, run_id)

    host.variables["WOPR_INLINE_VALUE_BYTES"] = "0"
    host.restart()
    wire = connect(at=host)
    assert answer(wire, run_id, "gate", {"action": "accept"}).status_code == 200

    found = wire.finished(run_id)
    assert whole(wire, run_id, found["outputs"]) == {"said": TEXT}


@shown_alike
def test_the_command_line_prints_the_whole_outputs(limited: ServedHost, connect: Connect) -> None:
    flow = connect(at=limited).register(passing())

    given = (flow, "--json", "-i", f"text={TEXT}", "--url", limited.url, "--api-key", ACME)
    done = run(("run", *given), environment(limited.data_dir, {}))

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outputs"] == {"said": TEXT}


@shown_alike
def test_the_console_shows_a_reference_with_its_size_and_a_link(
    limited: ServedHost, connect: Connect
) -> None:
    wire = connect(at=limited)
    found = wire.run(wire.register(passing()), {"text": TEXT})
    name = found["outputs"]["said"]["$artifact"]["artifactId"]
    link = f"/runs/{found['runId']}/artifacts/{name}"

    with Person(limited.url) as person:
        person.sign_in(ACME)
        page = person.page(f"/runs/{found['runId']}")
        assert link in page.links
        assert "Value of 6002 bytes" in page.text
        assert person.get(link).json() == TEXT
    with Person(limited.url) as stranger:
        stranger.sign_in(GLOBEX)
        assert stranger.get(link).status_code == 404


@shown_alike
def test_the_command_line_shows_references_and_how_to_read_the_values(
    connect: Connect, limited: ServedHost
) -> None:
    wire = connect(at=limited)
    run_id = wire.run(wire.register(passing()), {"text": TEXT})["runId"]
    small = wire.run("hello", {"name": "Ada"})["runId"]

    def show(*options: str) -> tuple[str, str]:
        given = ("runs", "show", *options, "--url", limited.url, "--api-key", ACME)
        done = run(given, environment(limited.data_dir, {"COLUMNS": "200"}))
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    shown, hint = show(run_id)
    values, no_hint = show(run_id, "--values")
    document = json.loads(show(run_id, "--values", "--json")[0])

    assert "$artifact" in shown
    assert TEXT not in shown
    assert f"wopr runs show {run_id} --values" in hint
    assert "$artifact" not in values
    assert "--values" not in no_hint
    assert document["outputs"] == {"said": TEXT}
    assert document["inputs"] == {"text": TEXT}
    assert document["variables"]["kept"] == TEXT
    assert "--values" not in show(small)[1]
