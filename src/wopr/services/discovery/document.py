"""The discovery document, built from the settings and the registered definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from wopr.agents.models.mock import SCRIPT_TYPES
from wopr.kahn.events import AGENT_SCHEMA
from wopr.nodes.http_request import HttpMethod
from wopr.nodes.registry import NodeRegistry
from wopr.process.settings import Settings
from wopr.protocol.discovery.document import (
    Capabilities,
    Implementation,
    Limits,
    Observability,
    Otel,
)
from wopr.protocol.discovery.families import (
    AuditLogIntegrity,
    Auth,
    Authorization,
    Backpressure,
    BulkCancelLimits,
    BundleTruncation,
    Compliance,
    EngineVersionRange,
    Feedback,
    HttpClient,
    Idempotency,
    Kahn,
    KeyRotation,
    PauseResume,
    Production,
    Replay,
    RestTransport,
    Retention,
    Role,
    Runs,
    Switch,
    Testing,
    Webhooks,
)
from wopr.protocol.documents import UNSET, Unset
from wopr.protocol.events import ENGINE_VERSION, EVENT_LOG_SCHEMA_VERSION
from wopr.protocol.resources.annotations import SIGNAL_KINDS, TARGETS
from wopr.protocol.workflow import ComplianceClass
from wopr.runs.requests import OLDEST_ENGINE
from wopr.security.api_keys import ROLES, TEST_KEY_PREFIX
from wopr.security.tokens import WEBHOOK_SIGNATURE_VERSION
from wopr.services.audit.trail import INTERVAL_ENTRIES, INTERVAL_SECONDS
from wopr.services.discovery.agent_families import agent_families, model_families
from wopr.services.retention import INVOCATIONS_KEPT_SECONDS, RESPONSES_KEPT_SECONDS
from wopr.version import __version__

MAX_RESPONSE_BODY_BYTES = 4 * 1024 * 1024
ROTATION_GRACE_SECONDS = 86_400
RETRY_AFTER_SECONDS = 1


def capabilities(
    settings: Settings,
    registry: NodeRegistry,
    fixtures: Sequence[str],
    audit_key: str,
    providers: Sequence[str] | None = None,
) -> Capabilities:
    """Return the capabilities of this host.

    `providers` are the names of the configured model providers. None means that the host has no
    models; an empty list means that a program brings its own models.
    """
    base = agent_families(settings, registry, _core(settings, fixtures, audit_key))
    return base if providers is None else model_families(base, providers)


def _core(settings: Settings, fixtures: Sequence[str], audit_key: str) -> Capabilities:
    return Capabilities(
        supported_envelopes=[],
        limits=_limits(settings),
        implementation=Implementation(name="wopr", version=__version__, vendor="wopr"),
        engine_version=ENGINE_VERSION,
        event_log_schema_version=EVENT_LOG_SCHEMA_VERSION,
        protocol_versions=["1.0"],
        supported_transports=["rest", "mcp"] if settings.serves_mcp else ["rest"],
        observability=Observability(otel=Otel(export_protocols=["http/protobuf"])),
        fixtures=list(fixtures) or UNSET,
        runs=Runs(
            pause_resume=PauseResume(
                supported=True, drain_policies=["immediate", "drain-current-node"]
            ),
            bulk_cancel=BulkCancelLimits(supported=True, max_run_ids=100),
        ),
        replay=Replay(
            supported=True,
            modes=["replay", "branch"],
            side_effect_suppression="recorded-outcome",
        ),
        feedback=_feedback(settings),
        debug_bundle=Switch(supported=True),
        webhooks=Webhooks(
            supported=True, signature_algorithms=[WEBHOOK_SIGNATURE_VERSION], durable=True
        ),
        auth=Auth(
            profiles=["openwop-auth-api-key-rotation", "openwop-audit-log-integrity"],
            audit_log_integrity=AuditLogIntegrity(
                hash_chain=True,
                checkpoint_public_key=audit_key,
                checkpoint_interval_entries=INTERVAL_ENTRIES,
                checkpoint_interval_seconds=INTERVAL_SECONDS,
            ),
            rotation=KeyRotation(supported=True, min_grace_seconds=ROTATION_GRACE_SECONDS),
        ),
        authorization=Authorization(
            supported=True,
            roles=[Role(role=name, scopes=sorted(scopes)) for name, scopes in ROLES.items()],
        ),
        compliance=Compliance(
            default_mode="mask", supported_classes=list(get_args(ComplianceClass))
        ),
        idempotency=Idempotency(
            supported=True,
            layer1_retention_seconds=RESPONSES_KEPT_SECONDS,
            layer2_retention_seconds=INVOCATIONS_KEPT_SECONDS,
            cross_region="single-region",
        ),
        production=_production(settings),
        testing=Testing(
            mock_providers=list(SCRIPT_TYPES),
            test_key_prefix=TEST_KEY_PREFIX,
            force_engine_version_range=EngineVersionRange(min=OLDEST_ENGINE, max=ENGINE_VERSION),
        ),
        http_client=_http_client(settings),
        rest_transport=RestTransport(conditional_run_get=True),
        kahn=_kahn(settings),
    )


def _http_client(settings: Settings) -> HttpClient | Unset:
    """Return the family of outgoing requests, unless the host may call private addresses."""
    if settings.allow_private_destinations:
        return UNSET
    return HttpClient(
        supported=True,
        max_response_body_bytes=MAX_RESPONSE_BODY_BYTES,
        methods=list(get_args(HttpMethod)),
    )


def _feedback(settings: Settings) -> Feedback | Unset:
    if not settings.feedback:
        return UNSET
    return Feedback(supported=True, targets=list(TARGETS), signals=list(SIGNAL_KINDS))


def _limits(settings: Settings) -> Limits:
    return Limits(
        max_node_executions=settings.limits.max_node_executions,
        max_run_duration_ms=settings.limits.max_run_duration_ms,
        max_loop_iterations=settings.limits.max_loop_iterations,
        max_budget_tokens=settings.max_budget_tokens or UNSET,
        max_budget_cost_usd=settings.max_budget_cost_usd or UNSET,
        max_request_body_bytes=settings.max_body_bytes,
    )


def _production(settings: Settings) -> Production:
    return Production(
        supported=True,
        backpressure=Backpressure(
            supported=True,
            inflight_cap=settings.max_in_flight,
            retry_after_seconds=RETRY_AFTER_SECONDS,
        ),
        retention=Retention(supported=True, min_window_seconds=settings.retention_days * 86_400),
        debug_bundle=BundleTruncation(supported=True, truncation_metadata=True),
    )


def _kahn(settings: Settings) -> Kahn:
    """Return the endpoints and limits of the KAHN fleet."""
    return Kahn(
        supported=True,
        ingest_url="/v1/ingest/transitions",
        aggregate_url="/api/agent-runs/aggregate",
        audits_url="/api/audit-checkpoints/flakiness",
        schema_url=f"/v1/schemas/{AGENT_SCHEMA}.json",
        export_url="/api/runs/{runId}/transitions",
        max_body_bytes=settings.max_push_bytes,
    )
