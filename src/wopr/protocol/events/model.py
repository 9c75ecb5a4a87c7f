"""Payloads of model events: prompts, usage, capabilities, and response envelopes."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from wopr.protocol.documents import UNSET, Closed, JsonObject, NonEmpty, Unset
from wopr.protocol.events.values import (
    Amount,
    Count,
    DistinctNames,
    Ordinal,
    Sha256,
    require_distinct,
)
from wopr.protocol.interrupts import VENDOR_KIND_PATTERN

PromptKind: TypeAlias = Literal["system", "user", "few-shot", "schema-hint"]
PromptRef = Annotated[
    str,
    msgspec.Meta(
        pattern=(
            r"^prompt:[a-z0-9][a-z0-9._-]{0,127}"
            r"(@\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?)?$"
        )
    ),
]
Currency = Annotated[str, msgspec.Meta(pattern=r"^[A-Z]{3}$")]
RetryReason = Annotated[
    str,
    msgspec.Meta(
        pattern=(
            r"^(schema-violation|truncation|type-drift|type-mismatch|refusal|parse-error|unknown"
            rf"|{VENDOR_KIND_PATTERN})$"
        )
    ),
]


class ProviderUsage(Closed, frozen=True, kw_only=True):
    """Usage of one model call. Exactly one event per call, also for a cached response."""

    provider: NonEmpty
    model: NonEmpty
    input_tokens: Count
    output_tokens: Count
    total_tokens: Count | Unset = UNSET
    cost_estimate_usd: Amount | Unset = UNSET
    currency: Currency | Unset = UNSET
    cache_hit: bool | Unset = UNSET
    cache_read_tokens: Count | Unset = UNSET
    cache_write_tokens: Count | Unset = UNSET
    node_id: str | Unset = UNSET
    trace_id: str | Unset = UNSET


class PromptComposed(Closed, frozen=True, kw_only=True):
    """A prompt was composed from templates. The hash replaces content that may not be shown."""

    node_id: str
    refs: list[PromptRef]
    kind: Literal["system+user", "system-only", "user-only", "agent-reasoning"]
    hash: Sha256
    composed: str | Unset = UNSET
    system_prompt: str | Unset = UNSET
    user_prompt: str | Unset = UNSET
    variable_bindings: JsonObject | Unset = UNSET
    variable_hashes: dict[str, Sha256] | Unset = UNSET
    content_trust: Literal["trusted", "untrusted"] | Unset = UNSET
    causation_host_id: NonEmpty | Unset = UNSET


class PromptLayer(Closed, frozen=True, kw_only=True):
    """One layer in which a prompt was searched."""

    layer: Literal[
        "run-configurable",
        "node",
        "agent-intrinsic",
        "agent-overrides",
        "agent-library-default",
        "workflow-defaults",
        "host-defaults",
    ]
    applied: bool
    source: str | Unset = UNSET
    reason: str | Unset = UNSET


class AgentPromptResolved(Closed, frozen=True, kw_only=True):
    """The prompt of an agent; null if no layer has one."""

    node_id: str
    kind: PromptKind
    chain: list[PromptLayer]
    resolved: str | None
    agent_id: str | Unset = UNSET
    causation_host_id: NonEmpty | Unset = UNSET


class ModelCapabilitySubstituted(Closed, frozen=True, kw_only=True):
    """Another model is used because the first lacks capabilities."""

    node_id: str
    original_provider: str
    original_model: str
    fallback_provider: str
    fallback_model: str
    missing_capabilities: DistinctNames

    def __post_init__(self) -> None:
        require_distinct("missingCapabilities", self.missing_capabilities)


class ModelCapabilityInsufficient(Closed, frozen=True, kw_only=True):
    """No available model has the required capabilities."""

    node_id: str
    provider: str
    model: str
    missing_capabilities: DistinctNames
    fallback_attempted: bool = False

    def __post_init__(self) -> None:
        require_distinct("missingCapabilities", self.missing_capabilities)


class EnvelopeRetryAttempted(Closed, frozen=True, kw_only=True):
    """A model's response was invalid, and the request is repeated."""

    node_id: str
    attempt: Annotated[int, msgspec.Meta(ge=1, le=16)]
    reason: RetryReason
    previous_error: str | Unset | None = UNSET


class EnvelopeRetryExhausted(Closed, frozen=True, kw_only=True):
    """A model's response was still invalid after the last attempt."""

    node_id: str
    total_attempts: Ordinal
    final_reason: RetryReason
    final_error: str | Unset | None = UNSET


class EnvelopeRefusal(Closed, frozen=True, kw_only=True):
    """A model refused to answer."""

    node_id: str
    provider: str
    model: str
    refusal_text: str | Unset | None = UNSET
    safety_category: str | Unset | None = UNSET


class EnvelopeTruncated(Closed, frozen=True, kw_only=True):
    """A model's response was truncated."""

    node_id: str
    provider: str
    model: str
    stop_reason: Literal["max_tokens", "length", "stop_sequence", "unknown"]
    partial_payload_available: bool = False
    output_token_count: Count | Unset | None = UNSET


class EnvelopeNlToFormatEngaged(Closed, frozen=True, kw_only=True):
    """Free text was converted to the required form by a further call."""

    node_id: str
    original_envelope_type: str
    fallback_calls: Ordinal = 1


class EnvelopeRecoveryApplied(Closed, frozen=True, kw_only=True):
    """An invalid response was repaired without a further call."""

    node_id: str
    path: Literal["direct", "jsonrepair", "markdown-fence", "brace-walker", "custom"]
    byte_offset: Count | Unset | None = UNSET


PAYLOADS: Final[dict[str, type[msgspec.Struct]]] = {
    "provider.usage": ProviderUsage,
    "prompt.composed": PromptComposed,
    "agent.promptResolved": AgentPromptResolved,
    "model.capability.substituted": ModelCapabilitySubstituted,
    "model.capability.insufficient": ModelCapabilityInsufficient,
    "envelope.retry.attempted": EnvelopeRetryAttempted,
    "envelope.retry.exhausted": EnvelopeRetryExhausted,
    "envelope.refusal": EnvelopeRefusal,
    "envelope.truncated": EnvelopeTruncated,
    "envelope.nlToFormat.engaged": EnvelopeNlToFormatEngaged,
    "envelope.recovery.applied": EnvelopeRecoveryApplied,
}
