"""The registry of agents: installed manifests, kept in memory so that a lookup never waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final, TypeAlias

import msgspec

from wopr.agents.inventory import inventory_entry
from wopr.agents.manifests import MAX_BYTES, check_manifest, is_small
from wopr.protocol.checking import UserSchema
from wopr.protocol.documents import Json, JsonObject, Unset, encode
from wopr.protocol.emitters import look_up
from wopr.protocol.errors import NotFound, Refused
from wopr.protocol.manifests import AgentInventoryEntry, AgentInventoryResponse, AgentManifest
from wopr.protocol.schema_size import SchemaLimits
from wopr.security.digest import json_digest
from wopr.store.port import SHARED, AgentManifests, AgentRow

_DEFAULT_LIMITS: Final = SchemaLimits()
_PAGE: Final = 100
# The manifests of a tenant are all in memory once it runs an agent.
MOST_BYTES_OF_TENANT: Final = 32 * 1024 * 1024
# Does the check of a large manifest where it does not stop the event loop, in the tenant's turn.
CheckLarge: TypeAlias = Callable[[str, Callable[[], AgentManifest]], Awaitable[AgentManifest]]
# Tasks and returns may hold what the log masks, so a fault speaks of them without showing any.
_MASK: Final = "the value"


@dataclass(frozen=True, eq=False)
class Installed:
    """One version of an installed agent."""

    manifest: AgentManifest
    registered_at: int
    place: int

    @cached_property
    def task_schema(self) -> UserSchema | None:
        """What checks the inputs that the agent is handed, where it says."""
        handoff = self.manifest.handoff
        if isinstance(handoff, Unset) or isinstance(handoff.task_schema, Unset):
            return None
        return UserSchema(handoff.task_schema, mask=_MASK)

    @cached_property
    def return_schema(self) -> UserSchema | None:
        """What checks the value that the agent hands back, where it says."""
        handoff = self.manifest.handoff
        if isinstance(handoff, Unset) or isinstance(handoff.return_schema, Unset):
            return None
        return UserSchema(handoff.return_schema, mask=_MASK)


@dataclass(slots=True)
class _Shelf:
    """All that one tenant installed, as far as it has been read."""

    place: int = 0
    # Bytes of all its manifests.
    size: int = 0
    versions: dict[str, list[Installed]] = field(default_factory=dict[str, list[Installed]])

    def add(self, row: AgentRow) -> None:
        manifest = msgspec.json.decode(row.body, type=AgentManifest)
        versions = self.versions.setdefault(row.agent_id, [])
        versions.append(Installed(manifest, row.registered_at, row.place))
        versions.sort(key=lambda each: (each.registered_at, each.place))
        self.place = row.place
        self.size += len(row.body)

    def find(self, agent_id: str, version: str | None, at: int | None) -> Installed | None:
        for installed in reversed(self.versions.get(agent_id, ())):
            is_wanted = version is None or installed.manifest.version == version
            if is_wanted and (at is None or installed.registered_at <= at):
                return installed
        return None


class Agents:
    """Finds a tenant's agents, its own before the shared ones.

    `load` reads what was installed since the last time; after it the lookups need no waiting.
    They take the version that a reference pins, and with `at` they leave out what was installed
    after that instant: a run keeps the manifests it started with. `advertised` is the discovery
    document: it says which model classes can be installed, and what an agent will miss here.
    """

    def __init__(
        self,
        store: AgentManifests,
        now: Callable[[], int],
        advertised: JsonObject,
        limits: SchemaLimits = _DEFAULT_LIMITS,
        max_bytes: int = MAX_BYTES,
        check_large: CheckLarge | None = None,
    ) -> None:
        self._limits = limits
        self._max_bytes = max_bytes
        self._check_large = check_large
        self._store = store
        self._now = now
        self._advertised = advertised
        self._model_classes: list[str] | None = look_up(advertised, "agents.modelClasses")
        self._shelves: dict[str, _Shelf] = {}
        # Raises `QuotaExceeded` for a tenant that may install no more. Set once the host has
        # installed the manifests that it was started with.
        self.check_quota: Callable[[str], Awaitable[None]] | None = None

    async def register(self, tenant: str, document: Json) -> tuple[Installed, bool]:
        """Check and install a manifest; the flag says whether it is new."""
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
        if self.check_quota is not None:
            await self.load(tenant)
            shelf = self._shelves[tenant]
            if shelf.find(row.agent_id, row.version, None) is None:
                await self.check_quota(tenant)
                if shelf.size + len(row.body) > MOST_BYTES_OF_TENANT:
                    raise Refused(
                        f"the agent manifests of this tenant have {shelf.size} bytes, this one has "
                        f"{len(row.body)}, and all together may have {MOST_BYTES_OF_TENANT}",
                        field="manifest",
                        limit=MOST_BYTES_OF_TENANT,
                    )
        is_new = await self._store.put_agent(tenant, row)
        return await self.agent(tenant, manifest.agent_id, manifest.version), is_new

    async def load(self, tenant: str) -> None:
        """Read what was installed for the tenant and for all since the last time."""
        for owner in (tenant, SHARED):
            shelf = self._shelves.setdefault(owner, _Shelf())
            while rows := await self._store.agents_since(owner, shelf.place, _PAGE):
                for row in rows:
                    # Another load may have read the same rows while this one waited.
                    if row.place > shelf.place:
                        shelf.add(row)

    async def refresh(self) -> None:
        """Read what other processes have installed for tenants that are known here."""
        for owner in [*self._shelves]:
            await self.load(owner)

    def find(
        self, tenant: str, agent_id: str, version: str | None = None, at: int | None = None
    ) -> Installed | None:
        """The agent as loaded, or None."""
        for owner in (tenant, SHARED):
            shelf = self._shelves.get(owner)
            found = None if shelf is None else shelf.find(agent_id, version, at)
            if found is not None:
                return found
        return None

    def threshold(
        self, tenant: str, agent_id: str, version: str | None = None, at: int | None = None
    ) -> float | None:
        """The agent's own confidence threshold; None when it has none, or no manifest."""
        found = self.find(tenant, agent_id, version, at)
        return None if found is None else found.manifest.threshold

    def allowlist(
        self, tenant: str, agent_id: str, version: str | None = None, at: int | None = None
    ) -> frozenset[str] | None:
        """The tools that the agent may call; None when it has no manifest.

        A version that is not installed of an agent that is may call none.
        """
        found = self.find(tenant, agent_id, version, at)
        if found is not None:
            return found.manifest.tools
        return None if self.find(tenant, agent_id, None, at) is None else frozenset()

    async def agent(self, tenant: str, agent_id: str, version: str | None = None) -> Installed:
        """The agent as installed now, or `NotFound`."""
        await self.load(tenant)
        found = self.find(tenant, agent_id, version)
        if found is None:
            raise NotFound(f"there is no agent {agent_id[:256]!r}")
        return found

    async def versions(self, tenant: str, agent_id: str) -> list[Installed]:
        """Every version of the agent that the tenant can use, newest first."""
        await self.load(tenant)
        found: dict[str, Installed] = {}
        for owner in (tenant, SHARED):
            for installed in reversed(self._shelves[owner].versions.get(agent_id, ())):
                found.setdefault(installed.manifest.version, installed)
        return list(found.values())

    def entry(self, installed: Installed) -> AgentInventoryEntry:
        """The agent as the inventory shows it."""
        return inventory_entry(installed.manifest, self._advertised)

    async def inventory(self, tenant: str) -> AgentInventoryResponse:
        """Every agent that the tenant can use, in its newest version, by id."""
        entries = [self.entry(found) for found in await self.newest(tenant)]
        return AgentInventoryResponse(agents=entries, total=len(entries))

    async def newest(self, tenant: str) -> list[Installed]:
        """Every agent that the tenant can use, in its newest version, by id."""
        await self.load(tenant)
        return list(self._newest(tenant))

    def _newest(self, tenant: str) -> Iterator[Installed]:
        names = {name for owner in (tenant, SHARED) for name in self._shelves[owner].versions}
        for name in sorted(names):
            found = self.find(tenant, name)
            if found is not None:
                yield found
