"""The registry of agents: installed manifests, cached in memory, and the inventory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final, Literal, TypeAlias, cast

import msgspec

from wopr.agents.manifests import MAX_BYTES, check_manifest, is_small
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, encode
from wopr.protocol.emitters import capability_value
from wopr.protocol.errors import NotFound, Refused
from wopr.protocol.json_schema.size import SchemaLimits
from wopr.protocol.json_schema.validation import UserSchema
from wopr.protocol.manifests import (
    AgentInventoryEntry,
    AgentInventoryResponse,
    AgentManifest,
    Handoff,
)
from wopr.security.digest import json_digest
from wopr.store.port import SHARED, AgentManifests, AgentRow

MemoryDimension: TypeAlias = Literal["read", "write", "long-term-durability"]


def inventory_entry(manifest: AgentManifest, advertised: JsonObject) -> AgentInventoryEntry:
    """Return an agent's inventory entry, including required capabilities that the host lacks."""
    missing = _missing_capabilities(manifest, advertised)
    dimensions = _missing_memory_dimensions(manifest, advertised)
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
    """Return whether a discovery document has the capability at a dotted path."""
    value: Json = capability_value(advertised, capability)
    if isinstance(value, dict):
        return cast("JsonObject", value).get("supported") is not False
    # Compared by identity, because 0 counts as provided.
    return value is not None and value is not False and value != []


def _missing_capabilities(manifest: AgentManifest, advertised: JsonObject) -> list[str]:
    """Return the required capabilities that the host does not advertise."""
    required = manifest.requires_capabilities
    needed = [] if isinstance(required, Unset) else list(required)
    if manifest.prompt_library_ref is not UNSET or manifest.prompt_overrides is not UNSET:
        needed.append("prompts")
    return [key for key in dict.fromkeys(needed) if not is_provided(key, advertised)]


def _missing_memory_dimensions(
    manifest: AgentManifest, advertised: JsonObject
) -> list[MemoryDimension]:
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


_DEFAULT_LIMITS: Final = SchemaLimits()
_PAGE: Final = 100
# The limit of a tenant's manifests, which are all loaded when one of its agents is used.
MAX_TENANT_BYTES: Final = 32 * 1024 * 1024
# Runs the check of a large manifest outside the event loop.
CheckLarge: TypeAlias = Callable[[str, Callable[[], AgentManifest]], Awaitable[AgentManifest]]
# The name of a value in faults, which must not contain it: it may be sensitive.
_MASK: Final = "the value"


@dataclass(frozen=True, eq=False)
class InstalledAgent:
    """One version of an installed agent."""

    manifest: AgentManifest
    registered_at: int
    place: int

    @cached_property
    def task_schema(self) -> UserSchema | None:
        """The schema of the agent's task, or None."""
        handoff = self.manifest.handoff
        if isinstance(handoff, Unset) or isinstance(handoff.task_schema, Unset):
            return None
        return UserSchema(handoff.task_schema, mask=_MASK)

    @cached_property
    def return_schema(self) -> UserSchema | None:
        """The schema of the agent's return value, or None."""
        handoff = self.manifest.handoff
        if isinstance(handoff, Unset) or isinstance(handoff.return_schema, Unset):
            return None
        return UserSchema(handoff.return_schema, mask=_MASK)


@dataclass(slots=True)
class _TenantAgents:
    """The loaded agents of one tenant."""

    place: int = 0
    # The bytes of all its manifests.
    size: int = 0
    versions: dict[str, list[InstalledAgent]] = field(
        default_factory=dict[str, list[InstalledAgent]]
    )

    def add(self, row: AgentRow) -> None:
        manifest = msgspec.json.decode(row.body, type=AgentManifest)
        versions = self.versions.setdefault(row.agent_id, [])
        versions.append(InstalledAgent(manifest, row.registered_at, row.place))
        versions.sort(key=lambda each: (each.registered_at, each.place))
        self.place = row.place
        self.size += len(row.body)

    def find(self, agent_id: str, version: str | None, at: int | None) -> InstalledAgent | None:
        for installed in reversed(self.versions.get(agent_id, ())):
            is_wanted = version is None or installed.manifest.version == version
            if is_wanted and (at is None or installed.registered_at <= at):
                return installed
        return None


class AgentRegistry:
    """Finds a tenant's agents, its own agents before shared ones.

    `load` reads the manifests that were installed since the last call. Lookups use loaded manifests
    only. With `version` they find the version that a reference pins. With `at` they ignore
    manifests that were installed later, because a run keeps the manifests it started with.
    `advertised` is the discovery document, which has the supported model classes and capabilities.
    """

    def __init__(
        self,
        store: AgentManifests,
        now: Callable[[], int],
        advertised: JsonObject,
        limits: SchemaLimits = _DEFAULT_LIMITS,
        max_bytes: int = MAX_BYTES,
        check_large: CheckLarge | None = None,
        check_quota: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._limits = limits
        self._max_bytes = max_bytes
        self._check_large = check_large
        self._store = store
        self._now = now
        self._advertised = advertised
        self._model_classes: list[str] | None = capability_value(advertised, "agents.modelClasses")
        self._tenants: dict[str, _TenantAgents] = {}
        # Raises `QuotaExceeded` for a tenant that may install no more.
        self._check_quota = check_quota

    async def register(
        self, tenant: str, document: Json, *, has_quota: bool = True
    ) -> tuple[InstalledAgent, bool]:
        """Check and install a manifest; return it and whether it is new.

        `has_quota` is False for manifests that the host installs at its start.
        """
        check = partial(
            check_manifest, document, self._model_classes, self._limits, self._max_bytes
        )
        if self._check_large is None or is_small(document):
            manifest = check()
        else:
            manifest = await self._check_large(tenant, check)
        row = AgentRow(
            agent_id=manifest.agent_id,
            version=manifest.version,
            digest=json_digest(document),
            body=encode(document),
            registered_at=self._now(),
        )
        if has_quota and self._check_quota is not None:
            await self.load(tenant)
            tenant_agents = self._tenants[tenant]
            if tenant_agents.find(row.agent_id, row.version, None) is None:
                await self._check_quota(tenant)
                if tenant_agents.size + len(row.body) > MAX_TENANT_BYTES:
                    raise Refused(
                        f"the agent manifests of this tenant have {tenant_agents.size} bytes, this "
                        f"one has {len(row.body)}, and all together may have {MAX_TENANT_BYTES}",
                        field="manifest",
                        limit=MAX_TENANT_BYTES,
                    )
        is_new = await self._store.put_agent(tenant, row)
        return await self.agent(tenant, manifest.agent_id, manifest.version), is_new

    async def load(self, tenant: str) -> None:
        """Read the manifests, including shared ones, that were installed since the last call."""
        for owner in (tenant, SHARED):
            tenant_agents = self._tenants.setdefault(owner, _TenantAgents())
            while rows := await self._store.agents_since(owner, tenant_agents.place, _PAGE):
                for row in rows:
                    # Another load may have read the same rows while this one waited.
                    if row.place > tenant_agents.place:
                        tenant_agents.add(row)

    async def refresh(self) -> None:
        """Read the manifests that other processes have installed for known tenants."""
        for owner in [*self._tenants]:
            await self.load(owner)

    def find(
        self, tenant: str, agent_id: str, version: str | None = None, at: int | None = None
    ) -> InstalledAgent | None:
        """Return the loaded agent, or None."""
        for owner in (tenant, SHARED):
            tenant_agents = self._tenants.get(owner)
            found = None if tenant_agents is None else tenant_agents.find(agent_id, version, at)
            if found is not None:
                return found
        return None

    def threshold(
        self, tenant: str, agent_id: str, version: str | None = None, at: int | None = None
    ) -> float | None:
        """Return the agent's confidence threshold; None without a threshold or a manifest."""
        found = self.find(tenant, agent_id, version, at)
        return None if found is None else found.manifest.threshold

    def allowlist(
        self, tenant: str, agent_id: str, version: str | None = None, at: int | None = None
    ) -> frozenset[str] | None:
        """Return the tools that the agent may call; None if it has no manifest.

        If the agent is installed but this version is not, it may call no tools.
        """
        found = self.find(tenant, agent_id, version, at)
        if found is not None:
            return found.manifest.tools
        return None if self.find(tenant, agent_id, None, at) is None else frozenset()

    async def agent(self, tenant: str, agent_id: str, version: str | None = None) -> InstalledAgent:
        """Return the agent as installed now. Raises `NotFound`."""
        await self.load(tenant)
        found = self.find(tenant, agent_id, version)
        if found is None:
            raise NotFound(f"there is no agent {agent_id[:256]!r}")
        return found

    async def versions(self, tenant: str, agent_id: str) -> list[InstalledAgent]:
        """Return every version of the agent that the tenant can use, newest first."""
        await self.load(tenant)
        found: dict[str, InstalledAgent] = {}
        for owner in (tenant, SHARED):
            for installed in reversed(self._tenants[owner].versions.get(agent_id, ())):
                found.setdefault(installed.manifest.version, installed)
        return list(found.values())

    def entry(self, installed: InstalledAgent) -> AgentInventoryEntry:
        """Return the inventory entry of an agent."""
        return inventory_entry(installed.manifest, self._advertised)

    async def inventory(self, tenant: str) -> AgentInventoryResponse:
        """Return the inventory of the tenant's agents in their newest versions, by id."""
        entries = [self.entry(found) for found in await self.newest(tenant)]
        return AgentInventoryResponse(agents=entries, total=len(entries))

    async def newest(self, tenant: str) -> list[InstalledAgent]:
        """Return all agents that the tenant can use, in their newest versions, by id."""
        await self.load(tenant)
        return list(self._newest(tenant))

    def _newest(self, tenant: str) -> Iterator[InstalledAgent]:
        names = {name for owner in (tenant, SHARED) for name in self._tenants[owner].versions}
        for name in sorted(names):
            found = self.find(tenant, name)
            if found is not None:
                yield found
