"""The inventory: an installed agent as others see it, and where this host falls short of it."""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

from wopr.protocol.documents import UNSET, Json, JsonObject, Unset
from wopr.protocol.emitters import look_up
from wopr.protocol.manifests import AgentInventoryEntry, AgentManifest, Handoff

MemoryDimension: TypeAlias = Literal["read", "write", "long-term-durability"]


def inventory_entry(manifest: AgentManifest, advertised: JsonObject) -> AgentInventoryEntry:
    """Show an agent without its prompt and schemas, and with what the host cannot give it."""
    missing = _missing(manifest, advertised)
    dimensions = _missing_memory(manifest, advertised)
    threshold = manifest.threshold
    return AgentInventoryEntry(
        agent_id=manifest.agent_id,
        persona=manifest.persona,
        label=manifest.persona if isinstance(manifest.label, Unset) else manifest.label,
        description=manifest.description,
        model_class=manifest.model_class,
        pack_name=manifest.pack_name,
        pack_version=manifest.version,
        tool_allowlist=sorted(manifest.tools),
        has_handoff_schemas=manifest.handoff not in (UNSET, Handoff()),
        memory_shape=manifest.memory_shape,
        confidence_threshold=UNSET if threshold is None else threshold,
        degraded=missing or UNSET,
        memory_degraded=True if dimensions else UNSET,
        degraded_memory_dimensions=dimensions or UNSET,
    )


def is_provided(capability: str, advertised: JsonObject) -> bool:
    """Tell whether a discovery document promises what lies at a dotted path."""
    value: Json = look_up(advertised, capability)
    if isinstance(value, dict):
        return cast("JsonObject", value).get("supported") is not False
    # Compared by identity: 0 is a value like any other.
    return value is not None and value is not False and value != []


def _missing(manifest: AgentManifest, advertised: JsonObject) -> list[str]:
    """The capabilities that the agent asks for and the host does not advertise."""
    asked = manifest.requires_capabilities
    needed = [] if isinstance(asked, Unset) else list(asked)
    if manifest.prompt_library_ref is not UNSET or manifest.prompt_overrides is not UNSET:
        needed.append("prompts")
    return [key for key in dict.fromkeys(needed) if not is_provided(key, advertised)]


def _missing_memory(manifest: AgentManifest, advertised: JsonObject) -> list[MemoryDimension]:
    shape = manifest.memory_shape
    if isinstance(shape, Unset):
        return []
    needs: dict[MemoryDimension, tuple[bool, str]] = {
        "read": (True in (shape.scratchpad, shape.conversation), "memory"),
        "write": (True in (shape.scratchpad, shape.conversation), "memory.writable"),
        "long-term-durability": (shape.long_term is True, "agents.memoryBackends"),
    }
    return [
        dimension
        for dimension, (is_needed, capability) in needs.items()
        if is_needed and not is_provided(capability, advertised)
    ]
