from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

if TYPE_CHECKING:
    from tests.cli.conftest import FakeHost, Wopr

MANIFEST = {
    "agentId": "local.acme.writer",
    "persona": "Writer",
    "modelClass": "writing",
    "systemPrompt": "Write well.",
}
ENTRY = {
    "agentId": "local.acme.writer",
    "persona": "Writer",
    "label": "Writer",
    "modelClass": "writing",
    "packName": "local.acme",
    "packVersion": "2.0.0",
    "toolAllowlist": ["mcp:search", "openwop:ask"],
    "hasHandoffSchemas": False,
    "confidenceThreshold": 0.9,
}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "a.json").write_text(json.dumps(MANIFEST))
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(MANIFEST))
    return ["a.json", "b.yaml"]


def test_agents_are_listed_with_their_missing_requirements(host: FakeHost, wopr: Wopr) -> None:
    bare = {**ENTRY, "agentId": "local.acme.z", "toolAllowlist": [], "degraded": ["prompts"]}
    del bare["confidenceThreshold"]
    inventory = {"agents": [ENTRY, {**bare, "roster": []}], "total": 2}
    host.answer("GET /v1/agents", inventory)

    heading, first, second = wopr("agents", "list").stdout.splitlines()

    assert heading.split()[:3] == ["AGENT", "VERSION", "NAME"]
    assert first.split() == [
        *("local.acme.writer", "2.0.0", "Writer", "writing", "0.9"),
        *("mcp:search,", "openwop:ask"),
    ]
    assert second.split() == ["local.acme.z", "2.0.0", "Writer", "writing", "prompts"]
    assert json.loads(wopr("agents", "list", "--json").stdout) == inventory


def test_an_agent_is_shown_as_yaml_or_json(host: FakeHost, wopr: Wopr) -> None:
    host.answer("GET /v1/agents/local.acme.writer", ENTRY)

    as_yaml = wopr("agents", "show", "local.acme.writer", "--version", "2.0.0").stdout
    as_json = wopr("agents", "show", "local.acme.writer", "--json").stdout

    assert yaml.safe_load(as_yaml) == json.loads(as_json) == ENTRY
    assert host.requests[0].query_params["version"] == "2.0.0"


def test_an_unknown_agent_is_not_found(host: FakeHost, wopr: Wopr) -> None:
    host.refuse("GET /v1/agents/local.acme.x", 404, "not_found", "there is no agent")

    result = wopr("agents", "show", "local.acme.x")

    assert result.exit_code == 3
    assert "there is no agent" in result.stderr


def test_json_and_yaml_manifests_are_added(host: FakeHost, wopr: Wopr, files: list[str]) -> None:
    host.answer("POST /v1/agents", ENTRY, 201)

    result = wopr("agents", "add", *files)

    assert result.exit_code == 0
    assert result.stdout == (
        "a.json: added local.acme.writer 2.0.0\nb.yaml: added local.acme.writer 2.0.0\n"
    )
    assert host.bodies == [MANIFEST, MANIFEST]


def test_every_fault_of_a_refused_manifest_is_printed(
    host: FakeHost, wopr: Wopr, files: list[str]
) -> None:
    faults = [{"path": "agentId", "message": "no"}, {"path": "persona", "message": "missing"}]
    host.refuse("POST /v1/agents", 400, "validation_error", "not valid", errors=faults)

    result = wopr("agents", "add", files[0])

    assert result.exit_code == 2
    assert result.stdout == "a.json: not valid\n  agentId: no\n  persona: missing\n"


def test_other_content_under_an_existing_version_is_a_conflict(
    host: FakeHost, wopr: Wopr, files: list[str]
) -> None:
    host.refuse("POST /v1/agents", 409, "agent_exists")

    assert wopr("agents", "add", files[0]).exit_code == 5
