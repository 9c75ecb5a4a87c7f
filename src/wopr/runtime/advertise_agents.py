"""The agent families of the discovery document."""

from __future__ import annotations

import msgspec

from wopr.nodes.context import ConfidenceFloor
from wopr.nodes.mock_agent import MockAgentConfig
from wopr.nodes.registry import NodeRegistry
from wopr.protocol.agent_families import (
    Agents,
    Attribution,
    Conformance,
    CrossHostCausation,
    Dispatch,
    ExecutionModel,
    ManifestRuntime,
    Memory,
    MultiAgent,
    Orchestrator,
    ProviderUsageFamily,
    Reasoning,
    SubWorkflow,
    ToolHooks,
)
from wopr.protocol.agents import ModelClass
from wopr.protocol.capabilities import Capabilities, Extensions, InterruptExtension
from wopr.protocol.documents import UNSET, JsonObject
from wopr.protocol.interrupts import is_vendor_kind
from wopr.protocol.schemas import DIALECT
from wopr.runtime.comparing import HOST_ID
from wopr.runtime.settings import Settings

MODEL_CLASSES: tuple[ModelClass, ...] = (
    "reasoning",
    "tool-using",
    "chat",
    "code",
    "classification",
    "retrieval",
)
PROFILES = (
    "openwop-interrupt-quorum",
    "openwop-interrupt-auth-required",
    "openwop-interrupt-external-event",
    "openwop-interrupt-cascade-cancel",
    "openwop-interrupt-parent-child",
)
EXECUTION_MODEL = 2
# The status of a run that waits for an escalation of each canonical kind.
_STATUSES = {"clarify": "waiting-input", "escalate": "waiting-approval"}


def floor_of(settings: Settings) -> ConfidenceFloor:
    """How sure a supervisor must be here, and how the host asks when it is not."""
    kind = settings.confidence_interrupt_kind
    if kind == "clarification":
        return ConfidenceFloor(
            threshold=settings.confidence_floor,
            interrupt_kind=kind,
            escalation_kind="clarify",
            waiting_status="waiting-input",
        )
    if not is_vendor_kind(kind):
        return ConfidenceFloor(threshold=settings.confidence_floor, interrupt_kind=kind)
    means = settings.vendor_kind_means
    status = settings.vendor_kind_status or _STATUSES[means]
    return ConfidenceFloor(
        threshold=settings.confidence_floor,
        interrupt_kind=kind,
        escalation_kind=means,  # type: ignore[arg-type]  # checked with the settings
        waiting_status=status,  # type: ignore[arg-type]  # checked with the settings
        is_literal=settings.literal_vendor_kind,
    )


def agent_families(settings: Settings, registry: NodeRegistry, base: Capabilities) -> Capabilities:
    """Add what the registered types make true."""
    has = registry.get
    mock = has("core.conformance.mock-agent") is not None
    return msgspec.structs.replace(
        base,
        supported_envelopes=["clarification.request"],
        agents=_agents(settings),
        multi_agent=MultiAgent(
            execution_model=ExecutionModel(
                supported=True,
                version=EXECUTION_MODEL,
                confidence_escalation_floor=settings.confidence_floor,
                confidence_escalation_interrupt_kind=settings.confidence_interrupt_kind,
                # Ancestry is served for this host's own runs; no cause lies on another host.
                cross_host_causation=CrossHostCausation(
                    supported=False, host_id=HOST_ID, ancestry_endpoint_supported=True
                ),
            )
        ),
        orchestrator=Orchestrator(
            supported=True, worker_id_interpretation="node", fan_out_supported=False
        ),
        dispatch=Dispatch(
            supported=True,
            models=["child-run"],
            fan_out_supported=False,
            ask_user_routings=["conversation", "clarification", "auto"],
        ),
        conversation_primitive=True,
        sub_workflow=SubWorkflow(input_mapping=True),
        conformance=Conformance(mock_agent=True) if mock else UNSET,
        tool_hooks=ToolHooks(
            supported=True,
            pre_post_events=True,
            per_tool_authorization=True,
            per_tool_rate_limit=settings.tool_rate_limit > 0,
        ),
        provider_usage=ProviderUsageFamily(supported=True),
        memory=Memory(
            supported=True,
            ttl_supported=True,
            writable=True,
            attribution=Attribution(supported=True, emits_write_events=True),
        ),
        extensions=_extensions(settings),
    )


def _agents(settings: Settings) -> Agents:
    return Agents(
        supported=True,
        profile="wop-agents-full",
        reasoning_events=True,
        tool_events=True,
        handoff_events=True,
        decision_events=True,
        model_classes=list(MODEL_CLASSES),
        orchestrator_pattern="delegate",
        memory_backends=["long-term"],
        orchestrator=True,
        dispatch=True,
        dispatch_mapping=True,
        reasoning=Reasoning(
            verbosity=settings.reasoning_verbosity,  # type: ignore[arg-type]  # checked there
            token_limit=settings.reasoning_token_limit,
            streaming=True,
        ),
        manifest_runtime=ManifestRuntime(
            supported=True, handoff_validation=True, install_scope="tenant"
        ),
        confidence_escalation_suppressed=settings.suppress_escalation or UNSET,
    )


def _extensions(settings: Settings) -> Extensions:
    kind = settings.confidence_interrupt_kind
    is_vendor = is_vendor_kind(kind)
    return Extensions(
        interrupts=InterruptExtension(
            profiles=list(PROFILES),
            signed_callback_tokens=True,
            # An event that comes before anything waits for it is not kept.
            external_event_retention_seconds=0,
            vendor_kind_url=f"/v1/interrupt-kinds/{kind}" if is_vendor else UNSET,
            literal_vendor_kind=(is_vendor and settings.literal_vendor_kind) or UNSET,
        )
    )


def mock_agent_schemas() -> dict[str, JsonObject]:
    """The JSON Schema of the mock agent's config, by its published name."""
    name = "core-conformance-mock-agent-config"
    schema = msgspec.json.schema(MockAgentConfig, ref_template="#/$defs/{name}")
    # A tool call has a result or an error, and not both.
    ends = [{"required": ["result"]}, {"required": ["error"]}]
    schema["$defs"]["MockToolCall"]["oneOf"] = ends
    return {name: {"$schema": DIALECT, "$id": f"/v1/schemas/{name}.json", **schema}}
