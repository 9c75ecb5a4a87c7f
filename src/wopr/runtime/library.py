"""The library of workflows: registered definitions, compiled once and kept while in use."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
import msgspec

from wopr.engine.graph import Graph, compile_graph
from wopr.nodes.registry import NodeRegistry, NodeType
from wopr.protocol.checking import compile_schema
from wopr.protocol.documents import Json, Unset, encode
from wopr.protocol.errors import NotFound
from wopr.protocol.workflow import WorkflowDefinition
from wopr.runtime.registration import check_definition
from wopr.security.masking import mask_members
from wopr.store.port import SHARED, WorkflowRow, Workflows

COMPILED_KEPT = 512
# How long this process may run a definition after another process registered a newer version.
NEWEST_KEPT_MS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A definition ready to run: its graph, and each node's type and decoded config."""

    workflow_id: str
    version: str
    graph: Graph
    types: dict[str, NodeType | None]
    configs: dict[str, Any]
    configurable_schema: jsonschema_rs.Draft202012Validator | None
    channel_schemas: dict[str, jsonschema_rs.Draft202012Validator]

    @property
    def definition(self) -> WorkflowDefinition:
        """The definition as types."""
        return self.graph.definition


class Library:
    """Finds a tenant's workflows, its own before the shared ones."""

    def __init__(self, store: Workflows, registry: NodeRegistry, now: Callable[[], int]) -> None:
        self._store = store
        self._registry = registry
        self._now = now
        self._compiled: OrderedDict[tuple[str, str, str], Compiled] = OrderedDict()
        self._newest: dict[tuple[str, str], tuple[int, Compiled]] = {}

    async def register(self, tenant: str, document: Json) -> tuple[WorkflowRow, bool]:
        """Check and keep a definition; the flag says whether it is new."""
        definition = check_definition(document, self._registry)
        body = encode(document)
        row = WorkflowRow(
            workflow_id=definition.id,
            version=definition.version,
            digest=hashlib.sha256(msgspec.json.encode(document, order="sorted")).digest(),
            body=body,
            registered_at=self._now(),
        )
        is_new = await self._store.put_workflow(tenant, row)
        self._newest.clear()
        return row, is_new

    async def row(self, tenant: str, workflow_id: str, version: str | None = None) -> WorkflowRow:
        """The registered definition as it came."""
        for owner in (tenant, SHARED):
            row = await self._store.workflow(owner, workflow_id, version)
            if row is not None:
                return row
        raise NotFound(f"there is no workflow {workflow_id!r}")

    async def newest(self, tenant: str, workflow_id: str) -> Compiled:
        """The version that a new run gets."""
        kept = self._newest.get((tenant, workflow_id))
        now = self._now()
        if kept is not None and now - kept[0] < NEWEST_KEPT_MS:
            return kept[1]
        row = await self.row(tenant, workflow_id)
        compiled = self._compile(tenant, row)
        self._newest[tenant, workflow_id] = (now, compiled)
        return compiled

    async def version(self, tenant: str, workflow_id: str, version: str) -> Compiled:
        """The version that an existing run was started with."""
        kept = self._compiled.get((tenant, workflow_id, version))
        if kept is not None:
            return kept
        return self._compile(tenant, await self.row(tenant, workflow_id, version))

    def _compile(self, tenant: str, row: WorkflowRow) -> Compiled:
        key = (tenant, row.workflow_id, row.version)
        kept = self._compiled.get(key)
        if kept is None:
            definition = msgspec.json.decode(row.body, type=WorkflowDefinition)
            kept = self._compiled[key] = _compiled(definition, self._registry)
            while len(self._compiled) > COMPILED_KEPT:
                self._compiled.popitem(last=False)
        return kept


def _compiled(definition: WorkflowDefinition, registry: NodeRegistry) -> Compiled:
    types = {node.id: registry.get(node.type_id) for node in definition.nodes}
    schema = definition.configurable_schema
    return Compiled(
        workflow_id=definition.id,
        version=definition.version,
        graph=compile_graph(definition, registry.reentrant, mask_members),
        types=types,
        configs={
            node.id: node_type.decode_config(node.config)
            for node in definition.nodes
            if (node_type := types[node.id]) is not None
        },
        configurable_schema=None if isinstance(schema, Unset) else compile_schema(schema),
        channel_schemas={
            name: compile_schema(channel.schema)
            for name, channel in definition.channels.items()
            if not isinstance(channel.schema, Unset)
        },
    )
