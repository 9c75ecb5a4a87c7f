"""Capability families of agents, models, conversations and memory."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from wopr.protocol.agents import ModelClass
from wopr.protocol.discovery.families import ClosedFamily, Family
from wopr.protocol.documents import UNSET, NonEmpty, Unset
from wopr.protocol.interrupts import VENDOR_KIND_PATTERN

_Positive = Annotated[int, msgspec.Meta(ge=1)]


class Reasoning(ClosedFamily, frozen=True, kw_only=True):
    """How much of an agent's reasoning is written to the log."""

    verbosity: Literal["summary", "full", "off"] | Unset = UNSET
    token_limit: Annotated[int, msgspec.Meta(ge=0)] | Unset = UNSET
    streaming: bool | Unset = UNSET


class ManifestRuntime(ClosedFamily, frozen=True, kw_only=True):
    """Agents installed from manifests."""

    supported: bool
    handoff_validation: bool | Unset = UNSET
    install_scope: Literal["host", "tenant"] | Unset = UNSET


class LiveRuntime(ClosedFamily, frozen=True, kw_only=True):
    """Agents that call a model."""

    supported: bool
    structured_output: bool | Unset = UNSET
    confidence_escalation: bool | Unset = UNSET
    sources: list[Literal["workflow-node", "run-api", "chat-mention"]] | Unset = UNSET


class Agents(Family, frozen=True, kw_only=True):
    """Agent identity, agent events and confidence.

    With `confidenceEscalationSuppressed` the operator has switched escalation off. Decisions below
    the threshold are executed, and recorded as breached caps.
    """

    supported: bool
    profile: str | Unset = UNSET
    reasoning_events: bool | Unset = UNSET
    tool_events: bool | Unset = UNSET
    handoff_events: bool | Unset = UNSET
    decision_events: bool | Unset = UNSET
    model_classes: list[ModelClass] | Unset = UNSET
    orchestrator_pattern: str | Unset = UNSET
    memory_backends: list[Literal["long-term"]] | Unset = UNSET
    orchestrator: bool | Unset = UNSET
    dispatch: bool | Unset = UNSET
    dispatch_mapping: bool | Unset = UNSET
    reasoning: Reasoning | Unset = UNSET
    manifest_runtime: ManifestRuntime | Unset = UNSET
    live_runtime: LiveRuntime | Unset = UNSET
    sub_run_attestation: bool | Unset = UNSET
    confidence_escalation_suppressed: bool | Unset = UNSET


class CrossHostCausation(ClosedFamily, frozen=True, kw_only=True):
    """Causation across hosts."""

    supported: bool
    host_id: NonEmpty | Unset = UNSET
    ancestry_endpoint_supported: bool | Unset = UNSET


class ReplayDeterminism(ClosedFamily, frozen=True, kw_only=True):
    """How a replay answers model calls from records."""

    supported: bool
    llm_cache_key_recipe: (
        Annotated[str, msgspec.Meta(pattern=rf"^(spec-rfc-0041|{VENDOR_KIND_PATTERN})$")] | Unset
    ) = UNSET
    refusal_divergence_emission: bool | Unset = UNSET


class Verifier(ClosedFamily, frozen=True, kw_only=True):
    """Agents that judge the work of others."""

    supported: bool
    gating: bool | Unset = UNSET


class ExecutionModel(ClosedFamily, frozen=True, kw_only=True):
    """The levels of multi-agent execution. Version N includes all levels up to N."""

    supported: bool
    version: Annotated[int, msgspec.Meta(ge=1, le=6)]
    tier: Literal["stable", "experimental"] | Unset = UNSET
    experimental_until: (
        Annotated[
            str,
            msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2}$", extra_json_schema={"format": "date"}),
        ]
        | Unset
    ) = UNSET
    confidence_escalation_floor: Annotated[float, msgspec.Meta(ge=0.5, le=1)] | Unset = UNSET
    confidence_escalation_interrupt_kind: (
        Annotated[str, msgspec.Meta(pattern=rf"^(clarification|approval|{VENDOR_KIND_PATTERN})$")]
        | Unset
    ) = UNSET
    cross_child_memory_concurrency: Literal["strict", "advisory"] | Unset = UNSET
    cross_host_causation: CrossHostCausation | Unset = UNSET
    replay_determinism: ReplayDeterminism | Unset = UNSET
    stateful_resume: bool | Unset = UNSET
    transcript_window: _Positive | Unset = UNSET
    verifier: Verifier | Unset = UNSET

    def __post_init__(self) -> None:
        if self.tier == "experimental" and self.experimental_until is UNSET:
            raise ValueError("an experimental tier needs experimentalUntil")


class MultiAgent(ClosedFamily, frozen=True, kw_only=True):
    """Agents that work together."""

    execution_model: ExecutionModel | Unset = UNSET


class Orchestrator(Family, frozen=True, kw_only=True):
    """The supervisor node."""

    supported: bool
    worker_id_interpretation: Literal["node", "agent", "either"] | Unset = UNSET
    fan_out_supported: bool | Unset = UNSET


class Dispatch(Family, frozen=True, kw_only=True):
    """The dispatch node."""

    supported: bool
    models: list[Literal["child-run"]] | Unset = UNSET
    fan_out_supported: bool | Unset = UNSET
    ask_user_routings: list[Literal["conversation", "clarification", "auto"]] | Unset = UNSET


class MultiPartyConversation(ClosedFamily, frozen=True, kw_only=True):
    """Conversations with more than two participants."""

    supported: bool
    max_participants: Annotated[int, msgspec.Meta(ge=2)] | Unset = UNSET


class SubWorkflow(ClosedFamily, frozen=True, kw_only=True):
    """Child runs started by a node."""

    input_mapping: bool | Unset = UNSET


class Conformance(ClosedFamily, frozen=True, kw_only=True):
    """Functions for the conformance suite only."""

    mock_agent: bool | Unset = UNSET
    certification_bundle_url: str | Unset = UNSET


class ToolHooks(ClosedFamily, frozen=True, kw_only=True):
    """Hooks around each tool call."""

    supported: bool
    pre_post_events: bool | Unset = UNSET
    per_tool_authorization: bool | Unset = UNSET
    per_tool_rate_limit: bool | Unset = UNSET


class ProviderUsageFamily(ClosedFamily, frozen=True, kw_only=True):
    """One usage event per model call."""

    supported: bool
    cost_estimates: bool | Unset = UNSET
    currency: Annotated[str, msgspec.Meta(pattern=r"^[A-Z]{3}$")] | Unset = UNSET


ModelAbility = Annotated[str, msgspec.Meta(pattern=rf"^([a-z][a-z0-9-]*|{VENDOR_KIND_PATTERN})$")]
ReliabilityEvent = Literal[
    "envelope.retry.attempted",
    "envelope.retry.exhausted",
    "envelope.refusal",
    "envelope.truncated",
    "envelope.nlToFormat.engaged",
    "envelope.recovery.applied",
]


class ModelCapabilities(ClosedFamily, frozen=True, kw_only=True):
    """Whether the host checks a model's capabilities before a request."""

    supported: bool
    advertised: list[ModelAbility] | Unset = UNSET
    substitution_supported: bool | Unset = UNSET


class Reliability(ClosedFamily, frozen=True, kw_only=True):
    """Events that report invalid model responses."""

    supported: bool
    events: list[ReliabilityEvent] | Unset = UNSET
    max_retry_attempts: Annotated[int, msgspec.Meta(ge=1, le=16)] | Unset = UNSET


class Envelopes(Family, frozen=True, kw_only=True):
    """How the host handles model responses."""

    reliability: Reliability | Unset = UNSET


class ProviderPolicies(ClosedFamily, frozen=True, kw_only=True):
    """Which model providers an operator allows."""

    modes: list[Literal["disabled", "optional", "required", "restricted"]]
    scopes: list[NonEmpty] | Unset = UNSET
    error_code: NonEmpty = "provider_policy_denied"


class AiProviders(ClosedFamily, frozen=True, kw_only=True):
    """Model providers, and those that accept the caller's own key (`byok`)."""

    supported: list[NonEmpty] | Unset = UNSET
    byok: list[NonEmpty] | Unset = UNSET
    policies: ProviderPolicies | Unset = UNSET

    def __post_init__(self) -> None:
        known = [] if self.supported is UNSET else self.supported
        unknown = [] if self.byok is UNSET else sorted(set(self.byok) - set(known))
        if unknown:
            raise ValueError(f"aiProviders.byok has unsupported providers: {unknown}")


class Attribution(ClosedFamily, frozen=True, kw_only=True):
    """Whether each memory write is an event."""

    supported: bool = True
    emits_write_events: bool | Unset = UNSET

    def __post_init__(self) -> None:
        if not self.supported:
            raise ValueError("memory.attribution is either supported or absent")


class Memory(Family, frozen=True, kw_only=True):
    """Long-term memory."""

    supported: bool
    max_entry_size_bytes: _Positive | Unset = UNSET
    ttl_supported: bool | Unset = UNSET
    writable: bool | Unset = UNSET
    attribution: Attribution | Unset = UNSET
