"""Checks a workflow definition before it is registered, and names every fault at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache

import jsonschema_rs
import msgspec

from wopr.engine.expressions import condition_faults
from wopr.engine.graph import cycle
from wopr.engine.ports import port_faults
from wopr.nodes.registry import NodeRegistry, NodeType
from wopr.protocol.documents import Closed, Json, JsonObject, Unset
from wopr.protocol.errors import CapabilityRequired, Refused
from wopr.protocol.schemas import export
from wopr.protocol.workflow import WorkflowDefinition, WorkflowNode

# Types that the protocol gates: a host that does not advertise the capability refuses them.
GATED_TYPES = {
    "core.conversationGate": "conversationPrimitive",
    "core.orchestrator.supervisor": "agents.orchestrator",
    "core.dispatch": "agents.dispatch",
    "core.conformance.mock-agent": "conformance.mockAgent",
}
CONFORMANCE_PREFIX = "conformance-"


class Fault(Closed, frozen=True, kw_only=True):
    """One thing that is wrong with a definition, and where."""

    path: str
    message: str


def check_definition(document: Json, registry: NodeRegistry) -> WorkflowDefinition:
    """Return the definition, or refuse it with every fault in `details.errors`."""
    faults = list(_shape_faults(document))
    if faults:
        raise refused(faults)
    definition = msgspec.convert(document, WorkflowDefinition)
    _check_capabilities(definition, registry)
    faults = list(_meaning_faults(definition, registry))
    if faults:
        raise refused(faults)
    return definition


def refused(faults: list[Fault]) -> Refused:
    """The error that lists the faults."""
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return Refused(
        f"{first.path or 'definition'}: {first.message}{more}",
        field=first.path,
        errors=[msgspec.to_builtins(fault) for fault in faults],
    )


@cache
def _shape() -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(export()["workflow-definition"])


def _shape_faults(document: Json) -> Iterator[Fault]:
    found = [
        Fault(path=".".join(str(step) for step in error.instance_path), message=error.message)
        for error in _shape().iter_errors(document)
    ]
    yield from found
    if not found:
        try:
            msgspec.convert(document, WorkflowDefinition)
        except msgspec.ValidationError as fault:
            message, _, path = str(fault).partition(" - at ")
            yield Fault(path=path.strip("`$.") or "", message=message)


def _check_capabilities(definition: WorkflowDefinition, registry: NodeRegistry) -> None:
    """A gated type is refused before anything else, with the capability that it needs."""
    for node in definition.nodes:
        capability = GATED_TYPES.get(node.type_id)
        if capability is not None and registry.get(node.type_id) is None:
            raise CapabilityRequired(
                f"node {node.id}: {node.type_id} needs {capability}, "
                "which this host does not advertise",
                requiredCapability=capability,
                offendingTypeId=node.type_id,
                nodeId=node.id,
            )


def _meaning_faults(definition: WorkflowDefinition, registry: NodeRegistry) -> Iterator[Fault]:
    node_ids = [node.id for node in definition.nodes]
    yield from _duplicates(node_ids, "nodes")
    yield from _duplicates([edge.id for edge in definition.edges], "edges")
    yield from _duplicates([variable.name for variable in definition.variables], "variables")
    variables = {variable.name for variable in definition.variables}
    for index, node in enumerate(definition.nodes):
        yield from _node_faults(f"nodes.{index}", definition, node, registry)
        for port, message in port_faults(node.inputs, node_ids=node_ids, variable_names=variables):
            yield Fault(path=f"nodes.{index}.inputs.{port}", message=message)
    edge_faults = list(_edge_faults(definition, set(node_ids)))
    yield from edge_faults
    yield from _schema_faults(definition)
    if not edge_faults:
        yield from _cycle_faults(definition, registry)


def _duplicates(names: list[str], path: str) -> Iterator[Fault]:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            yield Fault(path=f"{path}.{index}", message=f"{name!r} is there twice")
        seen.add(name)


def _node_faults(
    path: str, definition: WorkflowDefinition, node: WorkflowNode, registry: NodeRegistry
) -> Iterator[Fault]:
    node_type = registry.get(node.type_id)
    if node_type is None:
        yield Fault(path=f"{path}.typeId", message=f"this host has no node type {node.type_id!r}")
        return
    if node_type.conformance_only and not definition.id.startswith(CONFORMANCE_PREFIX):
        yield Fault(
            path=f"{path}.typeId",
            message=f"{node.type_id} is for workflows named {CONFORMANCE_PREFIX}* only",
        )
    yield from _config_faults(path, node, node_type)


def _config_faults(path: str, node: WorkflowNode, node_type: NodeType) -> Iterator[Fault]:
    try:
        schema = msgspec.json.schema(node_type.config_type)
        errors = list(jsonschema_rs.Draft202012Validator(schema).iter_errors(node.config))
    except (TypeError, ValueError):
        errors = []
    for error in errors:
        steps = [f"{path}.config", *(str(step) for step in error.instance_path)]
        yield Fault(path=".".join(steps), message=error.message)
    if not errors:
        try:
            node_type.decode_config(node.config)
        except (msgspec.ValidationError, ValueError) as fault:
            yield Fault(path=f"{path}.config", message=str(fault))


def _edge_faults(definition: WorkflowDefinition, node_ids: Collection[str]) -> Iterator[Fault]:
    for index, edge in enumerate(definition.edges):
        for end, node_id in (
            ("sourceNodeId", edge.source_node_id),
            ("targetNodeId", edge.target_node_id),
        ):
            if node_id not in node_ids:
                yield Fault(path=f"edges.{index}.{end}", message=f"there is no node {node_id!r}")
        if not isinstance(edge.condition, Unset):
            for message in condition_faults(edge.condition):
                yield Fault(path=f"edges.{index}.condition", message=message)


def _schema_faults(definition: WorkflowDefinition) -> Iterator[Fault]:
    if not isinstance(definition.configurable_schema, Unset):
        yield from _schema_fault("configurableSchema", definition.configurable_schema)
    for name, channel in definition.channels.items():
        if not isinstance(channel.schema, Unset):
            yield from _schema_fault(f"channels.{name}.schema", channel.schema)


def _schema_fault(path: str, schema: JsonObject) -> Iterator[Fault]:
    try:
        compile_schema(schema)
    except ValueError as fault:
        yield Fault(path=path, message=f"not a JSON Schema (draft 2020-12): {fault}")


def compile_schema(schema: JsonObject) -> jsonschema_rs.Draft202012Validator:
    """Compile a user's schema; it can never make the host fetch another document."""

    def refuse(uri: str) -> Json:
        raise ValueError(f"references to other documents are not followed: {uri}")

    return jsonschema_rs.Draft202012Validator(schema, retriever=refuse)


def _cycle_faults(definition: WorkflowDefinition, registry: NodeRegistry) -> Iterator[Fault]:
    found = cycle(definition, registry.reentrant)
    if found:
        yield Fault(
            path="edges",
            message=f"{' → '.join([*found, found[0]])} is a cycle without a core.loop node in it",
        )
