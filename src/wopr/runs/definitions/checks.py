"""Check a workflow definition before it is registered, and report all faults together."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import chain
from typing import Final, TypeAlias, TypeVar, cast

import msgspec

from wopr.agents.loop.config import ChatConfig
from wopr.engine.cel.expressions import ExpressionUse, condition_faults, use_fault
from wopr.engine.channels import is_context_channel
from wopr.engine.fold.agents import DISPATCH, SUPERVISOR
from wopr.engine.graph import find_cycle
from wopr.engine.ports import port_faults
from wopr.nodes.builtin import conformance_types
from wopr.nodes.orchestrator.supervisor import HOOKS, has_no_decision_source
from wopr.nodes.registry import NodeRegistry, NodeType
from wopr.process.settings import Settings
from wopr.protocol.documents import Json, JsonObject, Unset, is_list, is_object, objects_in
from wopr.protocol.errors import CapabilityRequired, Refused
from wopr.protocol.json_schema.conversion import inline_references, schema_of
from wopr.protocol.json_schema.export import document_schema
from wopr.protocol.json_schema.size import (
    MAX_DEFINITION_STATES,
    SMALL_STATES,
    SMALL_WEIGHT,
    SchemaLimits,
    count_text,
    measure,
    size_faults,
    weight_of,
)
from wopr.protocol.json_schema.validation import (
    MAX_FAULTS,
    DocumentSchema,
    Fault,
    close_objects,
    document_faults,
    faults_error,
    first_faults,
    schema_faults,
)
from wopr.protocol.observed_ids import OBSERVED_WORKFLOW
from wopr.protocol.suggestions import nearest, shorten_name, suggest_name, unknown_key
from wopr.protocol.workflow import (
    NodeSettings,
    WorkflowDefinition,
    WorkflowEdge,
    WorkflowNode,
    WorkflowSettings,
    WorkflowTrigger,
    WorkflowVariable,
)
from wopr.security.credential_names import credential_paths

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
ModelFault: TypeAlias = Callable[[str], str | None]
KnownInputs: TypeAlias = Callable[[JsonObject], Collection[str] | None]
ConfigExpressions: TypeAlias = Callable[[JsonObject], Iterable[ExpressionUse]]
# Node types that need one of these config keys or this input.
REQUIRED_KEYS = {
    "core.loop": (("items", "times", "while"), "items"),
    "core.setVariable": (("value", "expression"), "value"),
    "core.channelWrite": (("value",), "value"),
    "wopr.http.request": (("url",), "url"),
}
CONFORMANCE_TYPES = conformance_types()
# The longest description of a workflow.
DESCRIPTION_BYTES: Final = 8192
# The config keys that contain a JSON Schema, such as `resumeSchema` or `parameters`.
_SCHEMA_KEY: Final = re.compile(r"schema$|Schema$|^parameters$")
# Config keys that script a node, by type: the test hooks.
CONFORMANCE_KEYS = {
    SUPERVISOR: HOOKS,
    "core.conversationGate": ("mockAutoResume",),
    "core.identity": ("memoryAction", "emitDuplicateMessageId"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionLimits:
    """Limits of a definition. Each limit bounds the time of a check."""

    max_bytes: int = 1024 * 1024
    max_nodes: int = 1000
    max_edges: int = 5000
    max_expressions: int = 500
    max_expression_bytes: int = 64 * 1024
    schemas: SchemaLimits = field(default_factory=SchemaLimits)

    @classmethod
    def of(cls, settings: Settings) -> DefinitionLimits:
        """Read the limits from the settings."""
        return cls(
            max_bytes=settings.max_workflow_bytes,
            max_nodes=settings.max_workflow_nodes,
            max_edges=settings.max_workflow_edges,
            max_expressions=settings.max_workflow_expressions,
            max_expression_bytes=settings.max_workflow_expression_bytes,
            schemas=settings.schema_limits,
        )


_DEFAULT_LIMITS: Final = DefinitionLimits()
# The most nodes that can head a loop. Each step of a run visits all loops.
MAX_LOOPS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The parts of a definition that can be decoded, by their position in the document.

    The other parts of a definition with invalid ones are checked too, so that one response reports
    all faults.
    """

    nodes: Mapping[int, WorkflowNode]
    edges: Mapping[int, WorkflowEdge]
    variables: Mapping[int, WorkflowVariable]
    triggers: Mapping[int, WorkflowTrigger]
    # The ids of all nodes, including nodes that cannot be decoded.
    node_ids: Mapping[int, str]
    # Whether it is a conformance workflow.
    is_fixture: bool


def check_definition(
    document: Json,
    registry: NodeRegistry,
    *,
    may_author_conformance: bool = False,
    model_fault: ModelFault | None = None,
    limits: DefinitionLimits = _DEFAULT_LIMITS,
) -> WorkflowDefinition:
    """Return the definition, or refuse it with every fault in `details.errors`.

    `model_fault` returns why this host cannot call a model, such as `openai:gpt-4o`.
    """
    _check_sizes(document, registry, limits)
    shape = first_faults(document_faults(document, _shape(), WorkflowDefinition))
    if shape:
        faults = first_faults(chain(shape, _other_faults(document, registry)))
        raise faults_error(faults, "definition")
    definition = msgspec.convert(document, WorkflowDefinition)
    _check_capabilities(definition, registry)
    may_script = may_author_conformance or definition.id.startswith(CONFORMANCE_PREFIX)
    if not may_script or registry.get(MOCK_AGENT) is None:
        _refuse_conformance(definition, registry)
    faults = first_faults(
        chain(
            _other_faults(document, registry),
            _schema_faults(definition),
            () if model_fault is None else _model_faults(definition, registry, model_fault),
            _id_faults(definition),
        )
    )
    if faults:
        raise faults_error(faults, "definition")
    return definition


def _id_faults(definition: WorkflowDefinition) -> Iterator[Fault]:
    if definition.id == OBSERVED_WORKFLOW:
        message = f"{OBSERVED_WORKFLOW!r} is reserved for runs that other systems executed"
        yield Fault(path="id", message=message)


def _check_sizes(document: Json, registry: NodeRegistry, limits: DefinitionLimits) -> None:
    """Refuse a definition whose check would take too long."""
    faults = list(_count_faults(document, registry, limits))
    if not faults:
        faults = first_faults(
            Fault(path=path, message=fault)
            for path, schema in schemas_in(document)
            for fault in size_faults(schema, limits.schemas)
        )
    if not faults and (states := _states(document)) > MAX_DEFINITION_STATES:
        message = (
            f"the patterns of all schemas of the definition have {count_text(states)} states, "
            f"and at most {MAX_DEFINITION_STATES} are allowed"
        )
        faults = [Fault(path="", message=message)]
    if faults:
        raise faults_error(faults, "definition")


def is_small(document: Json) -> bool:
    """Return whether the check of a definition takes only a few milliseconds."""
    is_light = weight_of(document, SMALL_WEIGHT) <= SMALL_WEIGHT
    return is_light and _states(document) <= SMALL_STATES


def _states(document: Json) -> int:
    """Count the states of the patterns of all schemas."""
    return sum(measure(schema).states for _, schema in schemas_in(document))


def _count_faults(
    document: Json, registry: NodeRegistry, limits: DefinitionLimits
) -> Iterator[Fault]:
    definition: JsonObject = document if is_object(document) else {}
    nodes, edges = definition.get("nodes"), definition.get("edges")
    description: Json = definition.get("description")
    described = len(description.encode("utf-8", "replace")) if isinstance(description, str) else 0
    sources = list(_expressions(definition, registry))
    for path, count, most, unit in (
        ("", len(msgspec.json.encode(document)), limits.max_bytes, "bytes"),
        ("nodes", len(nodes) if is_list(nodes) else 0, limits.max_nodes, "nodes"),
        ("nodes", _loop_count(definition, registry), MAX_LOOPS, "nodes that can head a loop"),
        ("edges", len(edges) if is_list(edges) else 0, limits.max_edges, "edges"),
        ("description", described, DESCRIPTION_BYTES, "bytes of description"),
        ("", len(sources), limits.max_expressions, "expressions"),
        ("", sum(map(len, sources)), limits.max_expression_bytes, "characters of expressions"),
    ):
        if count > most:
            message = f"the definition has {count} {unit}, and at most {most} are allowed"
            yield Fault(path=path, message=message)


def _loop_count(definition: JsonObject, registry: NodeRegistry) -> int:
    reentrant = registry.reentrant
    return sum(str(node.get("typeId")) in reentrant for node in objects_in(definition, "nodes"))


def _expressions(definition: JsonObject, registry: NodeRegistry) -> Iterator[str]:
    """Find the expressions and patterns of a definition, as far as it can be decoded."""
    for edge in objects_in(definition, "edges"):
        condition: Json = edge.get("condition")
        if is_object(condition):
            sources = [condition.get(key) for key in ("expression", "right")]
            # A condition without an expression counts too, because its evaluation takes as long.
            yield from [source for source in sources if isinstance(source, str)] or [""]
    for node in objects_in(definition, "nodes"):
        ports: Json = node.get("inputs")
        for port in ports.values() if is_object(ports) else ():
            if is_object(port) and isinstance(source := port.get("expression"), str):
                yield source
        node_type, config = registry.get(str(node.get("typeId"))), node.get("config")
        found: ConfigExpressions | None = getattr(
            None if node_type is None else node_type.config_type, "expressions_in", None
        )
        if found is not None and is_object(config):
            yield from (use.source for use in found(config))


def schemas_in(document: Json) -> Iterator[tuple[str, JsonObject]]:
    """Find the JSON Schemas of a definition, each with its path."""
    definition: JsonObject = document if is_object(document) else {}
    for name in ("configurableSchema", "channels"):
        yield from _schemas_below(name, name, definition.get(name))
    for index, node in enumerate(objects_in(definition, "nodes")):
        yield from _schemas_below(f"nodes.{index}.config", "config", node.get("config"))


def _schemas_below(path: str, key: str, value: Json) -> Iterator[tuple[str, JsonObject]]:
    if is_object(value) and _SCHEMA_KEY.search(key):
        yield path, value
    elif is_object(value):
        for name, inner in value.items():
            yield from _schemas_below(f"{path}.{name}", name, inner)
    elif is_list(value):
        for index, inner in enumerate(value):
            yield from _schemas_below(f"{path}.{index}", "", inner)


def definition_warnings(document: Json) -> list[Fault]:
    """Report the settings of a valid definition that this host ignores."""
    return first_faults(
        Fault(
            path=path,
            message=f"unknown key {shorten_name(name)!r} is kept and has no effect on this host",
        )
        for path, name, meant in _unknown_settings(document)
        if meant is None
    )


@cache
def _shape() -> DocumentSchema:
    return DocumentSchema(document_schema("workflow-definition"))


def _other_faults(document: Json, registry: NodeRegistry) -> Iterator[Fault]:
    """Find the faults that the schema of a definition does not cover."""
    parts = _readable_parts(document)
    yield from _credential_faults(document)
    yield from _setting_faults(document)
    yield from _semantic_faults(parts, registry)


def _readable_parts(document: Json) -> _Parts:
    definition: JsonObject = document if is_object(document) else {}
    return _Parts(
        nodes=_readable(definition.get("nodes"), WorkflowNode),
        edges=_readable(definition.get("edges"), WorkflowEdge),
        variables=_readable(definition.get("variables"), WorkflowVariable),
        triggers=_readable(definition.get("triggers"), WorkflowTrigger),
        node_ids={
            index: node["id"]
            for index, node in enumerate(objects_in(definition, "nodes"))
            if isinstance(node.get("id"), str)
        },
        is_fixture=str(definition.get("id")).startswith(CONFORMANCE_PREFIX),
    )


def _readable(parts: Json, kind: type[T]) -> dict[int, T]:
    """Decode the parts of a list that can be decoded, without unknown keys."""
    found: dict[int, T] = {}
    known = set(kind.__struct_encode_fields__)
    for index, part in enumerate(parts if is_list(parts) else []):
        if is_object(part):
            with suppress(msgspec.ValidationError):
                members = {key: value for key, value in part.items() if key in known}
                found[index] = msgspec.convert(members, kind)
    return found


def _setting_faults(document: Json) -> Iterator[Fault]:
    for path, name, meant in _unknown_settings(document):
        if meant is not None:
            unit = " (milliseconds)" if meant == "timeout" else ""
            message = f"unknown key {shorten_name(name)!r}: did you mean {meant!r}{unit}?"
            yield Fault(path=path, message=message)


def _unknown_settings(document: Json) -> Iterator[tuple[str, str, str | None]]:
    """Find unknown keys of settings: the path, the name, and the setting that was probably meant.

    Only the first `MAX_FAULTS` keys are compared with known settings.
    """
    definition: JsonObject = document if is_object(document) else {}
    places: list[tuple[str, Json, type[WorkflowSettings | NodeSettings]]] = [
        ("settings", definition.get("settings"), WorkflowSettings)
    ]
    for index, node in enumerate(objects_in(definition, "nodes")):
        places.append((f"nodes.{index}.settings", node.get("settings"), NodeSettings))
    compared = 0
    for path, settings, kind in places:
        known = kind.__struct_encode_fields__
        for name in settings if is_object(settings) else ():
            if name not in known:
                compared += 1
                meant = SETTING_ALIASES.get(name)
                if meant not in known:
                    meant = nearest(name, known) if compared <= MAX_FAULTS else None
                yield f"{path}.{name}", name, meant


def _check_capabilities(definition: WorkflowDefinition, registry: NodeRegistry) -> None:
    """Raise `CapabilityRequired` for a type whose capability this host does not advertise."""
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
    """Refuse node types and hooks for conformance tests in other workflows."""
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
    restriction = (
        f"is allowed only on a host with --conformance, in a workflow named {CONFORMANCE_PREFIX}* "
        "or with a key that has the scope conformance:author"
    )
    node_type = registry.get(node.type_id)
    if node_type is not None and node_type.conformance_only:
        yield Fault(path=f"{path}.typeId", message=f"{node.type_id} {restriction}")
    for hook in CONFORMANCE_KEYS.get(node.type_id, ()):
        if hook in node.config:
            yield Fault(path=f"{path}.config.{hook}", message=f"config.{hook} {restriction}")


def test_hook_of(definition: WorkflowDefinition, node: WorkflowNode) -> str | None:
    """Return the test hook that a node uses, or None. A node type for tests is a test hook."""
    if node.type_id in CONFORMANCE_TYPES:
        return node.type_id
    for hook in CONFORMANCE_KEYS.get(node.type_id, ()):
        if hook in node.config:
            return f"config.{hook}"
    is_fixture = definition.id.startswith(CONFORMANCE_PREFIX)
    if is_fixture and node.type_id == SUPERVISOR and has_no_decision_source(node.config):
        return "the default script of conformance workflows"
    return None


def _credential_faults(document: Json) -> Iterator[Fault]:
    """Report credentials: a definition is stored and shown unchanged."""
    for path in credential_paths(document):
        yield Fault(path=path, message="looks like a credential; refer to one with credentialsRef")


def _semantic_faults(parts: _Parts, registry: NodeRegistry) -> Iterator[Fault]:
    yield from _duplicates(parts.node_ids, "nodes")
    yield from _duplicates({i: edge.id for i, edge in parts.edges.items()}, "edges")
    yield from _duplicates({i: each.name for i, each in parts.variables.items()}, "variables")
    ids = set(parts.node_ids.values())
    for index, node in parts.nodes.items():
        yield from _node_faults(f"nodes.{index}", node, registry, ids)
        for port, message in port_faults(node.inputs, node_ids=ids):
            yield Fault(path=f"nodes.{index}.inputs.{port}", message=message)
    yield from _agent_faults(parts)
    yield from _trigger_faults(parts)
    has_edge_fault = False
    for fault in _edge_faults(parts):
        has_edge_fault = True
        yield fault
    if not has_edge_fault:
        yield from _cycle_faults(parts, registry)


def _duplicates(names: Mapping[int, str], path: str) -> Iterator[Fault]:
    seen: set[str] = set()
    for index, name in names.items():
        if name in seen:
            yield Fault(path=f"{path}.{index}", message=f"{shorten_name(name)!r} is a duplicate")
        seen.add(name)


def _node_faults(
    path: str, node: WorkflowNode, registry: NodeRegistry, node_ids: Collection[str]
) -> Iterator[Fault]:
    node_type = registry.get(node.type_id)
    if node_type is None:
        near = nearest(node.type_id, (each.type_id for each in registry))
        hint = "see GET /v1/node-types" if near is None else f"did you mean {near!r}?"
        message = f"this host has no node type {shorten_name(node.type_id)!r}: {hint}"
        yield Fault(path=f"{path}.typeId", message=message)
        return
    yield from _config_faults(path, node, node_type)
    yield from _input_faults(path, node, node_type)
    expressions: ConfigExpressions | None = getattr(node_type.config_type, "expressions_in", None)
    for use in () if expressions is None else expressions(node.config):
        fault = use_fault(use, node_ids) if use.source else None
        if fault is not None:
            yield Fault(path=f"{path}.config.{use.path}", message=fault)


def _config_faults(path: str, node: WorkflowNode, node_type: NodeType) -> Iterator[Fault]:
    has_fault = False
    # A config type may have rules that a schema cannot express.
    find_faults: ConfigFaults | None = getattr(node_type.config_type, "faults", None)
    rule_faults = (
        Fault(path=f"{path}.config.{key}", message=why)
        for key, why in (() if find_faults is None else find_faults(node.config))
    )
    for fault in chain(_config_shape_faults(path, node, node_type), rule_faults):
        has_fault = True
        yield fault
    if not has_fault:
        try:
            node_type.decode_config(node.config)
        except (msgspec.ValidationError, ValueError) as fault:
            yield Fault(path=f"{path}.config", message=str(fault))


def _config_shape_faults(path: str, node: WorkflowNode, node_type: NodeType) -> Iterator[Fault]:
    try:
        shape = _config_shape(cast("Hashable", node_type.config_type))
    except (TypeError, ValueError):
        return
    yield from shape.faults(node.config, f"{path}.config")


@lru_cache(maxsize=512)
def _config_shape(kind: Hashable) -> DocumentSchema:
    return DocumentSchema(close_objects(schema_of(kind)))


@lru_cache(maxsize=512)
def _input_schema(kind: Hashable) -> JsonObject:
    return inline_references(schema_of(kind))


def _input_faults(path: str, node: WorkflowNode, node_type: NodeType) -> Iterator[Fault]:
    """Report inputs that the node does not read, and missing required ones."""
    known = _known_inputs(node, node_type)
    for name in node.inputs:
        if known is not None and name not in known:
            message = f"unknown input {shorten_name(name)!r}: {suggest_name(name, known)}"
            yield Fault(path=f"{path}.inputs.{name}", message=message)
    keys, port = REQUIRED_KEYS.get(node.type_id, ((), ""))
    if keys and port not in node.inputs and not any(key in node.config for key in keys):
        given = ", ".join(f"config.{key}" for key in keys)
        message = f"{node.type_id} needs {given} or the input {port!r}, and has none of them"
        yield Fault(path=f"{path}.config", message=message)


def _known_inputs(node: WorkflowNode, node_type: NodeType) -> Collection[str] | None:
    """Return the names of the inputs that a node reads; None when it accepts any."""
    by_config: KnownInputs | None = getattr(node_type.config_type, "known_inputs", None)
    if by_config is not None:
        return by_config(node.config)
    try:
        schema = _input_schema(cast("Hashable", node_type.inputs_type))
    except (TypeError, ValueError):
        return None
    is_open = schema.get("additionalProperties", False) is not False
    names: Json = schema.get("properties")
    return names if is_object(names) and not is_open else None


def _model_faults(
    definition: WorkflowDefinition, registry: NodeRegistry, model_fault: ModelFault
) -> Iterator[Fault]:
    """Report the models that the host cannot call."""
    for index, node in enumerate(definition.nodes):
        node_type = registry.get(node.type_id)
        kind: object = None if node_type is None else node_type.config_type
        if not isinstance(kind, type) or not issubclass(kind, ChatConfig):
            continue
        for key in ("model", "fallbackModel"):
            name = node.config.get(key)
            message = model_fault(name) if isinstance(name, str) else None
            if message is not None:
                yield Fault(path=f"nodes.{index}.config.{key}", message=message)


def _agent_faults(parts: _Parts) -> Iterator[Fault]:
    types = [node.type_id for node in parts.nodes.values()]
    for index, node in parts.nodes.items():
        if not isinstance(node.agent, Unset) and not isinstance(node.agent.channel, Unset):
            message = "agent.channel needs agents.deployment, which this host does not advertise"
            yield Fault(path=f"nodes.{index}.agent.channel", message=message)
        if (
            node.type_id == SUPERVISOR
            and has_no_decision_source(node.config)
            and not parts.is_fixture
        ):
            message = "a supervisor needs rules, or a prompt and a model"
            yield Fault(path=f"nodes.{index}.config", message=message)
        if node.type_id == DISPATCH and SUPERVISOR not in types:
            message = f"{DISPATCH} needs a {SUPERVISOR} in the same workflow"
            yield Fault(path=f"nodes.{index}.typeId", message=message)


def _trigger_faults(parts: _Parts) -> Iterator[Fault]:
    """Report triggers that would never start a run."""
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
                message = (
                    f"there is no node {shorten_name(node_id)!r}: {suggest_name(node_id, ids)}"
                )
                yield Fault(path=f"edges.{index}.{end}", message=message)
        if not isinstance(edge.condition, Unset):
            for message in condition_faults(edge.condition, ids):
                yield Fault(path=f"edges.{index}.condition", message=message)


def _schema_faults(definition: WorkflowDefinition) -> Iterator[Fault]:
    if not isinstance(definition.configurable_schema, Unset):
        yield from schema_faults("configurableSchema", definition.configurable_schema)
    for name, channel in definition.channels.items():
        if is_context_channel(name):
            message = "is reserved for a context that agents share; use another name"
            yield Fault(path=f"channels.{name}", message=message)
        if not isinstance(channel.schema, Unset):
            yield from schema_faults(f"channels.{name}.schema", channel.schema)


def _cycle_faults(parts: _Parts, registry: NodeRegistry) -> Iterator[Fault]:
    ids = {node.id for node in parts.nodes.values()}
    edges = [e for e in parts.edges.values() if {e.source_node_id, e.target_node_id} <= ids]
    found = find_cycle(list(parts.nodes.values()), edges, registry.reentrant)
    if found:
        yield Fault(
            path="edges",
            message=f"{' → '.join([*found, found[0]])} is a cycle without a core.loop node in it",
        )
