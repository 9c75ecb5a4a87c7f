"""The agent and model families of the discovery document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wopr.agents.loop.agent_loop import REPAIRS
from wopr.agents.models.request_key import ADVERTISED_RECIPE
from wopr.nodes.conformance import MockAgentConfig
from wopr.nodes.registry import NodeRegistry
from wopr.process.settings import Settings
from wopr.protocol.agents import ModelClass
from wopr.protocol.discovery.agent_families import (
    Agents,
    AiProviders,
    Attribution,
    Conformance,
    CrossHostCausation,
    Dispatch,
    Envelopes,
    ExecutionModel,
    LiveRuntime,
    ManifestRuntime,
    Memory,
    ModelCapabilities,
    MultiAgent,
    Orchestrator,
    ProviderPolicies,
    ProviderUsageFamily,
    Reasoning,
    Reliability,
    ReliabilityEvent,
    ReplayDeterminism,
    SubWorkflow,
    ToolHooks,
)
from wopr.protocol.discovery.document import Capabilities, Extensions, InterruptExtension
from wopr.protocol.discovery.families import Secrets
from wopr.protocol.documents import UNSET, JsonObject, Unset
from wopr.protocol.interrupts import is_vendor_kind
from wopr.protocol.json_schema.export import DIALECT
from wopr.runs.forks.compare import HOST_ID

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
RELIABILITY_EVENTS: Final[tuple[ReliabilityEvent, ...]] = (
    "envelope.retry.attempted",
    "envelope.retry.exhausted",
    "envelope.refusal",
    "envelope.truncated",
    "envelope.recovery.applied",
)


def agent_families(settings: Settings, registry: NodeRegistry, base: Capabilities) -> Capabilities:
    """Add the families of agents, by the settings and the registered node types."""
    has = registry.get
    mock = has("core.conformance.mock-agent") is not None
    return replace(
        base,
        supported_envelopes=["clarification.request"],
        agents=_agents(settings),
        multi_agent=MultiAgent(
            execution_model=ExecutionModel(
                supported=True,
                version=EXECUTION_MODEL,
                confidence_escalation_floor=settings.confidence_floor,
                confidence_escalation_interrupt_kind=settings.confidence_interrupt_kind,
                # Ancestry is served for runs of this host. No run is caused by another host.
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
            verbosity=settings.reasoning_verbosity,  # type: ignore[arg-type]  # checked with the settings
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
            # An event that arrives before a run waits for it is not stored.
            external_event_retention_seconds=0,
            vendor_kind_url=f"/v1/interrupt-kinds/{kind}" if is_vendor else UNSET,
            literal_vendor_kind=(is_vendor and settings.literal_vendor_kind) or UNSET,
        )
    )


def model_families(base: Capabilities, providers: Sequence[str]) -> Capabilities:
    """Add the families of a host with models. `providers` are the configured providers."""
    return replace(
        _with_live_runtime(base),
        provider_usage=ProviderUsageFamily(supported=True, cost_estimates=True, currency="USD"),
        ai_providers=_ai_providers(providers),
        model_capabilities=ModelCapabilities(supported=True, substitution_supported=True),
        envelopes=Envelopes(
            reliability=Reliability(
                supported=True, events=list(RELIABILITY_EVENTS), max_retry_attempts=REPAIRS
            )
        ),
        secrets=Secrets(supported=True, scopes=["tenant"]),
    )


def _with_live_runtime(base: Capabilities) -> Capabilities:
    agents, multi_agent = base.agents, base.multi_agent
    if isinstance(agents, Unset) or isinstance(multi_agent, Unset):
        return base
    model = multi_agent.execution_model
    if not isinstance(model, Unset):
        recipe = ReplayDeterminism(supported=True, llm_cache_key_recipe=ADVERTISED_RECIPE)
        multi_agent = replace(
            multi_agent, execution_model=replace(model, replay_determinism=recipe)
        )
    live = LiveRuntime(
        supported=True,
        structured_output=True,
        confidence_escalation=True,
        sources=["workflow-node"],
    )
    return replace(base, agents=replace(agents, live_runtime=live), multi_agent=multi_agent)


def _ai_providers(providers: Sequence[str]) -> AiProviders | Unset:
    if not providers:
        return UNSET
    return AiProviders(
        supported=list(providers),
        byok=list(providers),
        policies=ProviderPolicies(modes=["optional", "required", "restricted"]),
    )


def mock_agent_schemas() -> dict[str, JsonObject]:
    """Return the JSON Schema of the mock agent's config, by its published name."""
    name = "core-conformance-mock-agent-config"
    schema = msgspec.json.schema(MockAgentConfig, ref_template="#/$defs/{name}")
    # A tool call has a result or an error, and not both.
    ends = [{"required": ["result"]}, {"required": ["error"]}]
    schema["$defs"]["MockToolCall"]["oneOf"] = ends
    return {name: {"$schema": DIALECT, "$id": f"/v1/schemas/{name}.json", **schema}}
