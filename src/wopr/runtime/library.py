"""The library of workflows: registered definitions, compiled once and kept while in use."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import anyio.to_thread
import msgspec

from wopr.agents.registry import Agents
from wopr.engine.fold_agents import SUPERVISOR
from wopr.engine.graph import Graph, compile_graph
from wopr.nodes.identity_hooks import SCRIPT_KEYS
from wopr.nodes.identity_hooks import TYPE_ID as IDENTITY_HOOKS
from wopr.nodes.model_supervisor import model_supervisor
from wopr.nodes.registry import NodeRegistry, NodeType, declared_as
from wopr.nodes.supervisor import asks_model
from wopr.protocol.checking import MOST_FAULTS, Fault, UserSchema, first_faults, refused
from wopr.protocol.documents import Json, JsonObject, Unset, encode
from wopr.protocol.emitters import granted
from wopr.protocol.errors import NotFound, Unavailable
from wopr.protocol.names import nearest, shown
from wopr.protocol.workflow import WorkflowDefinition, WorkflowNode
from wopr.runtime.child_workflows import (
    Interface,
    OutputMapping,
    child_inputs,
    child_workflows,
    input_warnings,
    interface_of,
    output_mappings,
)
from wopr.runtime.registration import (
    CONFORMANCE_PREFIX,
    MOCK_AGENT,
    DefinitionLimits,
    ModelFault,
    check_definition,
    definition_warnings,
    hook_of,
    is_small,
)
from wopr.runtime.subprocess_pool import SubprocessPool, Turns
from wopr.security.masking import mask_members
from wopr.store.port import SHARED, WorkflowRow, Workflows

T = TypeVar("T")

# Compiled definitions in memory: how many, and the bytes of their JSON and their compiled schemas.
COMPILED_KEPT = 512
COMPILED_BYTES = 64 * 1024 * 1024
# A definition of this size is compiled in a thread.
LARGE_BYTES = 64 * 1024
# How long the check of a large definition waits for those of others.
CHECK_WAIT_SECONDS = 30
# After so long the newest version is read again, behind the caller that finds it so old. A new
# version is heard of at once: from this process when it registers one, else by a notification.
NEWEST_KEPT_MS = 60_000
# How many ids of a tenant are compared for a suggestion, and how long they may be: the time of a
# comparison grows with the square of the length.
MOST_SUGGESTED = 200
LONGEST_SUGGESTED = 64
MODEL_SUPERVISOR = declared_as(model_supervisor)
_AGENT_FAMILIES = ("agent.", "runOrchestrator.")


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A definition ready to run: its graph, and each node's type and decoded config."""

    workflow_id: str
    version: str
    graph: Graph
    types: dict[str, NodeType | None]
    configs: dict[str, Any]
    configurable_schema: UserSchema | None
    channel_schemas: dict[str, UserSchema]
    # Whether an agent can act in its runs.
    has_agents: bool
    # The test hooks that its nodes use and that this host does not honour, by node.
    test_hooks: dict[str, str]
    # The inputs that it reads and the variables that it sets.
    interface: Interface
    # The size of its JSON, and of its schemas once they are compiled.
    held_bytes: int = 0

    @property
    def definition(self) -> WorkflowDefinition:
        """The definition as types."""
        return self.graph.definition

    def may_have_effect(self, node_id: str) -> bool:
        """Whether a node acts outside the run's log, as far as this process can tell.

        A node whose code this process lacks may do so.
        """
        node_type = self.types[node_id]
        return node_type is None or node_type.is_async


class Library:
    """Finds a tenant's workflows, its own before the shared ones."""

    def __init__(
        self,
        store: Workflows,
        registry: NodeRegistry,
        now: Callable[[], int],
        model_fault: ModelFault | None = None,
        *,
        limits: DefinitionLimits,
        subprocesses: SubprocessPool,
    ) -> None:
        # Where schemas of definitions are applied to values, when that may take long.
        self.subprocesses = subprocesses
        self._limits = limits
        self._checking = Turns(1)
        self._store = store
        self._registry = registry
        self._now = now
        self._model_fault = model_fault
        self._compiled: OrderedDict[tuple[str, str, str], Compiled] = OrderedDict()
        self._compiled_bytes = 0
        # Raises `QuotaExceeded` for a tenant that may register no more. Set once the host has
        # registered the definitions that it was started with.
        self.check_quota: Callable[[str], Awaitable[None]] | None = None
        # Set once the host knows its agents; their manifests are loaded with the workflows.
        self.agents: Agents | None = None
        # The newest version of each workflow with the time it was read, and reads under way.
        self._newest: dict[tuple[str, str], tuple[int, Compiled]] = {}
        self._reading: dict[tuple[str, str], asyncio.Task[Compiled]] = {}

    async def check(
        self,
        tenant: str,
        document: Json,
        *,
        may_author_conformance: bool = False,
        alongside: Collection[str] = (),
    ) -> WorkflowDefinition:
        """Return the definition, or refuse it with every fault in `details.errors`.

        `alongside` names workflows that are registered in the same batch.
        """
        check = partial(
            check_definition,
            document,
            self._registry,
            may_author_conformance=may_author_conformance,
            model_fault=self._model_fault,
            limits=self._limits,
        )
        definition = check() if is_small(document) else await self.check_large(tenant, check)
        children = list(child_workflows(document))
        known = {definition.id, *alongside}
        known |= await self._known(tenant, {child for _, child in children} - known)
        unknown = [
            Fault(path=path, message=f"there is no workflow {shown(child)!r}; register it first")
            for path, child in children
            if child not in known
        ]
        if unknown:
            raise refused(first_faults(unknown), "definition", code="unknown_child_workflow")
        return definition

    async def check_large(self, tenant: str, check: Callable[[], T]) -> T:
        """Check a large definition or manifest in a thread, one at a time: the event loop goes on.

        A check takes some seconds at most, by the limits of what is checked.
        """
        try:
            async with self._checking.turn(tenant, CHECK_WAIT_SECONDS):
                return await anyio.to_thread.run_sync(check)
        except Unavailable as busy:
            message = "The host checks other large definitions. Try again in 10 seconds."
            raise Unavailable(message, retry_after=10) from busy

    async def _known(self, tenant: str, workflow_ids: Collection[str]) -> set[str]:
        """Those of these workflows that the tenant can run."""
        if not workflow_ids:
            return set()
        own = await self._store.known_workflows(tenant, workflow_ids)
        return own | await self._store.known_workflows(SHARED, workflow_ids)

    async def register(
        self,
        tenant: str,
        document: Json,
        *,
        may_author_conformance: bool = False,
        alongside: Collection[str] = (),
    ) -> tuple[WorkflowRow, bool]:
        """Check and keep a definition; the flag says whether it is new."""
        definition = await self.check(
            tenant,
            document,
            may_author_conformance=may_author_conformance,
            alongside=alongside,
        )
        body = encode(document)
        row = WorkflowRow(
            workflow_id=definition.id,
            version=definition.version,
            digest=hashlib.sha256(msgspec.json.encode(document, order="sorted")).digest(),
            body=body,
            registered_at=self._now(),
        )
        if self.check_quota is not None:
            held = await self._store.workflow(tenant, row.workflow_id, row.version)
            if held is None:
                await self.check_quota(tenant)
        is_new = await self._store.put_workflow(tenant, row)
        self.forget_newest()
        return row, is_new

    async def warnings(self, tenant: str, document: JsonObject) -> list[Fault]:
        """Name what is accepted in a checked definition although it has no effect."""
        children: dict[str, Interface | None] = {}

        async def interface(child: str) -> Interface | None:
            if child not in children:
                children[child] = await self._interface(tenant, child, document)
            return children[child]

        found = definition_warnings(document)
        unset: list[tuple[OutputMapping, Interface, str]] = []
        for mapping in output_mappings(document):
            known = await interface(mapping.child) if mapping.names else None
            if known is not None:
                unset += [(mapping, known, parent) for parent in mapping.unset(known)]
            if len(unset) > MOST_FAULTS:
                break
        # Each is compared with the names that the child knows, so there may not be too many.
        for mapping, known, parent in unset[: MOST_FAULTS + 1]:
            warning = mapping.warning(known, parent)
            found += [] if warning is None else [warning]
        for path, child, given in child_inputs(document):
            is_other = bool(given) and child != document["id"]
            known = await interface(child) if is_other and len(found) <= MOST_FAULTS else None
            if known is not None:
                found += islice(input_warnings(path, child, known, given), MOST_FAULTS + 1)
        return first_faults(found)

    async def _interface(self, tenant: str, child: str, document: JsonObject) -> Interface | None:
        """What a workflow takes and sets: the one of this document, or another if it is there."""
        if child == document["id"]:
            definition = msgspec.convert(document, WorkflowDefinition)
            return await anyio.to_thread.run_sync(interface_of, definition)
        try:
            return (await self.newest(tenant, child)).interface
        except NotFound:
            return None

    def forget_newest(self) -> None:
        """Hear that something was registered: what is read from now on is the newest."""
        self._newest.clear()
        # Callers that wait for an earlier read still get its result; later callers read again.
        self._reading.clear()

    async def row(self, tenant: str, workflow_id: str, version: str | None = None) -> WorkflowRow:
        """The registered definition as it came."""
        row = await self._find(tenant, workflow_id, version)
        if row is None:
            raise NotFound(await self._no_workflow(tenant, workflow_id, version))
        return row

    async def _find(
        self, tenant: str, workflow_id: str, version: str | None = None
    ) -> WorkflowRow | None:
        for owner in (tenant, SHARED):
            row = await self._store.workflow(owner, workflow_id, version)
            if row is not None:
                return row
        return None

    async def _no_workflow(self, tenant: str, workflow_id: str, version: str | None) -> str:
        """Say what is missing, with the nearest id among the workflows that the tenant can run."""
        if version is not None and await self._known(tenant, [workflow_id]):
            return f"there is no version {shown(version)!r} of workflow {shown(workflow_id)!r}"
        names: set[str] = set()
        if len(workflow_id) <= LONGEST_SUGGESTED:
            for owner in (tenant, SHARED):
                names.update(await self._store.workflow_ids(owner, MOST_SUGGESTED))
        near = nearest(workflow_id, {name for name in names if len(name) <= LONGEST_SUGGESTED})
        return f"there is no workflow {shown(workflow_id)!r}" + (
            "" if near is None else f": did you mean {near!r}?"
        )

    async def newest(self, tenant: str, workflow_id: str) -> Compiled:
        """The version that a new run gets."""
        key = (tenant, workflow_id)
        kept = self._newest.get(key)
        if kept is None:
            # A caller that stops waiting does not stop the read: others wait for it too.
            return await asyncio.shield(self._read_newest(key))
        read_at, compiled = kept
        if self._now() - read_at >= NEWEST_KEPT_MS:
            self._read_newest(key)
        return compiled

    def _read_newest(self, key: tuple[str, str]) -> asyncio.Task[Compiled]:
        """The read of a workflow's newest version that is under way, or one that is begun now."""
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.create_task(self._load_newest(key))
            reading.add_done_callback(partial(self._keep_newest, key))
        return reading

    async def _load_newest(self, key: tuple[str, str]) -> Compiled:
        tenant, workflow_id = key
        return await self._compile(tenant, await self.row(tenant, workflow_id))

    def _keep_newest(self, key: tuple[str, str], reading: asyncio.Task[Compiled]) -> None:
        """Keep what was read, unless something was registered while it was read."""
        failed = reading.cancelled() or reading.exception() is not None
        if self._reading.get(key) is not reading:
            return
        del self._reading[key]
        if not failed:
            self._newest[key] = (self._now(), reading.result())

    async def version(self, tenant: str, workflow_id: str, version: str) -> Compiled:
        """The version that an existing run was started with."""
        kept = self._compiled.get((tenant, workflow_id, version))
        if kept is not None:
            return kept
        return await self._compile(tenant, await self.row(tenant, workflow_id, version))

    async def _compile(self, tenant: str, row: WorkflowRow) -> Compiled:
        if self.agents is not None:
            await self.agents.load(tenant)
        key = (tenant, row.workflow_id, row.version)
        kept = self._compiled.get(key)
        if kept is None:
            compile_row = partial(_compiled_row, row, self._registry)
            is_large = len(row.body) > LARGE_BYTES
            made = await anyio.to_thread.run_sync(compile_row) if is_large else compile_row()
            # Another caller may have compiled it while this one waited.
            kept = self._compiled.setdefault(key, made)
            if kept is made:
                self._compiled_bytes += made.held_bytes
                self._forget_compiled()
        return kept

    def _forget_compiled(self) -> None:
        """Drop what was compiled first, until the rest fits into the limits of the cache."""
        while len(self._compiled) > COMPILED_KEPT or (
            self._compiled_bytes > COMPILED_BYTES and len(self._compiled) > 1
        ):
            (tenant, workflow_id, _), dropped = self._compiled.popitem(last=False)
            self._compiled_bytes -= dropped.held_bytes
            if self._newest.get((tenant, workflow_id), (0, None))[1] is dropped:
                del self._newest[tenant, workflow_id]


def _type_of(
    node: WorkflowNode, definition: WorkflowDefinition, registry: NodeRegistry
) -> NodeType | None:
    """A node's type. Two have a variant: a supervisor by model, and a scripted `core.identity`."""
    known = registry.get(node.type_id)
    if node.type_id == SUPERVISOR and known is not None and asks_model(node.config):
        return MODEL_SUPERVISOR
    if node.type_id != "core.identity":
        return known
    is_scripted = not node.config.keys().isdisjoint(SCRIPT_KEYS)
    # Its inputs say what the agent that it works for pretends to hand back.
    is_for_agent = definition.id.startswith(CONFORMANCE_PREFIX) and not isinstance(
        definition.metadata.requires_agent_id, Unset
    )
    hooks = registry.get(IDENTITY_HOOKS) if is_scripted or is_for_agent else None
    return hooks if hooks is not None or is_scripted else known


def _compiled_row(row: WorkflowRow, registry: NodeRegistry) -> Compiled:
    definition = msgspec.json.decode(row.body, type=WorkflowDefinition)
    compiled = _compiled(definition, registry)
    schemas = [*compiled.channel_schemas.values()]
    if compiled.configurable_schema is not None:
        schemas.append(compiled.configurable_schema)
    held_bytes = len(row.body) + sum(schema.compiled_bytes for schema in schemas)
    return replace(compiled, held_bytes=held_bytes)


def _compiled(definition: WorkflowDefinition, registry: NodeRegistry) -> Compiled:
    types: dict[str, NodeType | None] = {}
    configs: dict[str, Any] = {}
    for node in definition.nodes:
        types[node.id] = node_type = _type_of(node, definition, registry)
        if node_type is not None:
            try:
                configs[node.id] = node_type.decode_config(node.config)
            except msgspec.ValidationError:
                # Registered by another version of the code: only that one can run this node.
                types[node.id] = None
    schema = definition.configurable_schema
    return Compiled(
        workflow_id=definition.id,
        version=definition.version,
        graph=compile_graph(definition, registry.reentrant, mask_members),
        types=types,
        configs=configs,
        configurable_schema=None if isinstance(schema, Unset) else UserSchema(schema),
        channel_schemas={
            name: UserSchema(channel.schema)
            for name, channel in definition.channels.items()
            if not isinstance(channel.schema, Unset)
        },
        has_agents=any(_is_for_agents(node) for node in definition.nodes),
        test_hooks={} if registry.get(MOCK_AGENT) else dict(_test_hooks(definition)),
        interface=interface_of(definition),
    )


def _test_hooks(definition: WorkflowDefinition) -> Iterator[tuple[str, str]]:
    for node in definition.nodes:
        hook = hook_of(definition, node)
        if hook is not None:
            yield node.id, hook


def _is_for_agents(node: WorkflowNode) -> bool:
    return not isinstance(node.agent, Unset) or any(
        event_type.startswith(_AGENT_FAMILIES) for event_type in granted(node.type_id)
    )
