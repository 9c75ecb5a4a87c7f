"""The error catalogue: the codes of error responses with their status, and the error classes.

WoprError
├── Refused                 400  the request is invalid; names the field
│   ├── BadStreamMode       400  unsupported_stream_mode
│   ├── BadMockProvider     400  unsupported_mock_provider
│   ├── BadEngineVersion    400  unsupported_force_engine_version
│   └── CapabilityRequired  400  capability_required
├── Unauthenticated         401  unauthenticated, key_expired, key_revoked
├── Forbidden               403  forbidden and its narrower codes
├── NotFound                404  unknown, or of another tenant
├── Gone                    410  deleted by retention
├── Conflict                409  the state of the resource does not allow it
│   ├── SequenceTaken       409  another writer appended first; the host retries
│   ├── LeaseLost           409  another process executes the run's nodes now
│   └── DescendantLimit     409  a root run has as many descendants as the host allows
├── TooLarge                413  a body over the limit
├── Unprocessable           422  well-formed, but this host cannot do it
├── RateLimited             429  too many requests; names when to retry
│   └── QuotaExceeded       429  a quota is used up; names it, its limit and its use
├── NotProvided             501  a capability that is switched off
└── Unavailable             503  draining or over capacity
"""

from __future__ import annotations

from typing import ClassVar

from wopr.protocol.documents import Closed, JsonObject, NonEmpty

# The HTTP status of every error code. A test checks that every raised code is in this table.
CATALOGUE: dict[str, int] = {
    "validation_error": 400,
    "unsupported_stream_mode": 400,
    "unsupported_model_class": 400,
    "unsupported_mock_provider": 400,
    "unsupported_force_engine_version": 400,
    "webhook_url_rejected": 400,
    "channel_access_denied": 400,
    "channel_cross_engine_write_forbidden": 400,
    "INVALID_RESUME_VALUE": 400,
    "credential_scope_unsupported": 400,
    "capability_required": 400,
    "unknown_child_workflow": 400,
    "unauthenticated": 401,
    "key_expired": 401,
    "key_revoked": 401,
    "forbidden": 403,
    "run_forbidden": 403,
    "workspace_membership_required": 403,
    "mock_provider_forbidden": 403,
    "force_engine_version_forbidden": 403,
    "credential_forbidden": 403,
    "credential_scope_forbidden": 403,
    "not_found": 404,
    "interrupt_not_found": 404,
    "subscription_not_found": 404,
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "request_timeout": 408,
    "run_already_active": 409,
    "run_state_conflict": 409,
    "workflow_exists": 409,
    "agent_exists": 409,
    "sequence_taken": 409,
    "hold_lost": 409,
    "idempotency_in_flight": 409,
    "idempotency_key_mismatch": 409,
    "interrupt_already_resolved": 409,
    "workspace_conflict": 409,
    "would_rewrite": 409,
    "review_conflict": 409,
    "descendant_limit_exceeded": 409,
    "interrupt_expired": 410,
    "interrupt_gone": 410,
    "run_expired": 410,
    "workspace_too_large": 413,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "interrupt_cancelled": 422,
    "correlation_mismatch": 422,
    "unprocessable": 422,
    "replay_memory_snapshot_unavailable": 422,
    "invalid_from_seq": 422,
    "upgrade_required": 426,
    "rate_limited": 429,
    "quota_exceeded": 429,
    "header_too_large": 431,
    "internal_error": 500,
    "capability_not_provided": 501,
    "service_unavailable": 503,
}

# Codes of `RunSnapshot.error.code`. They have no HTTP status.
RUN_CODES: frozenset[str] = frozenset(
    {
        "recursion_limit_exceeded",
        "descendant_limit_exceeded",
        "value_too_large",
        "event_too_large",
        "run_data_limit_exceeded",
        "run_timeout",
        "loop_limit_exceeded",
        "budget_exhausted",
        "token_budget_exceeded",
        "quota_exceeded",
        "capability_not_provided",
        "engine_version_mismatch",
        "version_out_of_range",
        "credential_required",
        "credential_unavailable",
        "credential_not_found",
        "provider_policy_denied",
        "channel_schema_breaking_change",
        "channel_access_denied",
        "replay_source_missing",
        "replay_memory_snapshot_unavailable",
        "replay_diverged_at_refusal",
        "no_pending_decision",
        "fan_out_unsupported",
        "unknown_child_workflow",
        "handoff_task_schema_violation",
        "handoff_return_schema_violation",
        "envelope_payload_invalid",
        "envelope_truncation_unrecoverable",
        "envelope_refused_by_provider",
        "model_error",
        "model_rejected",
        "model_timeout",
        "model_unavailable",
        "tool_call_invalid",
        "tool_error",
        "tool_timeout",
        "tool_unavailable",
        "credential_forbidden",
        "runner_unavailable",
        "residency_unavailable",
        "unsupported_node_type",
        "validation_error",
        "schema_check_failed",
        "expression_error",
        "node_error",
        "node_timeout",
        "child_failed",
        "child_cancelled",
        "egress_denied",
        "http_error",
        "internal_error",
        "interrupt_rejected",
        "interrupt_timeout",
        "decision_rejected",
        "framework_error",
    }
)


class ErrorEnvelope(Closed, frozen=True, kw_only=True):
    """The body of every error response."""

    error: NonEmpty
    message: NonEmpty
    details: JsonObject = {}


class WoprError(Exception):
    """A failure with a protocol code. Only the HTTP layer turns it into a response."""

    default_code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, code: str | None = None, **details: object) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.message = message
        self.details = {name: value for name, value in details.items() if value is not None}

    @property
    def status(self) -> int:
        """Return the HTTP status of this error's code."""
        return CATALOGUE[self.code]

    def envelope(self) -> ErrorEnvelope:
        """Return the error as its wire document."""
        return ErrorEnvelope(error=self.code, message=self.message, details=self.details)


class Refused(WoprError):
    """The request is invalid. The message names the field and what was expected."""

    default_code = "validation_error"


class BadStreamMode(Refused):
    """An unknown stream mode, or modes that cannot be combined."""

    default_code = "unsupported_stream_mode"


class BadMockProvider(Refused):
    """A mock provider that this host does not have."""

    default_code = "unsupported_mock_provider"


class BadEngineVersion(Refused):
    """A forced engine version outside the advertised range."""

    default_code = "unsupported_force_engine_version"


class CapabilityRequired(Refused):
    """A workflow that needs a capability which is not advertised."""

    default_code = "capability_required"


class Unauthenticated(WoprError):
    """No key, or not a valid one."""

    default_code = "unauthenticated"


class Forbidden(WoprError):
    """A valid key that may not do this."""

    default_code = "forbidden"


class NotFound(WoprError):
    """The resource does not exist or belongs to another tenant.

    The response does not tell which.
    """

    default_code = "not_found"


class Conflict(WoprError):
    """The current state of the resource does not allow the operation."""

    default_code = "run_state_conflict"


class SequenceTaken(Conflict):
    """Another writer appended first; reload the run and plan again."""

    default_code = "sequence_taken"


class LeaseLost(Conflict):
    """Another process has the lease of the run. Results of this process's nodes are dropped."""

    default_code = "hold_lost"


class DescendantLimit(Conflict):
    """The root run has as many descendants (children and forks of any depth) as the host allows."""

    default_code = "descendant_limit_exceeded"

    def __init__(self, root_run_id: str, *, limit: int, current: int) -> None:
        super().__init__(
            f"run {root_run_id} has {current} descendants, and the limit is {limit}: start a new "
            "run instead of one more child or fork of this one",
            limit=limit,
            current=current,
            rootRunId=root_run_id,
        )


class Gone(WoprError):
    """The resource existed and was deleted by retention."""

    default_code = "run_expired"


class TooLarge(WoprError):
    """A request body over the limit."""

    default_code = "payload_too_large"


class Unprocessable(WoprError):
    """The request is well-formed, but this host cannot do it. The status is 422 for every code."""

    default_code = "unprocessable"

    @property
    def status(self) -> int:
        """Always 422."""
        return 422


class RateLimited(WoprError):
    """Too many requests. The response says when to retry."""

    default_code = "rate_limited"

    def __init__(self, message: str, *, retry_after: int, **details: object) -> None:
        super().__init__(message)
        self.details = {"retryAfterMs": retry_after * 1000, **details}
        self.retry_after = retry_after


class QuotaExceeded(RateLimited):
    """A quota is used up. The response has the quota, its limit, its use and when to retry.

    `remedy` is a sentence that says how to free some of the quota.
    """

    default_code = "quota_exceeded"

    def __init__(
        self,
        quota: str,
        *,
        limit: int,
        current: int,
        remedy: str,
        retry_after: int = 5,
        **details: object,
    ) -> None:
        super().__init__(
            f'Quota "{quota}" of this tenant is used up: {current} of {limit}. {remedy} '
            "Or ask the operator for a higher quota.",
            retry_after=retry_after,
            quota=quota,
            limit=limit,
            current=current,
            scope="tenant",
            **details,
        )


class NotProvided(WoprError):
    """A capability that is switched off."""

    default_code = "capability_not_provided"


class Unavailable(WoprError):
    """The host is stopping or over capacity."""

    default_code = "service_unavailable"

    def __init__(self, message: str, *, retry_after: int = 1, **details: object) -> None:
        super().__init__(message)
        self.details = {"retryAfter": retry_after, **details}
        self.retry_after = retry_after
