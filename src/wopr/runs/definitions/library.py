"""The library of workflows: registered definitions, compiled once and cached."""

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

from wopr.agents.registry import AgentRegistry
from wopr.engine.fold.agents import SUPERVISOR
from wopr.engine.graph import Graph, compile_graph
from wopr.nodes.conformance import IDENTITY_HOOKS, SCRIPT_KEYS
from wopr.nodes.orchestrator.model_supervisor import model_supervisor
from wopr.nodes.orchestrator.supervisor import asks_model
from wopr.nodes.registry import NodeRegistry, NodeType, node_type_of
from wopr.process.subprocess_pool import SubprocessPool
from wopr.protocol.documents import Json, JsonObject, Unset, encode
from wopr.protocol.emitters import emittable_events
from wopr.protocol.errors import NotFound
from wopr.protocol.json_schema.validation import (
    MAX_FAULTS,
    Fault,
    UserSchema,
    faults_error,
    first_faults,
)
from wopr.protocol.suggestions import nearest, shorten_name
from wopr.protocol.workflow import WorkflowDefinition, WorkflowNode
from wopr.runs.definitions.checks import (
    CONFORMANCE_PREFIX,
    MOCK_AGENT,
    DefinitionLimits,
    ModelFault,
    check_definition,
    definition_warnings,
    is_small,
    test_hook_of,
)
from wopr.runs.definitions.child_workflows import (
    Interface,
    OutputMapping,
    child_inputs,
    child_workflows,
    input_warnings,
    interface_of,
    output_mappings,
)
from wopr.security.masking import mask_members
from wopr.store.port import SHARED, WorkflowRow, Workflows

T = TypeVar("T")

# Limits of the cache of compiled definitions: number, and bytes of their JSON and schemas.
MAX_COMPILED = 512
MAX_COMPILED_BYTES = 64 * 1024 * 1024
# A definition of this size is compiled in a thread.
LARGE_BYTES = 64 * 1024
# The newest version is read again after this time, in the background. A new version is known
# earlier: this process registered it, or received a notification.
NEWEST_KEPT_MS = 60_000
# Limits for suggestions: number and length of the ids that are compared. The time of a comparison
# grows with the square of the length.
MAX_SUGGESTED = 200
MAX_SUGGESTED_LENGTH = 64
MODEL_SUPERVISOR = node_type_of(model_supervisor)
_AGENT_FAMILIES = ("agent.", "runOrchestrator.")


@dataclass(frozen=True, slots=True, eq=False)
class CompiledWorkflow:
    """A definition that is ready to run: its graph, and the type and config of each node."""

    workflow_id: str
    version: str
    graph: Graph
    types: dict[str, NodeType | None]
    configs: dict[str, Any]
    configurable_schema: UserSchema | None
    channel_schemas: dict[str, UserSchema]
    # Whether an agent can act in its runs.
    has_agents: bool
    # Test hooks of its nodes that this host does not support, by node.
    test_hooks: dict[str, str]
    # The inputs that it reads and the variables that it sets.
    interface: Interface
    # The size of its JSON, and of its schemas once they are compiled.
    memory_bytes: int = 0

    @property
    def definition(self) -> WorkflowDefinition:
        """The definition as types."""
        return self.graph.definition

    def may_have_effect(self, node_id: str) -> bool:
        """Return whether a node may act outside the log of the run.

        True for a node whose code this process lacks.
        """
        node_type = self.types[node_id]
        return node_type is None or node_type.is_async


class Library:
    """Finds the workflows of a tenant: its own before the shared ones."""

    def __init__(
        self,
        store: Workflows,
        registry: NodeRegistry,
        now: Callable[[], int],
        model_fault: ModelFault | None = None,
        *,
        limits: DefinitionLimits,
        subprocesses: SubprocessPool,
        agents: AgentRegistry,
        check_quota: Callable[[str], Awaitable[None]],
    ) -> None:
        # Applies the schemas of definitions to values when that may take long.
        self.subprocesses = subprocesses
        self._limits = limits
        self._store = store
        self._registry = registry
        self._now = now
        self._model_fault = model_fault
        self._compiled: OrderedDict[tuple[str, str, str], CompiledWorkflow] = OrderedDict()
        self._compiled_bytes = 0
        self._agents = agents
        self._check_quota = check_quota
        # The newest version of each workflow with the time of its read, and reads in progress.
        self._newest: dict[tuple[str, str], tuple[int, CompiledWorkflow]] = {}
        self._reading: dict[tuple[str, str], asyncio.Task[CompiledWorkflow]] = {}

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
        definition = (
            check() if is_small(document) else await self.subprocesses.check_large(tenant, check)
        )
        children = list(child_workflows(document))
        known = {definition.id, *alongside}
        known |= await self._known(tenant, {child for _, child in children} - known)
        unknown = [
            Fault(
                path=path,
                message=f"there is no workflow {shorten_name(child)!r}; register it first",
            )
            for path, child in children
            if child not in known
        ]
        if unknown:
            raise faults_error(first_faults(unknown), "definition", code="unknown_child_workflow")
        return definition

    async def _known(self, tenant: str, workflow_ids: Collection[str]) -> set[str]:
        """Return the workflows among these that the tenant can run."""
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
        has_quota: bool = True,
    ) -> tuple[WorkflowRow, bool]:
        """Check and store a definition; return its row and whether it is new.

        `has_quota` is False for definitions that the host registers at its start. Raises
        `QuotaExceeded` for a tenant that may register no more.
        """
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
        if has_quota and not await self._store.workflow(tenant, row.workflow_id, row.version):
            await self._check_quota(tenant)
        is_new = await self._store.put_workflow(tenant, row)
        self.forget_newest()
        return row, is_new

    async def warnings(self, tenant: str, document: JsonObject) -> list[Fault]:
        """List the parts of a valid definition that have no effect."""
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
                unset += [(mapping, known, parent) for parent in mapping.unset_variables(known)]
            if len(unset) > MAX_FAULTS:
                break
        # Each warning compares names, so their number is limited.
        for mapping, known, parent in unset[: MAX_FAULTS + 1]:
            warning = mapping.warning(known, parent)
            found += [] if warning is None else [warning]
        for path, child, given in child_inputs(document):
            is_other = bool(given) and child != document["id"]
            known = await interface(child) if is_other and len(found) <= MAX_FAULTS else None
            if known is not None:
                found += islice(input_warnings(path, child, known, given), MAX_FAULTS + 1)
        return first_faults(found)

    async def _interface(self, tenant: str, child: str, document: JsonObject) -> Interface | None:
        """Return the interface of a workflow: this document or a registered one."""
        if child == document["id"]:
            definition = msgspec.convert(document, WorkflowDefinition)
            return await anyio.to_thread.run_sync(interface_of, definition)
        try:
            return (await self.newest(tenant, child)).interface
        except NotFound:
            return None

    def forget_newest(self) -> None:
        """Clear the cache of newest versions: a definition was registered."""
        self._newest.clear()
        # Callers that wait for an earlier read get its result. Later callers read again.
        self._reading.clear()

    async def row(self, tenant: str, workflow_id: str, version: str | None = None) -> WorkflowRow:
        """Return a registered definition. Raises `NotFound`."""
        row = await self._find(tenant, workflow_id, version)
        if row is None:
            raise NotFound(await self._missing_message(tenant, workflow_id, version))
        return row

    async def _find(
        self, tenant: str, workflow_id: str, version: str | None = None
    ) -> WorkflowRow | None:
        for owner in (tenant, SHARED):
            row = await self._store.workflow(owner, workflow_id, version)
            if row is not None:
                return row
        return None

    async def _missing_message(self, tenant: str, workflow_id: str, version: str | None) -> str:
        """Return the error message for a missing workflow, with the nearest known id."""
        if version is not None and await self._known(tenant, [workflow_id]):
            return f"there is no version {shorten_name(version)!r} of workflow {shorten_name(workflow_id)!r}"
        names: set[str] = set()
        if len(workflow_id) <= MAX_SUGGESTED_LENGTH:
            for owner in (tenant, SHARED):
                names.update(await self._store.workflow_ids(owner, MAX_SUGGESTED))
        near = nearest(workflow_id, {name for name in names if len(name) <= MAX_SUGGESTED_LENGTH})
        return f"there is no workflow {shorten_name(workflow_id)!r}" + (
            "" if near is None else f": did you mean {near!r}?"
        )

    async def newest(self, tenant: str, workflow_id: str) -> CompiledWorkflow:
        """Return the version for a new run."""
        key = (tenant, workflow_id)
        cached = self._newest.get(key)
        if cached is None:
            # Cancelling one caller does not cancel the read: others wait for it too.
            return await asyncio.shield(self._read_newest(key))
        read_at, compiled = cached
        if self._now() - read_at >= NEWEST_KEPT_MS:
            self._read_newest(key)
        return compiled

    def _read_newest(self, key: tuple[str, str]) -> asyncio.Task[CompiledWorkflow]:
        """Return the read of the newest version that is in progress, or start one."""
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.create_task(self._load_newest(key))
            reading.add_done_callback(partial(self._cache_newest, key))
        return reading

    async def _load_newest(self, key: tuple[str, str]) -> CompiledWorkflow:
        tenant, workflow_id = key
        return await self._compile(tenant, await self.row(tenant, workflow_id))

    def _cache_newest(self, key: tuple[str, str], reading: asyncio.Task[CompiledWorkflow]) -> None:
        """Cache the result, unless a definition was registered during the read."""
        failed = reading.cancelled() or reading.exception() is not None
        if self._reading.get(key) is not reading:
            return
        del self._reading[key]
        if not failed:
            self._newest[key] = (self._now(), reading.result())

    async def version(self, tenant: str, workflow_id: str, version: str) -> CompiledWorkflow:
        """Return the version that an existing run was started with."""
        cached = self._compiled.get((tenant, workflow_id, version))
        if cached is not None:
            return cached
        return await self._compile(tenant, await self.row(tenant, workflow_id, version))

    async def _compile(self, tenant: str, row: WorkflowRow) -> CompiledWorkflow:
        await self._agents.load(tenant)
        key = (tenant, row.workflow_id, row.version)
        cached = self._compiled.get(key)
        if cached is None:
            compile_row = partial(_compile_row, row, self._registry)
            is_large = len(row.body) > LARGE_BYTES
            compiled = await anyio.to_thread.run_sync(compile_row) if is_large else compile_row()
            # Another caller may have compiled it during this compilation.
            cached = self._compiled.setdefault(key, compiled)
            if cached is compiled:
                self._compiled_bytes += compiled.memory_bytes
                self._evict_compiled()
        return cached

    def _evict_compiled(self) -> None:
        """Drop the oldest entries until the cache is within its limits."""
        while len(self._compiled) > MAX_COMPILED or (
            self._compiled_bytes > MAX_COMPILED_BYTES and len(self._compiled) > 1
        ):
            (tenant, workflow_id, _), dropped = self._compiled.popitem(last=False)
            self._compiled_bytes -= dropped.memory_bytes
            if self._newest.get((tenant, workflow_id), (0, None))[1] is dropped:
                del self._newest[tenant, workflow_id]


def _type_of(
    node: WorkflowNode, definition: WorkflowDefinition, registry: NodeRegistry
) -> NodeType | None:
    """Return the type of a node. A supervisor and `core.identity` have a variant."""
    known = registry.get(node.type_id)
    if node.type_id == SUPERVISOR and known is not None and asks_model(node.config):
        return MODEL_SUPERVISOR
    if node.type_id != "core.identity":
        return known
    is_scripted = not node.config.keys().isdisjoint(SCRIPT_KEYS)
    # Its inputs are the result that its agent returns in the test.
    is_for_agent = definition.id.startswith(CONFORMANCE_PREFIX) and not isinstance(
        definition.metadata.requires_agent_id, Unset
    )
    hooks = registry.get(IDENTITY_HOOKS) if is_scripted or is_for_agent else None
    return hooks if hooks is not None or is_scripted else known


def _compile_row(row: WorkflowRow, registry: NodeRegistry) -> CompiledWorkflow:
    definition = msgspec.json.decode(row.body, type=WorkflowDefinition)
    compiled = _compile_definition(definition, registry)
    schemas = [*compiled.channel_schemas.values()]
    if compiled.configurable_schema is not None:
        schemas.append(compiled.configurable_schema)
    memory_bytes = len(row.body) + sum(schema.compiled_bytes for schema in schemas)
    return replace(compiled, memory_bytes=memory_bytes)


def _compile_definition(definition: WorkflowDefinition, registry: NodeRegistry) -> CompiledWorkflow:
    types: dict[str, NodeType | None] = {}
    configs: dict[str, Any] = {}
    for node in definition.nodes:
        types[node.id] = node_type = _type_of(node, definition, registry)
        if node_type is not None:
            try:
                configs[node.id] = node_type.decode_config(node.config)
            except msgspec.ValidationError:
                # Registered by another version of the code. Only that version can run this node.
                types[node.id] = None
    schema = definition.configurable_schema
    return CompiledWorkflow(
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
        hook = test_hook_of(definition, node)
        if hook is not None:
            yield node.id, hook


def _is_for_agents(node: WorkflowNode) -> bool:
    return not isinstance(node.agent, Unset) or any(
        event_type.startswith(_AGENT_FAMILIES) for event_type in emittable_events(node.type_id)
    )
