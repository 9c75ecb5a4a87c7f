from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from wopr.protocol.documents import JsonObject
from wopr.protocol.manifests import (
    AgentInventoryEntry,
    AgentInventoryResponse,
    AgentManifest,
)
from wopr.protocol.resources.memory import MemoryEntry, MemoryListOptions

if TYPE_CHECKING:
    from tests.protocol.conftest import Official

LEAST: JsonObject = {
    "agentId": "vendor.acme.desk.writer",
    "persona": "Writer",
    "modelClass": "writing",
    "systemPrompt": "Write.",
}
FULL: JsonObject = {
    **LEAST,
    "toolAllowlist": ["mcp:search"],
    "requiresCapabilities": ["memory", "host.workspace"],
    "memoryShape": {"scratchpad": True, "conversation": False, "longTerm": True},
    "confidence": {"defaultThreshold": 0.9},
    "handoff": {"taskSchemaRef": "schemas/task.json", "returnSchemaRef": "schemas/return.json"},
    "label": "W",
    "description": "Writes.",
    "evalSuiteRef": "evals/writer.json",
    "promptLibraryRef": "acme.prompts",
    "promptOverrides": {
        "system": "prompt:writer@1.0.0",
        "user": {"templateId": "ask", "libraryId": "lib", "version": "1.0.0"},
        "few-shot": {"templateId": "few", "variableOverrides": {"a": 1}},
        "schema-hint": "prompt:hint",
    },
}
NOT_MANIFESTS: list[JsonObject] = [
    {"agentId": "host:writer"},
    {"agentId": "core.chat"},
    {"agentId": "acme.desk.writer"},
    {"agentId": "vendor.acme.Desk\n"},
    {"persona": ""},
    {"persona": "x" * 201},
    {"modelClass": "chat"},
    {"systemPrompt": ""},
    {"systemPromptRef": "prompts/writer.md"},
    {"toolAllowlist": [""]},
    {"requiresCapabilities": ["a", "a"]},
    {"memoryShape": {"forever": True}},
    {"confidence": {"defaultThreshold": 1.01}},
    {"confidence": {"threshold": 0.5}},
    {"handoff": {"taskRef": "x"}},
    {"label": ""},
    {"description": "x" * 501},
    {"promptLibraryRef": "Acme"},
    {"promptOverrides": {"assistant": "prompt:x"}},
    {"promptOverrides": {"user": "x"}},
    {"intruder": 1},
]


@pytest.mark.parametrize("document", [LEAST, FULL], ids=["least", "full"])
def test_a_published_manifest_is_parsed_and_written_unchanged(
    document: JsonObject, official: Official
) -> None:
    manifest = msgspec.convert(document, AgentManifest)

    assert official.fault("agent-manifest.schema.json", document) is None
    assert msgspec.json.decode(msgspec.json.encode(manifest)) == document


@pytest.mark.parametrize("changes", NOT_MANIFESTS, ids=str)
def test_a_manifest_refused_by_the_published_schema_is_refused(
    changes: JsonObject, official: Official
) -> None:
    document = {**LEAST, **changes}

    assert official.fault("agent-manifest.schema.json", document) is not None
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(document, AgentManifest)


def test_a_manifest_needs_a_system_prompt() -> None:
    without = {name: value for name, value in LEAST.items() if name != "systemPrompt"}

    with pytest.raises(msgspec.ValidationError, match="either systemPrompt or systemPromptRef"):
        msgspec.convert(without, AgentManifest)
    msgspec.convert({**without, "systemPromptRef": "prompts/writer.md"}, AgentManifest)


def test_handoff_schemas_and_the_version_can_be_in_the_manifest() -> None:
    extended = {**LEAST, "version": "2.1.0", "handoff": {"taskSchema": {"type": "object"}}}

    manifest = msgspec.convert(extended, AgentManifest)

    assert manifest.version == "2.1.0"
    assert msgspec.convert(LEAST, AgentManifest).version == "1.0.0"


def test_a_manifest_without_lists_and_thresholds_has_none() -> None:
    least, full = (msgspec.convert(each, AgentManifest) for each in (LEAST, FULL))

    assert (least.tools, least.threshold) == (frozenset(), None)
    assert (full.tools, full.threshold) == (frozenset({"mcp:search"}), 0.9)


def test_an_inventory_is_valid_by_the_published_schema(official: Official) -> None:
    least = AgentInventoryEntry(
        agent_id="a.b.c",
        persona="A",
        label="A",
        model_class="general",
        pack_name="a.b",
        pack_version="1",
        tool_allowlist=[],
        has_handoff_schemas=False,
    )
    full = msgspec.structs.replace(
        least,
        description="d",
        memory_shape=msgspec.convert(FULL, AgentManifest).memory_shape,
        confidence_threshold=0.5,
        degraded=["prompts"],
        memory_degraded=True,
        degraded_memory_dimensions=["read", "write", "long-term-durability"],
    )
    response = AgentInventoryResponse(agents=[least, full], total=2)

    document = msgspec.json.decode(msgspec.json.encode(response))

    assert official.fault("agent-inventory-response.schema.json", document) is None
    assert document["agents"][0]["toolAllowlist"] == []
    assert document["agents"][0]["hasHandoffSchemas"] is False


@pytest.mark.parametrize("extra", [{}, {"expiresAt": "2026-01-01T00:00:00.000Z"}])
def test_a_memory_entry_is_valid_by_the_published_schema(
    extra: JsonObject, official: Official
) -> None:
    document = {"id": "m", "content": "c", "tags": ["t"], "createdAt": "2026-01-01T00:00:00Z"}
    document |= extra

    entry = msgspec.convert(document, MemoryEntry)

    assert official.fault("memory-entry.schema.json", document) is None
    assert msgspec.to_builtins(entry) == document


@pytest.mark.parametrize("options", [{}, {"limit": 0}, {"limit": 5, "tag": "t"}])
def test_list_options_are_valid_by_the_published_schema(
    options: JsonObject, official: Official
) -> None:
    assert official.fault("memory-list-options.schema.json", options) is None
    assert msgspec.to_builtins(msgspec.convert(options, MemoryListOptions)) == options
