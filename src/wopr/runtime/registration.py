"""Checks a workflow definition before it is registered, and names every fault at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias, TypeVar

import msgspec

from wopr.engine.contexts import is_context
from wopr.engine.expressions import ExpressionUse, condition_faults, use_fault
from wopr.engine.fold_agents import DISPATCH, SUPERVISOR
from wopr.engine.graph import cycle
from wopr.engine.ports import port_faults
from wopr.fleet.observe import OBSERVED_WORKFLOW
from wopr.nodes.registry import NodeRegistry, NodeType, members_of
from wopr.nodes.supervisor import HOOKS, is_undirected
from wopr.nodes.typed import schema_of
from wopr.protocol.checking import Fault, Shape, closed, refused, schema_faults, shape_faults
from wopr.protocol.documents import Json, JsonObject, Unset, is_list, is_object
from wopr.protocol.errors import CapabilityRequired, Refused
from wopr.protocol.names import nearest, not_there, unknown_key
from wopr.protocol.schemas import export
from wopr.protocol.workflow import (
    NodeSettings,
    WorkflowDefinition,
    WorkflowEdge,
    WorkflowNode,
    WorkflowSettings,
    WorkflowTrigger,
    WorkflowVariable,
)
from wopr.security.plaintext import credentials_in

T = TypeVar("T", bound=msgspec.Struct)

# Names that other systems give to settings of nodes and workflows.
SETTING_ALIASES = {
    "maxRetry": "maxRetries",
    "maxAttempts": "maxRetries",
    "retries": "maxRetries",
    "retry": "maxRetries",
    "retryCount": "maxRetries",
    "timeoutMs": "timeout",
    "timeoutSeconds": "timeout",
    "deadline": "timeout",
    "retryPolicy": "backoff",
    "retryDelay": "backoff",
    "retryDelayMs": "backoff",
    "maxIterations": "maxLoopbackIterations",
    "maxLoopIterations": "maxLoopbackIterations",
    "maxLoops": "maxLoopbackIterations",
    "recursionLimit": "maxLoopbackIterations",
}
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
# Prefixes of the node types that every host has.
_OWN_TYPES = ("core.", "wopr.")
ConfigFaults: TypeAlias = Callable[[JsonObject], Iterable[tuple[str, str]]]
ConfigExpressions: TypeAlias = Callable[[JsonObject], Iterable[ExpressionUse]]
# Config keys that script a node, by type: the test hooks.
CONFORMANCE_KEYS = {
    SUPERVISOR: HOOKS,
    "core.conversationGate": ("mockAutoResume",),
    "core.identity": ("memoryAction", "emitDuplicateMessageId"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The parts of a definition that can be read, each by its position in the document.

    A definition with faults in its shape is checked as far as its other parts allow, so that one
    answer names every fault.
    """

    nodes: Mapping[int, WorkflowNode]
    edges: Mapping[int, WorkflowEdge]
    variables: Mapping[int, WorkflowVariable]
    triggers: Mapping[int, WorkflowTrigger]
    # The ids of all nodes, also of those that cannot be read.
    node_ids: Mapping[int, str]
    # Whether it is named as conformance workflows are.
    is_fixture: bool


def check_definition(
    document: Json, registry: NodeRegistry, *, may_author_conformance: bool = False
) -> WorkflowDefinition:
    """Return the definition, or refuse it with every fault in `details.errors`."""
    shape = list(shape_faults(document, _shape(), WorkflowDefinition))
    if shape:
        raise refused([*shape, *_other_faults(document, registry)], "definition")
    definition = msgspec.convert(document, WorkflowDefinition)
    _check_capabilities(definition, registry)
    may_script = may_author_conformance or definition.id.startswith(CONFORMANCE_PREFIX)
    if not may_script or registry.get(MOCK_AGENT) is None:
        _refuse_conformance(definition, registry)
    faults = [*_other_faults(document, registry), *_schema_faults(definition)]
    if definition.id == OBSERVED_WORKFLOW:
        message = f"{OBSERVED_WORKFLOW!r} is reserved for runs that other systems executed"
        faults.append(Fault(path="id", message=message))
    if faults:
        raise refused(faults, "definition")
    return definition


def definition_warnings(document: Json) -> list[Fault]:
    """Name the settings of an accepted definition that this host ignores."""
    return [
        Fault(path=path, message=f"unknown key {name!r} is kept and has no effect on this host")
        for path, name, right in _unknown_settings(document)
        if right is None
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputMapping:
    """The variables that a node takes over from a child workflow, with the place of the mapping."""

    path: str
    child: str
    names: Mapping[str, str]
    # Names of the values that the node gives to the child. They are variables of its run too.
    given: Collection[str]

    def warnings(self, definition: JsonObject) -> Iterator[Fault]:
        """Name the variables that the child, as it is defined, does not set.

        A node type of a user may set any variable. With one of these in the child, only a name
        that is close to a known one is reported.
        """
        nodes = list(members_of(definition, "nodes"))
        known = {*self.given, *_variables_of(definition)}
        is_closed = all(str(each.get("typeId")).startswith(_OWN_TYPES) for each in nodes)
        for parent, name in self.names.items():
            if name not in known and (is_closed or nearest(name, known)):
                message = f"workflow {self.child!r} sets no variable {name!r}, so nothing is mapped"
                hint = not_there(name, known)
                yield Fault(path=f"{self.path}.{parent}", message=f"{message}: {hint}")


def output_mappings(definition: JsonObject) -> Iterator[OutputMapping]:
    """Find the output mappings that concern one child workflow."""
    for index, node in enumerate(members_of(definition, "nodes")):
        path, config = f"nodes.{index}.config", node.get("config")
        if not is_object(config):
            continue
        if node.get("typeId") == SUB_WORKFLOW and isinstance(config.get("workflowId"), str):
            yield OutputMapping(
                path=f"{path}.outputMapping",
                child=config["workflowId"],
                names=_texts(config.get("outputMapping")),
                given={*_object(node.get("inputs")), *_object(config.get("inputMapping"))},
            )
        if node.get("typeId") == DISPATCH:
            inputs = _object(config.get("perWorkerInputMappings"))
            for worker, mapping in _object(config.get("perWorkerOutputMappings")).items():
                yield OutputMapping(
                    path=f"{path}.perWorkerOutputMappings.{worker}",
                    child=worker,
                    names=_texts(mapping),
                    given=_object(inputs.get(worker, config.get("inputMapping"))),
                )


def _variables_of(definition: JsonObject) -> Iterator[str]:
    """Name the variables that a definition declares or that its nodes set by a fixed name."""
    for declared in members_of(definition, "variables"):
        yield str(declared.get("name"))
    for node in members_of(definition, "nodes"):
        config = _object(node.get("config"))
        yield from (str(config[key]) for key in ("name", "channelName") if key in config)
        mappings = _object(config.get("perWorkerOutputMappings")).values()
        for mapping in (config.get("outputMapping"), *mappings):
            yield from _object(mapping)


def _object(value: Json) -> JsonObject:
    return value if is_object(value) else {}


def _texts(value: Json) -> dict[str, str]:
    return {key: text for key, text in _object(value).items() if isinstance(text, str)}


@cache
def _shape() -> Shape:
    return Shape(export()["workflow-definition"])


def _other_faults(document: Json, registry: NodeRegistry) -> Iterator[Fault]:
    """Find the faults that the shape of a definition does not show."""
    parts = _readable_parts(document)
    yield from _credential_faults(document)
    yield from _setting_faults(document)
    yield from _meaning_faults(parts, registry)


def _readable_parts(document: Json) -> _Parts:
    definition: JsonObject = document if is_object(document) else {}
    return _Parts(
        nodes=_readable(definition.get("nodes"), WorkflowNode),
        edges=_readable(definition.get("edges"), WorkflowEdge),
        variables=_readable(definition.get("variables"), WorkflowVariable),
        triggers=_readable(definition.get("triggers"), WorkflowTrigger),
        node_ids={
            index: node["id"]
            for index, node in enumerate(members_of(definition, "nodes"))
            if isinstance(node.get("id"), str)
        },
        is_fixture=str(definition.get("id")).startswith(CONFORMANCE_PREFIX),
    )


def _readable(parts: Json, kind: type[T]) -> dict[int, T]:
    """Convert the parts of a list that can be converted; keys that are unknown do not matter."""
    found: dict[int, T] = {}
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    for index, part in enumerate(parts if is_list(parts) else []):
        if is_object(part):
            with suppress(msgspec.ValidationError):
                members = {key: value for key, value in part.items() if key in known}
                found[index] = msgspec.convert(members, kind)
    return found


def _setting_faults(document: Json) -> Iterator[Fault]:
    for path, name, right in _unknown_settings(document):
        if right is not None:
            unit = " (milliseconds)" if right == "timeout" else ""
            message = f"unknown key {name!r}: did you mean {right!r}{unit}?"
            yield Fault(path=path, message=message)


def _unknown_settings(document: Json) -> Iterator[tuple[str, str, str | None]]:
    """Find unknown keys of settings: their path, their name, and the setting that is meant."""
    definition: JsonObject = document if is_object(document) else {}
    holders: list[tuple[str, Json, type[msgspec.Struct]]] = [
        ("settings", definition.get("settings"), WorkflowSettings)
    ]
    for index, node in enumerate(members_of(definition, "nodes")):
        holders.append((f"nodes.{index}.settings", node.get("settings"), NodeSettings))
    for path, settings, kind in holders:
        known = [field.encode_name for field in msgspec.structs.fields(kind)]
        for name in settings if is_object(settings) else ():
            if name not in known:
                alias = SETTING_ALIASES.get(name)
                yield f"{path}.{name}", name, alias if alias in known else nearest(name, known)


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
            workers: Json = config.get("workers")
            for name in workers if is_object(workers) else ():
                yield f"{path}.workers.{name}", name
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


def _meaning_faults(parts: _Parts, registry: NodeRegistry) -> Iterator[Fault]:
    yield from _duplicates(parts.node_ids, "nodes")
    yield from _duplicates({i: edge.id for i, edge in parts.edges.items()}, "edges")
    yield from _duplicates({i: each.name for i, each in parts.variables.items()}, "variables")
    variables = {variable.name for variable in parts.variables.values()}
    ids = set(parts.node_ids.values())
    for index, node in parts.nodes.items():
        yield from _node_faults(f"nodes.{index}", node, registry, ids)
        for port, message in port_faults(node.inputs, node_ids=ids, variable_names=variables):
            yield Fault(path=f"nodes.{index}.inputs.{port}", message=message)
    yield from _agent_faults(parts)
    yield from _trigger_faults(parts)
    edge_faults = list(_edge_faults(parts))
    yield from edge_faults
    if not edge_faults:
        yield from _cycle_faults(parts, registry)


def _duplicates(names: Mapping[int, str], path: str) -> Iterator[Fault]:
    seen: set[str] = set()
    for index, name in names.items():
        if name in seen:
            yield Fault(path=f"{path}.{index}", message=f"{name!r} is there twice")
        seen.add(name)


def _node_faults(
    path: str, node: WorkflowNode, registry: NodeRegistry, node_ids: Collection[str]
) -> Iterator[Fault]:
    node_type = registry.get(node.type_id)
    if node_type is None:
        near = nearest(node.type_id, (each.type_id for each in registry))
        way_out = "see GET /v1/node-types" if near is None else f"did you mean {near!r}?"
        message = f"this host has no node type {node.type_id!r}: {way_out}"
        yield Fault(path=f"{path}.typeId", message=message)
        return
    yield from _config_faults(path, node, node_type)
    expressions: ConfigExpressions | None = getattr(node_type.config_type, "expressions_in", None)
    for use in () if expressions is None else expressions(node.config):
        fault = use_fault(use, node_ids) if use.source else None
        if fault is not None:
            yield Fault(path=f"{path}.config.{use.path}", message=fault)


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
        shape = Shape(closed(schema_of(node_type.config_type)))
    except (TypeError, ValueError):
        return
    yield from shape.faults(node.config, f"{path}.config")


def _agent_faults(parts: _Parts) -> Iterator[Fault]:
    types = [node.type_id for node in parts.nodes.values()]
    for index, node in parts.nodes.items():
        if not isinstance(node.agent, Unset) and not isinstance(node.agent.channel, Unset):
            message = "agent.channel needs agents.deployment, which this host does not advertise"
            yield Fault(path=f"nodes.{index}.agent.channel", message=message)
        if node.type_id == SUPERVISOR and is_undirected(node.config) and not parts.is_fixture:
            message = "a supervisor needs rules, or a prompt and a model"
            yield Fault(path=f"nodes.{index}.config", message=message)
        if node.type_id == DISPATCH and SUPERVISOR not in types:
            message = f"{DISPATCH} needs a {SUPERVISOR} in the same workflow"
            yield Fault(path=f"nodes.{index}.typeId", message=message)


def _trigger_faults(parts: _Parts) -> Iterator[Fault]:
    """Refuse triggers that would never start a run."""
    for index, trigger in parts.triggers.items():
        if trigger.type == "manual":
            config = {} if isinstance(trigger.config, Unset) else trigger.config
            for name in config:
                path = f"triggers.{index}.config.{name}"
                yield Fault(path=path, message=unknown_key(name, ()))
        elif trigger.enabled:
            message = (
                f"this host does not start runs by {trigger.type!r} triggers: remove the trigger "
                "or set enabled to false, and start runs with POST /v1/runs"
            )
            yield Fault(path=f"triggers.{index}.type", message=message)


def _edge_faults(parts: _Parts) -> Iterator[Fault]:
    ids = set(parts.node_ids.values())
    for index, edge in parts.edges.items():
        for end, node_id in (
            ("sourceNodeId", edge.source_node_id),
            ("targetNodeId", edge.target_node_id),
        ):
            if node_id not in ids:
                message = f"there is no node {node_id!r}: {not_there(node_id, ids)}"
                yield Fault(path=f"edges.{index}.{end}", message=message)
        if not isinstance(edge.condition, Unset):
            for message in condition_faults(edge.condition, ids):
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


def _cycle_faults(parts: _Parts, registry: NodeRegistry) -> Iterator[Fault]:
    ids = {node.id for node in parts.nodes.values()}
    edges = [e for e in parts.edges.values() if {e.source_node_id, e.target_node_id} <= ids]
    found = cycle(list(parts.nodes.values()), edges, registry.reentrant)
    if found:
        yield Fault(
            path="edges",
            message=f"{' → '.join([*found, found[0]])} is a cycle without a core.loop node in it",
        )
