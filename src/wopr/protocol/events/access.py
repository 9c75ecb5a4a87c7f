"""Payloads of access events: authorisation, connectors, egress, tool sessions, budgets."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from wopr.protocol.documents import UNSET, Closed, Document, NonEmpty, Unset
from wopr.protocol.events.values import Amount, Count

BudgetDimension: TypeAlias = Literal["tokens", "cost", "toolCalls", "retries"]


class AuthorizationDecided(Closed, frozen=True, kw_only=True):
    """A principal was allowed or refused an action."""

    principal: NonEmpty
    action: NonEmpty
    resource: NonEmpty
    allowed: bool
    reason: str | Unset = UNSET


class ConnectorAuthorized(Closed, frozen=True, kw_only=True):
    """A connector was authorized with a credential, which the event names."""

    provider: NonEmpty
    credential_ref: NonEmpty
    scopes: list[str] | Unset = UNSET


class ConnectorAuthExpired(Closed, frozen=True, kw_only=True):
    """A connector's credential no longer works."""

    provider: NonEmpty
    credential_ref: NonEmpty
    reason: str | Unset = UNSET


class EgressDecided(Document, frozen=True, kw_only=True):
    """An outgoing call was allowed, denied, changed or held for approval."""

    decision: Literal["allowed", "denied", "downgraded", "approval-required"]
    destination: NonEmpty
    credential_id: NonEmpty | Unset = UNSET
    reason: (
        Literal[
            "ok",
            "out-of-audience",
            "expired",
            "ssrf-blocked",
            "provenance-unevaluable",
            "scope-denied",
            "policy-denied",
        ]
        | Unset
    ) = UNSET
    audit_correlation_id: NonEmpty | Unset = UNSET


class ToolSessionOpened(Document, frozen=True, kw_only=True):
    """A session with a tool began."""

    session_id: NonEmpty
    tool_id: NonEmpty


class ToolSessionClosed(Document, frozen=True, kw_only=True):
    """A session with a tool ended."""

    session_id: NonEmpty
    tool_id: NonEmpty
    outcome: Literal["completed", "failed", "cancelled"]


class EffectiveBudget(Closed, frozen=True, kw_only=True):
    """The budget that applies."""

    max_tokens: Count | Unset = UNSET
    max_cost_usd: Amount | Unset = UNSET
    max_tool_calls: Count | Unset = UNSET
    max_retries: Count | Unset = UNSET


class BudgetReserved(Closed, frozen=True, kw_only=True):
    """A budget was reserved for the run."""

    effective_budget: EffectiveBudget
    scope: Literal["run", "workflow", "agent", "project"]


class BudgetConsumed(Closed, frozen=True, kw_only=True):
    """A part of a budget was used."""

    dimension: BudgetDimension
    consumed: Amount
    limit: Amount
    remaining: float | Unset = UNSET


class BudgetThresholdCrossed(Closed, frozen=True, kw_only=True):
    """The use of a budget crossed a threshold."""

    dimension: BudgetDimension
    consumed: Amount
    limit: Amount
    percent: Annotated[float, msgspec.Meta(ge=0, le=100)]


class BudgetExhausted(Closed, frozen=True, kw_only=True):
    """A budget is used up."""

    dimension: BudgetDimension
    consumed: Amount
    limit: Amount


PAYLOADS: Final[dict[str, type[msgspec.Struct]]] = {
    "authorization.decided": AuthorizationDecided,
    "connector.authorized": ConnectorAuthorized,
    "connector.auth_expired": ConnectorAuthExpired,
    "egress.decided": EgressDecided,
    "tool.session.opened": ToolSessionOpened,
    "tool.session.closed": ToolSessionClosed,
    "budget.reserved": BudgetReserved,
    "budget.consumed": BudgetConsumed,
    "budget.threshold.crossed": BudgetThresholdCrossed,
    "budget.exhausted": BudgetExhausted,
}
