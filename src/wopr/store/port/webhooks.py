"""The part of the store's port about webhooks: who is told of which events, and what is still unsaid.

The rules of `wopr.store.port` hold here too: every call names its tenant, and no call crosses
one but `webhook_ids` and `undelivered`, which answer with owners and ids only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from wopr.store.port.answers import RememberedAnswer

WebhookState: TypeAlias = Literal["active", "open", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How a receiver has been doing.

    `failures` counts the deliveries that failed since the last one that was taken, and `recent`
    holds when the last ones did. While it is open nothing is sent until `open_until`.
    """

    state: WebhookState = "active"
    failures: int = 0
    recent: tuple[int, ...] = ()
    open_until: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRow:
    """A subscription. Secrets are sealed; `fingerprint` tells one from another."""

    webhook_id: str
    url: str
    events: tuple[str, ...]
    secret: bytes
    fingerprint: str
    created_at: int
    tags: tuple[str, ...] = ()
    health: Health = Health()
    # After a rotation: the secret before, which goes on signing until then.
    old_secret: bytes | None = None
    old_secret_until: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A new secret of a subscription, and how long the one before goes on signing."""

    secret: bytes
    fingerprint: str
    old_secret_until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Events of one batch that a subscription is to be told of, by their sequences."""

    webhook_id: str
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What a subscription has still to be told of one run, strictly in the log's order."""

    run_id: str
    # How often the first of it has failed.
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One event on its way; `body` is what the log holds."""

    sequence: int
    type: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """An event that was given up, and why."""

    run_id: str
    sequence: int
    type: str
    attempts: int
    reason: str
    died_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What came of a lane's turn.

    `delivered` are taken off the lane, and so is `dead`. What is left of the lane is due at
    `due_at`, and its first event has failed `attempts` times. A subscription whose health is
    "failed" is told nothing more: all it still had to be told becomes dead letters.
    """

    webhook_id: str
    run_id: str
    health: Health
    now: int
    due_at: int
    attempts: int = 0
    delivered: tuple[int, ...] = ()
    dead: DeadLetter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPage:
    """Newest first. `next_after` is the place to go on from, or None at the end."""

    letters: tuple[DeadLetter, ...]
    next_after: tuple[int, str] | None


class Webhooks(Protocol):
    """Subscriptions, by tenant."""

    async def put_webhook(
        self, tenant: str, row: WebhookRow, remember: RememberedAnswer | None = None
    ) -> None:
        """Keep a new subscription, and with it the answer to the request that asked for it.

        Raises `Conflict` with code `idempotency_in_flight` when an answer is already remembered.
        """
        ...

    async def webhook(self, tenant: str, webhook_id: str) -> WebhookRow | None:
        """The subscription, or None for an unknown or a foreign one."""
        ...

    async def webhooks(
        self, tenant: str, after: tuple[int, str] | None, limit: int
    ) -> list[WebhookRow]:
        """The tenant's subscriptions, newest first, after the given `(created_at, webhook_id)`."""
        ...

    async def rotate_webhook(
        self,
        tenant: str,
        webhook_id: str,
        rotation: Rotation,
        remember: RememberedAnswer | None = None,
    ) -> bool:
        """Give a subscription a new secret; False when there is no such subscription."""
        ...

    async def delete_webhook(self, tenant: str, webhook_id: str) -> bool:
        """Forget a subscription and all it had still to be told; False when there is none."""
        ...

    async def webhook_ids(self, after: str | None, limit: int) -> list[tuple[str, str]]:
        """`(tenant, webhook_id)` of all subscriptions after that id, for the host's start."""
        ...


class Outbox(Protocol):
    """Deliveries that are due, waiting or given up; `RunLog.append` adds them."""

    async def undelivered(self) -> list[tuple[str, str]]:
        """`(tenant, webhook_id)` of the subscriptions that have still to be told something."""
        ...

    async def due_lanes(self, tenant: str, webhook_id: str, now: int, limit: int) -> list[Lane]:
        """The lanes of a subscription whose time has come, earliest first."""
        ...

    async def next_lane_due(self, tenant: str, webhook_id: str) -> int | None:
        """When the next lane of a subscription is due; None when all is said."""
        ...

    async def deliveries(
        self, tenant: str, webhook_id: str, run_id: str, limit: int
    ) -> Sequence[Delivery]:
        """The first events of a lane."""
        ...

    async def settle_deliveries(self, tenant: str, settlement: Settlement) -> None:
        """Keep what came of a lane's turn; nothing for a subscription that is gone."""
        ...

    async def dead_letters(
        self, tenant: str, webhook_id: str, after: tuple[int, str] | None, limit: int
    ) -> DeadLetterPage:
        """A page of what was given up, newest first, by keyset."""
        ...

    async def redeliver(self, tenant: str, webhook_id: str, now: int, limit: int) -> int:
        """Put the oldest dead letters back on their lanes, due now, and begin with a clean health.

        Answers how many there were, up to the limit.
        """
        ...
