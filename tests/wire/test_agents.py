from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest

from tests.support.client import Wire
from tests.support.host import ROLES, ServedHost
from tests.wire.conftest import Connect
from wopr.protocol.documents import Json, JsonObject

pytestmark = pytest.mark.both_stores

CAUTIOUS = "core.conformance.agents.cautious"
INVENTORY = "agent-inventory-response.schema.json"
ENTRY = f"{INVENTORY}#/$defs/AgentInventoryEntry"


def manifest(**changes: Json) -> JsonObject:
    """Return a manifest that is not installed."""
    least = {
        "agentId": f"local.acme.a{uuid4().hex}",
        "persona": "Writer",
        "modelClass": "general",
        "systemPrompt": "The prompt that nobody is shown.",
    }
    return {**least, **changes}


def test_the_inventory_has_the_published_shape_and_an_agent_with_a_threshold(acme: Wire) -> None:
    acme.post("/v1/agents", manifest())

    inventory = acme.document("/v1/agents")

    acme.recorder.check(INVENTORY, inventory)
    names = [entry["agentId"] for entry in inventory["agents"]]
    assert names == sorted(names)
    assert inventory["total"] == len(names)
    [cautious] = [entry for entry in inventory["agents"] if entry["agentId"] == CAUTIOUS]
    assert cautious["confidenceThreshold"] == 0.9
    assert "nobody is shown" not in str(inventory)


def test_an_installed_agent_is_read_by_its_id(acme: Wire) -> None:
    document = manifest(
        toolAllowlist=["mcp:search"],
        confidence={"defaultThreshold": 0.4},
        handoff={"taskSchema": {"type": "object"}},
    )

    installed = acme.post("/v1/agents", document)

    entry = acme.document(f"/v1/agents/{document['agentId']}")
    acme.recorder.check(ENTRY, entry)
    assert installed.status_code == 201
    assert installed.json() == entry
    assert entry == {
        "agentId": document["agentId"],
        "persona": "Writer",
        "label": "Writer",
        "modelClass": "general",
        "packName": "local.acme",
        "packVersion": "1.0.0",
        "toolAllowlist": ["mcp:search"],
        "hasHandoffSchemas": True,
        "confidenceThreshold": 0.4,
    }


def test_the_same_manifest_is_no_change_and_another_under_its_version_a_conflict(
    acme: Wire,
) -> None:
    document = manifest()
    acme.post("/v1/agents", document)

    again = acme.post("/v1/agents", document)
    other = acme.post("/v1/agents", {**document, "persona": "Other"})
    newer = acme.post("/v1/agents", {**document, "persona": "Other", "version": "2.0.0"})

    assert again.status_code == 200
    assert (other.status_code, other.json()["error"]) == (409, "agent_exists")
    assert newer.status_code == 201
    path = f"/v1/agents/{document['agentId']}"
    assert acme.document(path)["persona"] == "Other"
    assert acme.document(path, params={"version": "1.0.0"})["persona"] == "Writer"


def test_an_invalid_manifest_is_refused_with_every_fault(acme: Wire) -> None:
    refused = acme.post("/v1/agents", {"agentId": "host:x", "persona": "", "modelClass": "general"})

    error = refused.json()
    assert (refused.status_code, error["error"]) == (400, "validation_error")
    assert {each["path"] for each in error["details"]["errors"]} == {
        "agentId",
        "persona",
        "systemPrompt",
    }


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"text"'])
def test_a_body_that_is_not_a_manifest_is_refused(acme: Wire, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}

    refused = acme.post("/v1/agents", content=body, headers=headers)

    assert refused.status_code == 400
    assert refused.json()["error"] == "validation_error"


def test_another_tenant_s_agent_looks_like_a_missing_one(acme: Wire, globex: Wire) -> None:
    document = manifest()
    acme.post("/v1/agents", document)
    unknown = manifest()["agentId"]

    foreign = globex.get(f"/v1/agents/{document['agentId']}")
    missing = globex.get(f"/v1/agents/{unknown}")

    assert foreign.status_code == missing.status_code == 404
    assert foreign.text.replace(document["agentId"], "") == missing.text.replace(unknown, "")
    listed = [entry["agentId"] for entry in globex.document("/v1/agents")["agents"]]
    assert document["agentId"] not in listed
    assert CAUTIOUS in listed


@pytest.mark.parametrize(("role", "key"), ROLES.items())
def test_only_a_key_that_may_write_agents_installs_one(
    connect: Connect, role: str, key: str
) -> None:
    answered = connect(key).post("/v1/agents", manifest())

    expected = 201 if role in ("admin", "developer") else 403
    assert answered.status_code == expected
    assert connect(key).get("/v1/agents").status_code == (403 if role == "ingest" else 200)


def test_agents_cannot_be_read_without_a_key(anonymous: Wire) -> None:
    for path in ("/v1/agents", f"/v1/agents/{CAUTIOUS}"):
        assert anonymous.get(path).status_code == 401
    assert anonymous.post("/v1/agents", manifest()).status_code == 401


def test_agents_survive_a_restart(new_host: Callable[..., ServedHost], connect: Connect) -> None:
    document = manifest()
    running = new_host()
    assert connect(at=running).post("/v1/agents", document).status_code == 201

    running.restart()

    listed = connect(at=running).document("/v1/agents")["agents"]
    assert [entry["agentId"] for entry in listed] == [document["agentId"]]
