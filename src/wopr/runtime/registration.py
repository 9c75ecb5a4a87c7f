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
from wopr.protocol.checking import Fault, refused, schema_faults, shape_faults
from wopr.protocol.documents import Json, Unset
from wopr.protocol.errors import CapabilityRequired
from wopr.protocol.schemas import export
from wopr.protocol.workflow import WorkflowDefinition, WorkflowNode
from wopr.security.plaintext import credentials_in

# Types that the protocol gates: a host that does not advertise the capability refuses them.
GATED_TYPES = {
    "core.conversationGate": "conversationPrimitive",
    "core.orchestrator.supervisor": "agents.orchestrator",
    "core.dispatch": "agents.dispatch",
    "core.conformance.mock-agent": "conformance.mockAgent",
}
CONFORMANCE_PREFIX = "conformance-"


def check_definition(document: Json, registry: NodeRegistry) -> WorkflowDefinition:
    """Return the definition, or refuse it with every fault in `details.errors`."""
    faults = list(shape_faults(document, _shape(), WorkflowDefinition))
    if faults:
        raise refused(faults, "definition")
    definition = msgspec.convert(document, WorkflowDefinition)
    _check_capabilities(definition, registry)
    faults = [*_credential_faults(document), *_meaning_faults(definition, registry)]
    if faults:
        raise refused(faults, "definition")
    return definition


@cache
def _shape() -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(export()["workflow-definition"])


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


def _credential_faults(document: Json) -> Iterator[Fault]:
    """A definition is kept and shown exactly as it came, so no credential may come with it."""
    for path in credentials_in(document):
        yield Fault(path=path, message="looks like a credential; name one with credentialsRef")


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
        yield from schema_faults("configurableSchema", definition.configurable_schema)
    for name, channel in definition.channels.items():
        if not isinstance(channel.schema, Unset):
            yield from schema_faults(f"channels.{name}.schema", channel.schema)


def _cycle_faults(definition: WorkflowDefinition, registry: NodeRegistry) -> Iterator[Fault]:
    found = cycle(definition, registry.reentrant)
    if found:
        yield Fault(
            path="edges",
            message=f"{' → '.join([*found, found[0]])} is a cycle without a core.loop node in it",
        )
