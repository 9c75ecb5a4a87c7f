"""Webhook subscriptions and their deliveries.

`webhook_ids` and `undelivered` cross tenants; they return tenants and ids only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from wopr.store.port.idempotency import IdempotencyRecord

WebhookState: TypeAlias = Literal["active", "open", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookHealth:
    """The state of the receiver of a subscription.

    `failures` counts the failed deliveries since the last success, and `recent` has the times of
    the last failures. In the state "open" nothing is sent until `open_until`.
    """

    state: WebhookState = "active"
    failures: int = 0
    recent: tuple[int, ...] = ()
    open_until: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRow:
    """A subscription. Secrets are encrypted; `fingerprint` identifies a secret."""

    webhook_id: str
    url: str
    events: tuple[str, ...]
    secret: bytes
    fingerprint: str
    created_at: int
    tags: tuple[str, ...] = ()
    health: WebhookHealth = WebhookHealth()
    # After a rotation: the previous secret, which also signs deliveries until this time.
    old_secret: bytes | None = None
    old_secret_until: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A new secret of a subscription, and until when the previous one also signs."""

    secret: bytes
    fingerprint: str
    old_secret_until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDeliveries:
    """The events of one batch to deliver to a subscription, by their sequences."""

    webhook_id: str
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryQueue:
    """The events of one run that a subscription has not received yet, in the order of the log."""

    run_id: str
    # How often the first event has failed.
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One event to deliver; `body` is the bytes of the log."""

    sequence: int
    type: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """An event that will not be delivered, and the reason."""

    run_id: str
    sequence: int
    type: str
    attempts: int
    reason: str
    died_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryResult:
    """The result of one attempt to deliver the events of a queue.

    `delivered` and `dead` are removed from the queue. The rest of the queue is due at `due_at`, and
    its first event has failed `attempts` times. If the health is "failed", all deliveries of the
    subscription become dead letters.
    """

    webhook_id: str
    run_id: str
    health: WebhookHealth
    now: int
    due_at: int
    attempts: int = 0
    delivered: tuple[int, ...] = ()
    dead: DeadLetter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPage:
    """A page of dead letters, newest first.

    The next page starts after `next_after`; None at the end.
    """

    letters: tuple[DeadLetter, ...]
    next_after: tuple[int, str] | None


class Webhooks(Protocol):
    """Subscriptions, by tenant."""

    async def put_webhook(
        self, tenant: str, row: WebhookRow, idempotency: IdempotencyRecord | None = None
    ) -> None:
        """Store a new subscription and the response to its request.

        Raises `Conflict` with code `idempotency_in_flight` when a response is already stored.
        """
        ...

    async def webhook(self, tenant: str, webhook_id: str) -> WebhookRow | None:
        """Return the subscription, or None for an unknown one, or one of another tenant."""
        ...

    async def webhooks(
        self, tenant: str, after: tuple[int, str] | None, limit: int
    ) -> list[WebhookRow]:
        """List the tenant's subscriptions after that `(created_at, webhook_id)`, newest first."""
        ...

    async def rotate_webhook(
        self,
        tenant: str,
        webhook_id: str,
        rotation: Rotation,
        idempotency: IdempotencyRecord | None = None,
    ) -> bool:
        """Give a subscription a new secret; False when there is no such subscription."""
        ...

    async def delete_webhook(self, tenant: str, webhook_id: str) -> bool:
        """Delete a subscription and its deliveries; False when there is no such subscription."""
        ...

    async def webhook_ids(self, after: str | None, limit: int) -> list[tuple[str, str]]:
        """List `(tenant, webhook_id)` of all subscriptions after that id, for the host's start."""
        ...


class Outbox(Protocol):
    """Deliveries; `RunLog.append` adds them."""

    async def webhooks_with_deliveries(self) -> list[tuple[str, str]]:
        """List `(tenant, webhook_id)` of the subscriptions with deliveries."""
        ...

    async def due_queues(
        self, tenant: str, webhook_id: str, now: int, limit: int
    ) -> list[DeliveryQueue]:
        """List the queues of a subscription that are due, earliest first."""
        ...

    async def next_queue_due(self, tenant: str, webhook_id: str) -> int | None:
        """Return when the next queue of a subscription is due; None if it has no deliveries."""
        ...

    async def deliveries(
        self, tenant: str, webhook_id: str, run_id: str, limit: int
    ) -> Sequence[Delivery]:
        """List the first events of a queue."""
        ...

    async def settle_deliveries(self, tenant: str, result: DeliveryResult) -> None:
        """Record the result of an attempt; ignored if the subscription was deleted."""
        ...

    async def dead_letters(
        self, tenant: str, webhook_id: str, after: tuple[int, str] | None, limit: int
    ) -> DeadLetterPage:
        """List a page of dead letters, newest first, by keyset."""
        ...

    async def redeliver(self, tenant: str, webhook_id: str, now: int, limit: int) -> int:
        """Move the oldest dead letters back to their queues, due now, and reset the health.

        Returns the number of letters, up to the limit.
        """
        ...
