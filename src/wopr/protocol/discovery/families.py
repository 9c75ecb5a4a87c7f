"""Capability families of the host: runs, transport, keys, limits, feedback and the fleet.

The families of agents and models are in `agent_families`. A host does not have the capability of an
absent family. An absent key has the protocol's default.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from wopr.protocol.documents import UNSET, Closed, Document, NonEmpty, Unset
from wopr.protocol.runs import DrainPolicy
from wopr.protocol.workflow import ComplianceClass, MaskingMode

_Whole = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
# One week: the minimum retention of an ended run on a production host.
_Retention = Annotated[int, msgspec.Meta(ge=604_800)]


class Family(Document, frozen=True, kw_only=True, omit_defaults=False):
    """A family that may have further keys."""


class ClosedFamily(Closed, frozen=True, kw_only=True, omit_defaults=False):
    """A family without further keys."""


class Switch(Family, frozen=True, kw_only=True):
    """A family that is only on or off."""

    supported: bool


class PauseResume(Family, frozen=True, kw_only=True):
    """Pausing a run, and the policies for its nodes in flight."""

    supported: bool
    drain_policies: list[DrainPolicy] | Unset = UNSET


class BulkCancelLimits(Family, frozen=True, kw_only=True):
    """Cancelling many runs in one request."""

    supported: bool
    max_run_ids: _Positive | Unset = UNSET


class Runs(Family, frozen=True, kw_only=True):
    """Operations on runs beyond the core."""

    pause_resume: PauseResume | Unset = UNSET
    bulk_cancel: BulkCancelLimits | Unset = UNSET


class Replay(Family, frozen=True, kw_only=True):
    """Forking runs."""

    supported: bool
    modes: list[Literal["replay", "branch"]] | Unset = UNSET
    side_effect_suppression: Literal["none", "recorded-outcome"] | Unset = UNSET


class Feedback(ClosedFamily, frozen=True, kw_only=True):
    """Annotations on runs."""

    supported: bool
    targets: list[Literal["run", "event", "node"]] | Unset = UNSET
    signals: list[Literal["rating", "correction", "label", "flag"]] | Unset = UNSET


class Webhooks(Family, frozen=True, kw_only=True):
    """Events sent to a URL."""

    supported: bool
    signature_algorithms: list[str] | Unset = UNSET
    durable: bool | Unset = UNSET


class ApproverRouting(ClosedFamily, frozen=True, kw_only=True):
    """Approvers named by group or by role."""

    supported: bool
    ref_kinds: list[Literal["group", "role"]] | Unset = UNSET
    audience: bool | Unset = UNSET


class Interrupt(ClosedFamily, frozen=True, kw_only=True):
    """Interrupts beyond the core."""

    approver_routing: ApproverRouting | Unset = UNSET


class AuditLogIntegrity(Family, frozen=True, kw_only=True):
    """The chained and signed audit log, and the key that verifies it."""

    hash_chain: bool
    checkpoint_signature_algorithm: Literal["ed25519"] = "ed25519"
    checkpoint_public_key: NonEmpty | Unset = UNSET
    checkpoint_interval_entries: _Positive = 1000
    checkpoint_interval_seconds: _Positive = 300


class KeyRotation(ClosedFamily, frozen=True, kw_only=True):
    """How long an old key still works after a rotation."""

    supported: bool
    min_grace_seconds: _Whole | Unset = UNSET


class OAuth2(ClosedFamily, frozen=True, kw_only=True):
    """Access tokens from an OAuth 2 issuer."""

    supported: bool
    issuer: str | Unset = UNSET
    audience: str | Unset = UNSET
    supported_algorithms: list[NonEmpty] | Unset = UNSET


class Oidc(ClosedFamily, frozen=True, kw_only=True):
    """Identity tokens from OpenID Connect issuers."""

    supported: bool
    issuers: Annotated[list[str], msgspec.Meta(min_length=1)] | Unset = UNSET
    audience: str | Unset = UNSET
    supported_scope_mapping: Literal["group-claim", "scope-claim", "host-acl"] | Unset = UNSET
    introspection_interval_seconds: _Whole | Unset = UNSET


class Mtls(ClosedFamily, frozen=True, kw_only=True):
    """Client certificates."""

    supported: bool
    required: bool | Unset = UNSET
    subject_mapping: Literal["cn", "san-dns", "san-uri"] | Unset = UNSET


class Auth(Family, frozen=True, kw_only=True):
    """Authentication of callers, and integrity of the audit log."""

    profiles: list[NonEmpty] | Unset = UNSET
    audit_log_integrity: AuditLogIntegrity | Unset = UNSET
    rotation: KeyRotation | Unset = UNSET
    oauth2: OAuth2 | Unset = UNSET
    oidc: Oidc | Unset = UNSET
    mtls: Mtls | Unset = UNSET


class Role(ClosedFamily, frozen=True, kw_only=True):
    """A role and the scopes it grants."""

    role: NonEmpty
    scopes: list[NonEmpty]


class Authorization(ClosedFamily, frozen=True, kw_only=True):
    """Roles. If the host cannot decide, it refuses (fail closed)."""

    supported: bool
    fail_closed: bool = True
    roles: list[Role] | Unset = UNSET

    def __post_init__(self) -> None:
        if not self.fail_closed:
            raise ValueError("authorization.failClosed must be true")


class Secrets(ClosedFamily, frozen=True, kw_only=True):
    """Secrets that runs use by name."""

    supported: bool
    scopes: list[Literal["tenant", "user", "run", "workspace"]] | Unset = UNSET
    resolution: Literal["host-managed"] = "host-managed"


class Compliance(Family, frozen=True, kw_only=True):
    """How sensitive values are masked."""

    default_mode: MaskingMode | Unset = UNSET
    supported_classes: list[ComplianceClass] | Unset = UNSET


class Idempotency(Family, frozen=True, kw_only=True):
    """How long a repeated request, or a repeated effect, is recognised."""

    supported: bool
    layer1_retention_seconds: _Positive = 86_400
    layer2_retention_seconds: _Positive = 1_209_600
    cross_region: Literal["single-region", "best-effort", "strict"] | Unset = UNSET


class Backpressure(ClosedFamily, frozen=True, kw_only=True):
    """How many requests may be in progress, and when to retry."""

    supported: bool
    inflight_cap: _Positive | Unset = UNSET
    retry_after_seconds: Annotated[int, msgspec.Meta(ge=0, le=86_400)] | Unset = UNSET


class Retention(ClosedFamily, frozen=True, kw_only=True):
    """How long ended runs are kept."""

    supported: bool
    min_window_seconds: _Retention | Unset = UNSET
    test_force_expire: bool | Unset = UNSET


class BundleTruncation(ClosedFamily, frozen=True, kw_only=True):
    """Whether a debug bundle reports what it omits."""

    supported: bool
    truncation_metadata: bool | Unset = UNSET


class Production(ClosedFamily, frozen=True, kw_only=True):
    """Guarantees of a production host."""

    supported: bool
    backpressure: Backpressure | Unset = UNSET
    retention: Retention | Unset = UNSET
    debug_bundle: BundleTruncation | Unset = UNSET


class EngineVersionRange(ClosedFamily, frozen=True, kw_only=True):
    """Engine versions that a test key may force."""

    min: _Whole
    max: _Whole


class Testing(Family, frozen=True, kw_only=True):
    """Permissions of test keys."""

    mock_providers: list[NonEmpty] | Unset = UNSET
    test_key_prefix: Annotated[str, msgspec.Meta(min_length=1, max_length=32)] | Unset = UNSET
    force_engine_version_range: EngineVersionRange | Unset = UNSET


class EgressPolicy(ClosedFamily, frozen=True, kw_only=True):
    """Whether each decision about an outgoing request is an event."""

    supported: bool
    decisions: list[Literal["allowed", "denied", "downgraded", "approval-required"]] | Unset = UNSET


class HttpClient(ClosedFamily, frozen=True, kw_only=True):
    """The HTTP client of nodes. Its SSRF guard is always on."""

    supported: bool
    ssrf_guard: bool = True
    max_response_body_bytes: _Positive | Unset = UNSET
    request_timeout_ms: _Positive | Unset = UNSET
    methods: list[str] | Unset = UNSET
    egress_policy: EgressPolicy | Unset = UNSET


class RestTransport(Family, frozen=True, kw_only=True):
    """Conditional reads and compression."""

    conditional_run_get: bool | Unset = UNSET
    content_encodings: list[str] | Unset = UNSET


class AuthScoped(ClosedFamily, frozen=True, kw_only=True):
    """A discovery document that depends on the key."""

    supported: bool
    mode: Literal["same-endpoint", "extension-endpoint"] | Unset = UNSET
    endpoint_path: Annotated[str, msgspec.Meta(pattern=r"^/")] | Unset = UNSET


class Discovery(ClosedFamily, frozen=True, kw_only=True):
    """Discovery beyond the public document."""

    auth_scoped: AuthScoped | Unset = UNSET


class Kahn(Family, frozen=True, kw_only=True):
    """The URLs for pushing, aggregating, auditing and exporting KAHN lines.

    URLs are relative to the host. The reader replaces `{runId}` and `{agentId}`.
    """

    supported: bool
    ingest_url: NonEmpty | Unset = UNSET
    aggregate_url: NonEmpty | Unset = UNSET
    audits_url: NonEmpty | Unset = UNSET
    schema_url: NonEmpty | Unset = UNSET
    export_url: NonEmpty | Unset = UNSET
    max_body_bytes: _Positive | Unset = UNSET
