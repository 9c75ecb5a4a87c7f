from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

if TYPE_CHECKING:
    from tests.cli.conftest import FakeHost, Wopr

DEFINITION = {"id": "hello", "version": "1.0.0", "name": "Héllo", "nodes": []}
FAULTS = [{"path": "nodes", "message": "at least one"}, {"path": "edges", "message": "missing"}]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "a.json").write_text(json.dumps(DEFINITION))
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(DEFINITION))
    return ["a.json", "b.yaml"]


def test_workflows_are_listed(host: FakeHost, wopr: Wopr) -> None:
    row = {"id": "hello", "name": "Hello", "version": "2", "registeredAt": "t", "more": 1}
    host.answer("GET /v1/workflows", {"items": [row], "nextCursor": None})

    assert wopr("workflows", "list").stdout.splitlines()[1].split() == ["hello", "2", "Hello", "t"]
    assert json.loads(wopr("workflows", "list", "--json").stdout) == {"items": [row]}


def test_json_and_yaml_files_are_added(host: FakeHost, wopr: Wopr, files: list[str]) -> None:
    host.answer("POST /v1/workflows", DEFINITION, 201)

    result = wopr("workflows", "add", *files)

    assert result.exit_code == 0
    assert result.stdout == "a.json: added hello 1.0.0\nb.yaml: added hello 1.0.0\n"
    assert host.bodies == [DEFINITION, DEFINITION]


def test_added_files_can_start_each_other(host: FakeHost, wopr: Wopr, tmp_path: Path) -> None:
    for name, child in (("one", "other"), ("other", "one")):
        call = {"id": "call", "typeId": "core.subWorkflow", "config": {"workflowId": child}}
        document = DEFINITION | {"id": name, "nodes": [call]}
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    host.answer("POST /v1/workflows", DEFINITION, 201)

    wopr("workflows", "add", "one.json", "other.json")

    assert [r.query_params["alongside"] for r in host.requests] == ["one,other"] * 2


def test_every_fault_of_a_refused_definition_is_printed(
    host: FakeHost, wopr: Wopr, files: list[str]
) -> None:
    host.refuse("POST /v1/workflows", 400, "validation_error", "not valid", errors=FAULTS)

    result = wopr("workflows", "add", files[0])

    assert result.exit_code == 2
    assert result.stdout == "a.json: not valid\n  nodes: at least one\n  edges: missing\n"


WARNINGS = [{"path": "settings.color", "message": "has no effect"}]


def test_warnings_about_an_added_definition_are_printed(
    host: FakeHost, wopr: Wopr, files: list[str]
) -> None:
    host.answer("POST /v1/workflows", DEFINITION | {"warnings": WARNINGS}, 201)

    result = wopr("workflows", "add", files[0])

    assert result.exit_code == 0
    assert result.stdout == (
        "a.json: added hello 1.0.0\n  warning: settings.color: has no effect\n"
    )


def test_warnings_about_a_checked_definition_are_printed(
    host: FakeHost, wopr: Wopr, files: list[str]
) -> None:
    verdict = {"valid": True, "errors": [], "warnings": WARNINGS}
    host.answer("POST /v1/workflows:validate", verdict)

    shown = wopr("workflows", "check", files[0])
    as_json = wopr("workflows", "check", files[0], "--json")

    assert shown.stdout == ("a.json: valid hello 1.0.0\n  warning: settings.color: has no effect\n")
    assert json.loads(as_json.stdout)["results"][0]["warnings"] == WARNINGS


def test_other_content_under_an_existing_version_is_a_conflict(
    host: FakeHost, wopr: Wopr, files: list[str]
) -> None:
    host.refuse("POST /v1/workflows", 409, "workflow_exists")

    assert wopr("workflows", "add", files[0]).exit_code == 5


def test_one_bad_file_does_not_hide_the_others(
    host: FakeHost, wopr: Wopr, files: list[str], tmp_path: Path
) -> None:
    (tmp_path / "bad.yaml").write_text("id: a\nid: b\n")
    host.answer("POST /v1/workflows", DEFINITION, 201)

    result = wopr("workflows", "add", "bad.yaml", files[0], "--json")

    bad, good = json.loads(result.stdout)["results"]
    assert result.exit_code == 2
    assert bad["details"]["errors"] == [{"path": "line 2", "message": "the key 'id' is duplicated"}]
    assert good == {"file": "a.json", "ok": True, "id": "hello", "version": "1.0.0"}


def test_an_invalid_definition_fails_its_check_with_2(
    host: FakeHost, wopr: Wopr, files: list[str]
) -> None:
    host.answer("POST /v1/workflows:validate", {"valid": False, "errors": FAULTS})

    result = wopr("workflows", "check", files[0])

    assert result.exit_code == 2
    assert "  edges: missing" in result.stdout


def test_a_valid_definition_passes_its_check(host: FakeHost, wopr: Wopr, files: list[str]) -> None:
    host.answer("POST /v1/workflows:validate", {"valid": True, "errors": []})

    result = wopr("workflows", "check", files[1])

    assert (result.exit_code, result.stdout) == (0, "b.yaml: valid hello 1.0.0\n")


def test_without_a_valid_key_the_files_are_not_checked(
    host: FakeHost, wopr: Wopr, files: list[str]
) -> None:
    host.refuse("POST /v1/workflows", 401, "unauthenticated")

    result = wopr("workflows", "add", *files)

    assert result.exit_code == 4
    assert len(host.requests) == 1


def test_a_definition_is_shown_as_yaml_or_json(host: FakeHost, wopr: Wopr) -> None:
    host.answer("GET /v1/workflows/hello", DEFINITION)

    as_yaml = wopr("workflows", "show", "hello", "--version", "1.0.0").stdout
    as_json = wopr("workflows", "show", "hello", "--json").stdout

    assert yaml.safe_load(as_yaml) == json.loads(as_json) == DEFINITION
    assert "Héllo" in as_yaml
    assert host.requests[0].query_params["version"] == "1.0.0"


def test_yaml_with_hostile_text_is_escaped_and_equal_after_parsing(
    host: FakeHost, wopr: Wopr
) -> None:
    hostile = {"id": "x", "name": "a\x1b[31mb\u202ec\u009bd"}
    host.answer("GET /v1/workflows/x", hostile)

    shown = wopr("workflows", "show", "x").stdout

    assert yaml.safe_load(shown) == hostile
    assert not set("\x1b\u202e\u009b") & set(shown)


def test_yaml_and_json_at_once_is_wrong_usage(wopr: Wopr) -> None:
    assert wopr("workflows", "show", "x", "--yaml", "--json").exit_code == 2


def test_a_workflow_is_added_after_those_that_it_starts_and_reported_in_the_given_order(
    host: FakeHost, wopr: Wopr, tmp_path: Path
) -> None:
    call = {"id": "call", "typeId": "core.subWorkflow", "config": {"workflowId": "child"}}
    rule = {"when": "true", "decision": {"kind": "next-worker", "nextWorkerIds": ["parent"]}}
    boss = {"id": "boss", "typeId": "core.orchestrator.supervisor", "config": {"rules": [rule]}}
    for name, nodes in (("boss", [boss]), ("parent", [call]), ("child", [])):
        text = json.dumps({"id": name, "version": "1", "nodes": nodes})
        (tmp_path / f"{name}.json").write_text(text)
    host.answer("POST /v1/workflows", DEFINITION, 201)

    result = wopr("workflows", "add", "boss.json", "parent.json", "child.json")

    assert [body["id"] for body in host.bodies] == ["child", "parent", "boss"]
    named = [line.partition(":")[0] for line in result.stdout.splitlines()]
    assert named == ["boss.json", "parent.json", "child.json"]


def test_workflows_that_start_each_other_are_still_sent(
    host: FakeHost, wopr: Wopr, tmp_path: Path
) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        call = {"id": "call", "typeId": "core.subWorkflow", "config": {"workflowId": other}}
        (tmp_path / f"{name}.json").write_text(json.dumps({"id": name, "nodes": [call]}))
    host.answer("POST /v1/workflows", DEFINITION, 201)

    wopr("workflows", "add", "a.json", "b.json")

    assert [body["id"] for body in host.bodies] == ["a", "b"]
