"""The families of the discovery document that are true only where models can be asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from wopr.nodes.llm_key import ADVERTISED_RECIPE
from wopr.nodes.llm_work import REPAIRS
from wopr.protocol.agent_families import (
    AiProviders,
    Envelopes,
    LiveRuntime,
    ModelCapabilities,
    ProviderPolicies,
    ProviderUsageFamily,
    Reliability,
    ReliabilityEvent,
    ReplayDeterminism,
)
from wopr.protocol.capabilities import Capabilities
from wopr.protocol.documents import UNSET, Unset
from wopr.protocol.families import Secrets

RELIABILITY_EVENTS: Final[tuple[ReliabilityEvent, ...]] = (
    "envelope.retry.attempted",
    "envelope.retry.exhausted",
    "envelope.refusal",
    "envelope.truncated",
    "envelope.recovery.applied",
)


def model_families(base: Capabilities, providers: Sequence[str]) -> Capabilities:
    """Add what models make true; `providers` are the real ones, by name."""
    return replace(
        _live(base),
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


def _live(base: Capabilities) -> Capabilities:
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
