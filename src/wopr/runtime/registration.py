"""Checks a workflow definition before it is registered, and names every fault at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from typing import TypeAlias

import jsonschema_rs
import msgspec

from wopr.engine.contexts import is_context
from wopr.engine.expression_tokens import is_list, is_object
from wopr.engine.expressions import condition_faults
from wopr.engine.fold_agents import DISPATCH, SUPERVISOR
from wopr.engine.graph import cycle
from wopr.engine.ports import port_faults
from wopr.fleet.observe import OBSERVED_WORKFLOW
from wopr.nodes.registry import NodeRegistry, NodeType, members_of
from wopr.nodes.supervisor import HOOKS, is_undirected
from wopr.nodes.typed import schema_of
from wopr.protocol.checking import Fault, fault_of, refused, schema_faults, shape_faults
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.errors import CapabilityRequired, Refused
from wopr.protocol.schemas import export
from wopr.protocol.workflow import WorkflowDefinition, WorkflowNode
from wopr.security.plaintext import credentials_in

SUB_WORKFLOW = "core.subWorkflow"
MOCK_AGENT = "core.conformance.mock-agent"
# Types that the protocol gates: a host that does not advertise the capability refuses them.
GATED_TYPES = {
    "core.conversationGate": "conversationPrimitive",
    "core.orchestrator.supervisor": "agents.orchestrator",
    "core.dispatch": "agents.dispatch",
    MOCK_AGENT: "conformance.mockAgent",
}
CONFORMANCE_PREFIX = "conformance-"
ConfigFaults: TypeAlias = Callable[[JsonObject], Iterable[tuple[str, str]]]
# Config keys that script a node, by type: the test hooks.
CONFORMANCE_KEYS = {
    SUPERVISOR: HOOKS,
    "core.conversationGate": ("mockAutoResume",),
    "core.identity": ("memoryAction", "emitDuplicateMessageId"),
}


def check_definition(
    document: Json, registry: NodeRegistry, *, may_author_conformance: bool = False
) -> WorkflowDefinition:
    """Return the definition, or refuse it with every fault in `details.errors`."""
    faults = list(shape_faults(document, _shape(), WorkflowDefinition))
    if faults:
        raise refused(faults, "definition")
    definition = msgspec.convert(document, WorkflowDefinition)
    _check_capabilities(definition, registry)
    may_script = may_author_conformance or definition.id.startswith(CONFORMANCE_PREFIX)
    if not may_script or registry.get(MOCK_AGENT) is None:
        _refuse_conformance(definition, registry)
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


def _refuse_conformance(definition: WorkflowDefinition, registry: NodeRegistry) -> None:
    """Types and hooks that script a run are not for production workflows."""
    found = [
        (node, fault)
        for index, node in enumerate(definition.nodes)
        for fault in _script_faults(f"nodes.{index}", node, registry)
    ]
    if found:
        first, fault = found[0]
        raise Refused(
            f"node {first.id}: {fault.message}",
            field=fault.path,
            errors=[msgspec.to_builtins(each) for _, each in found],
            requiredCapability="conformance.mockAgent",
            offendingTypeId=first.type_id,
            nodeId=first.id,
        )


def _script_faults(path: str, node: WorkflowNode, registry: NodeRegistry) -> Iterator[Fault]:
    who = (
        f"is for hosts with --conformance, and there for workflows named {CONFORMANCE_PREFIX}*, "
        "or for a key with the scope conformance:author"
    )
    node_type = registry.get(node.type_id)
    if node_type is not None and node_type.conformance_only:
        yield Fault(path=f"{path}.typeId", message=f"{node.type_id} {who}")
    for hook in CONFORMANCE_KEYS.get(node.type_id, ()):
        if hook in node.config:
            yield Fault(path=f"{path}.config.{hook}", message=f"config.{hook} {who}")


def hook_of(definition: WorkflowDefinition, node: WorkflowNode) -> str | None:
    """Name the test hook that a node uses, if it uses one."""
    if node.type_id == MOCK_AGENT:
        return MOCK_AGENT
    for hook in CONFORMANCE_KEYS.get(node.type_id, ()):
        if hook in node.config:
            return f"config.{hook}"
    is_fixture = definition.id.startswith(CONFORMANCE_PREFIX)
    if is_fixture and node.type_id == SUPERVISOR and is_undirected(node.config):
        return "the default script of conformance workflows"
    return None


def child_workflows(definition: JsonObject) -> Iterator[tuple[str, str]]:
    """Name every workflow that a definition starts by a fixed id, with the place of the id."""
    for index, node in enumerate(members_of(definition, "nodes")):
        path, config = f"nodes.{index}.config", node.get("config")
        if not is_object(config):
            continue
        if node.get("typeId") == SUB_WORKFLOW and isinstance(config.get("workflowId"), str):
            yield f"{path}.workflowId", config["workflowId"]
        if node.get("typeId") == SUPERVISOR:
            for rule, decision in enumerate(members_of(config, "rules")):
                yield from _workers(f"{path}.rules.{rule}", decision.get("decision"))


def _workers(path: str, decision: Json) -> Iterator[tuple[str, str]]:
    workers: Json = decision.get("nextWorkerIds") if is_object(decision) else None
    for index, worker in enumerate(workers if is_list(workers) else ()):
        if isinstance(worker, str):
            yield f"{path}.decision.nextWorkerIds.{index}", worker


def _credential_faults(document: Json) -> Iterator[Fault]:
    """A definition is kept and shown exactly as it came, so no credential may come with it."""
    for path in credentials_in(document):
        yield Fault(path=path, message="looks like a credential; name one with credentialsRef")


def _meaning_faults(definition: WorkflowDefinition, registry: NodeRegistry) -> Iterator[Fault]:
    if definition.id == OBSERVED_WORKFLOW:
        yield Fault(path="id", message="is what runs are of that were observed and not run here")
    node_ids = [node.id for node in definition.nodes]
    yield from _duplicates(node_ids, "nodes")
    yield from _duplicates([edge.id for edge in definition.edges], "edges")
    yield from _duplicates([variable.name for variable in definition.variables], "variables")
    variables = {variable.name for variable in definition.variables}
    for index, node in enumerate(definition.nodes):
        yield from _node_faults(f"nodes.{index}", definition, node, registry)
        for port, message in port_faults(node.inputs, node_ids=node_ids, variable_names=variables):
            yield Fault(path=f"nodes.{index}.inputs.{port}", message=message)
    yield from _agent_faults(definition)
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
    yield from _config_faults(path, node, node_type)


def _config_faults(path: str, node: WorkflowNode, node_type: NodeType) -> Iterator[Fault]:
    found = [*_config_shape_faults(path, node, node_type)]
    # A config type may know rules that its schema cannot say; it names every breach of them.
    explain: ConfigFaults | None = getattr(node_type.config_type, "faults", None)
    if explain is not None:
        explained = explain(node.config)
        found += [Fault(path=f"{path}.config.{where}", message=why) for where, why in explained]
    yield from found
    if not found:
        try:
            node_type.decode_config(node.config)
        except (msgspec.ValidationError, ValueError) as fault:
            yield Fault(path=f"{path}.config", message=str(fault))


def _config_shape_faults(path: str, node: WorkflowNode, node_type: NodeType) -> Iterator[Fault]:
    try:
        schema = schema_of(node_type.config_type)
        errors = list(jsonschema_rs.Draft202012Validator(schema).iter_errors(node.config))
    except (TypeError, ValueError):
        return
    yield from (fault_of(error, f"{path}.config") for error in errors)


def _agent_faults(definition: WorkflowDefinition) -> Iterator[Fault]:
    types = [node.type_id for node in definition.nodes]
    for index, node in enumerate(definition.nodes):
        if not isinstance(node.agent, Unset) and not isinstance(node.agent.channel, Unset):
            message = "agent.channel needs agents.deployment, which this host does not advertise"
            yield Fault(path=f"nodes.{index}.agent.channel", message=message)
        if node.type_id == DISPATCH and SUPERVISOR not in types:
            message = f"{DISPATCH} needs a {SUPERVISOR} in the same workflow"
            yield Fault(path=f"nodes.{index}.typeId", message=message)


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
        if is_context(name):
            message = "is the channel of a context that agents share; use another name"
            yield Fault(path=f"channels.{name}", message=message)
        if not isinstance(channel.schema, Unset):
            yield from schema_faults(f"channels.{name}.schema", channel.schema)


def _cycle_faults(definition: WorkflowDefinition, registry: NodeRegistry) -> Iterator[Fault]:
    found = cycle(definition, registry.reentrant)
    if found:
        yield Fault(
            path="edges",
            message=f"{' → '.join([*found, found[0]])} is a cycle without a core.loop node in it",
        )
