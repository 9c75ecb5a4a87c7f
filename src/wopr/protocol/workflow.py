"""Workflow definitions. They are returned exactly as they were registered."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from wopr.protocol.agents import AgentId, AgentRef
from wopr.protocol.documents import UNSET, Closed, Document, Json, JsonObject, NonEmpty, Unset

WorkflowId = Annotated[
    str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_-]*$", min_length=1, max_length=128)
]
TypeId = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-zA-Z0-9._-]*$", min_length=1)]
NodeId = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
TriggerRule = Literal["all_success", "any_success", "all_complete", "none_failed", "any_failed"]
VariableType = Literal["string", "number", "boolean", "object", "array"]
MaskingMode = Literal["mask", "omit", "hash", "passthrough"]
ComplianceClass = Literal["public", "pii", "phi", "pci", "regulated"]


class StaticPort(Closed, frozen=True, kw_only=True, tag_field="type", tag="static"):
    """A value written into the definition."""

    value: Json


class ExpressionPort(Closed, frozen=True, kw_only=True, tag_field="type", tag="expression"):
    """A value computed when the node starts."""

    expression: NonEmpty


class ConnectionPort(Closed, frozen=True, kw_only=True, tag_field="type", tag="connection"):
    """Another node's output."""

    node_id: NonEmpty
    output_key: NonEmpty
    optional: bool = False


class VariablePort(Closed, frozen=True, kw_only=True, tag_field="type", tag="variable"):
    """A variable of the run."""

    variable_name: NonEmpty
    optional: bool = False


PortValue: TypeAlias = StaticPort | ExpressionPort | ConnectionPort | VariablePort


class Position(Document, frozen=True, kw_only=True):
    """The position of a node in an editor."""

    x: float
    y: float


class Size(Document, frozen=True, kw_only=True):
    """The size of a group in an editor."""

    width: float
    height: float


class RetryPolicy(Closed, frozen=True, kw_only=True):
    """The delay before the next attempt: `initialMs * factor^n`, at most `maxMs`."""

    initial_ms: Annotated[int, msgspec.Meta(ge=0, le=86_400_000)] = 1000
    factor: Annotated[float, msgspec.Meta(ge=1, le=100)] = 2.0
    max_ms: Annotated[int, msgspec.Meta(ge=0, le=86_400_000)] = 60_000


class NodeSettings(Document, frozen=True, kw_only=True):
    """Limits of a node, which replace those of its workflow. Unknown keys are ignored."""

    timeout: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_retries: Annotated[int, msgspec.Meta(ge=0, le=100)] | Unset = UNSET
    backoff: RetryPolicy = RetryPolicy()


class WorkflowNode(Closed, frozen=True, kw_only=True):
    """A node of a workflow."""

    id: NodeId
    type_id: TypeId
    name: NonEmpty
    position: Position
    config: JsonObject
    inputs: dict[str, PortValue]
    credentials_ref: str | Unset = UNSET
    settings: NodeSettings = NodeSettings()
    output_role: Literal["primary", "secondary"] | Unset = UNSET
    disabled: bool = False
    notes: str | Unset = UNSET
    group_id: str | Unset = UNSET
    agent: AgentRef | Unset = UNSET
    envelope_contract: JsonObject | Unset = UNSET
    artifact_type: str | Unset = UNSET
    card_type: str | Unset = UNSET
    output_sensitivity: dict[str, bool] = {}


class EdgeCondition(Closed, frozen=True, kw_only=True):
    """The condition of an edge: an expression, or a comparison of a path with a value."""

    type: Literal["expression", "equals", "notEquals", "contains", "regex"] = "expression"
    left: str | Unset = UNSET
    right: Json | Unset = UNSET
    expression: str | Unset = UNSET


class WorkflowEdge(Closed, frozen=True, kw_only=True):
    """An edge between two nodes. If both ports are named, it also passes a value."""

    id: NonEmpty
    source_node_id: NonEmpty
    target_node_id: NonEmpty
    source_output: str | Unset = UNSET
    target_input: str | Unset = UNSET
    condition: EdgeCondition | Unset = UNSET
    label: str | Unset = UNSET
    trigger_rule: TriggerRule = "all_success"


class WorkflowTrigger(Closed, frozen=True, kw_only=True):
    """A trigger of a workflow."""

    id: NonEmpty
    type: Literal[
        "manual",
        "schedule",
        "webhook",
        "event",
        "artifact",
        "canvas",
        "envelope",
        "command",
        "chat-message",
        "channel-write",
    ]
    name: str | Unset = UNSET
    description: str | Unset = UNSET
    config: JsonObject | Unset = UNSET
    enabled: bool = True
    node_id: str | Unset = UNSET
    event_type: str | Unset = UNSET


class WorkflowVariable(Closed, frozen=True, kw_only=True):
    """A variable of the run. A run input of the same name replaces the default."""

    name: NonEmpty
    type: VariableType
    description: str | Unset = UNSET
    required: bool = False
    default_value: Json | Unset = UNSET
    sensitive: bool = False


class ChannelAccess(Closed, frozen=True, kw_only=True):
    """The nodes that may read and write a channel. An absent list allows every node."""

    readers: list[str] | Unset = UNSET
    writers: list[str] | Unset = UNSET


Reducer = Annotated[
    str,
    msgspec.Meta(
        pattern=(
            r"^(replace|append|merge|counter|votes|feedback|message"
            r"|vendor\.[a-z][a-z0-9_-]*\.[a-z][a-z0-9_-]*)$"
        )
    ),
]
TtlMs = Annotated[int, msgspec.Meta(ge=1, le=31_536_000_000)]


class ChannelDeclaration(Closed, frozen=True, kw_only=True):
    """A channel, to which nodes write values that its reducer combines."""

    reducer: Reducer
    schema: JsonObject | Unset = UNSET
    default: Json | Unset = UNSET
    max_size: Annotated[int, msgspec.Meta(ge=1)] | Unset = UNSET
    ttl_ms: TtlMs | Unset = UNSET
    options: JsonObject | Unset = UNSET
    access: Literal["public", "private"] | ChannelAccess | Unset = UNSET
    schema_version: Annotated[int, msgspec.Meta(ge=1)] = 1
    compatible_with: list[Annotated[int, msgspec.Meta(ge=1)]] = []
    sensitive: bool = False


class NodeGroup(Closed, frozen=True, kw_only=True):
    """A group of nodes in an editor."""

    id: NonEmpty
    name: NonEmpty
    node_ids: list[str]
    position: Position
    size: Size
    color: str | Unset = UNSET
    collapsed: bool = False


class ComplianceConfig(Document, frozen=True, kw_only=True):
    """How this workflow's sensitive values are masked."""

    masking_mode: MaskingMode | Unset = UNSET


class WorkflowMetadata(Document, frozen=True, kw_only=True):
    """Metadata. Only the compliance fields and the required agent change what the host does."""

    tags: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=256)]],
        msgspec.Meta(max_length=100),
    ] = []
    compliance_class: ComplianceClass = "public"
    compliance_config: ComplianceConfig = ComplianceConfig()
    # The agent whose handoff schemas check the run's inputs and outputs.
    requires_agent_id: AgentId | Unset = UNSET


class WorkflowSettings(Document, frozen=True, kw_only=True):
    """Limits of every run of the workflow. A timeout of 0 is no timeout.

    Without `maxLoopbackIterations` a loop has at most 5 iterations. This default does not apply to
    a loop over items, or to a loop with a fixed number of iterations.
    """

    timeout: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_retries: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    log_level: Literal["debug", "info", "warn", "error"] = "info"
    max_loopback_iterations: Annotated[int, msgspec.Meta(ge=1)] | Unset = UNSET


class WorkflowDefinition(Closed, frozen=True, kw_only=True):
    """A graph of typed nodes that a host executes."""

    id: WorkflowId
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    version: NonEmpty
    nodes: Annotated[list[WorkflowNode], msgspec.Meta(min_length=1)]
    edges: list[WorkflowEdge]
    triggers: list[WorkflowTrigger]
    variables: list[WorkflowVariable]
    metadata: WorkflowMetadata
    settings: WorkflowSettings
    description: str | Unset = UNSET
    type: str | Unset = UNSET
    is_active: bool | Unset = UNSET
    status: Literal["active", "inactive", "draft", "archived"] | Unset = UNSET
    tenant_id: str | Unset = UNSET
    scope_id: str | Unset = UNSET
    slug: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_-]*$")] | Unset = UNSET
    groups: list[NodeGroup] | Unset = UNSET
    channels: dict[str, ChannelDeclaration] = {}
    configurable_schema: JsonObject | Unset = UNSET
    defaults: JsonObject | Unset = UNSET
    accepts_inherited_artifacts: list[JsonObject] | Unset = UNSET
    created_at: str | Unset = UNSET
    updated_at: str | Unset = UNSET
