from __future__ import annotations

import pytest

from wopr.agents.inventory import inventory_entry, is_provided
from wopr.agents.manifests import check_manifest
from wopr.protocol.agents import AgentRef
from wopr.protocol.documents import UNSET, Json, JsonObject
from wopr.protocol.errors import Refused
from wopr.protocol.manifests import AgentManifest, agent_ref

MANIFEST: JsonObject = {
    "agentId": "vendor.acme.support.tier1",
    "persona": "Tier one",
    "modelClass": "coding",
    "systemPrompt": "Help.",
}
FULL: JsonObject = {
    "agents": {"supported": True, "memoryBackends": ["long-term"]},
    "memory": {"supported": True, "writable": True},
}


def manifest(**fields: Json) -> AgentManifest:
    return check_manifest(MANIFEST | fields)


@pytest.mark.parametrize(
    ("model_class", "projected"),
    [("coding", "code"), ("writing", "chat"), ("general", "chat"), ("research", "retrieval")],
)
def test_a_class_is_compared_with_those_advertised_after_projection(
    model_class: str, projected: str
) -> None:
    document = MANIFEST | {"modelClass": model_class}

    assert check_manifest(document, [projected]).model_class == model_class
    with pytest.raises(Refused) as refused:
        check_manifest(document, ["vision"])
    assert refused.value.code == "unsupported_model_class"
    assert refused.value.details["modelClass"] == projected
    assert refused.value.details["supported"] == ["vision"]


def test_a_host_that_lists_no_classes_takes_every_one() -> None:
    assert check_manifest(MANIFEST, None).agent_id == MANIFEST["agentId"]


def test_a_reference_made_from_a_manifest_says_where_it_comes_from() -> None:
    assert agent_ref(manifest(version="2.0")) == AgentRef(
        agent_id="vendor.acme.support.tier1",
        name="Tier one",
        model_class="code",
        version="2.0",
        source_manifest_id="vendor.acme.support.tier1",
    )


def test_the_inventory_shows_neither_prompt_nor_schemas() -> None:
    handoff = {"taskSchema": {"type": "object", "title": "the hidden schema"}}
    entry = inventory_entry(manifest(systemPrompt="the hidden prompt", handoff=handoff), FULL)

    assert entry.has_handoff_schemas
    assert "hidden" not in str(entry)


def test_an_empty_handoff_is_none() -> None:
    assert not inventory_entry(manifest(handoff={}), FULL).has_handoff_schemas


def test_an_agent_with_all_it_needs_is_not_degraded() -> None:
    shape = {"scratchpad": True, "conversation": True, "longTerm": True}
    entry = inventory_entry(
        manifest(memoryShape=shape, requiresCapabilities=["agents.supported"]), FULL
    )

    assert entry.degraded is entry.memory_degraded is entry.degraded_memory_dimensions is UNSET


@pytest.mark.parametrize(
    ("shape", "advertised", "missing"),
    [
        ({"longTerm": True}, {}, ["long-term-durability"]),
        ({"scratchpad": True}, {}, ["read", "write"]),
        ({"conversation": True}, {"memory": {"supported": True}}, ["write"]),
        ({"longTerm": False}, {}, []),
    ],
)
def test_what_of_its_memory_an_agent_misses_is_named(
    shape: Json, advertised: JsonObject, missing: list[str]
) -> None:
    entry = inventory_entry(manifest(memoryShape=shape), advertised)

    assert entry.degraded_memory_dimensions == (missing or UNSET)
    assert entry.memory_degraded == (True if missing else UNSET)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("agents.supported", True),
        ("agents", True),
        ("off", False),
        ("off.supported", False),
        ("list", False),
        ("nothing.at.all", False),
        ("number", True),
    ],
)
def test_a_capability_is_provided_when_the_document_promises_it(path: str, expected: bool) -> None:
    document = FULL | {"off": {"supported": False}, "list": [], "number": 3}

    assert is_provided(path, document) is expected
