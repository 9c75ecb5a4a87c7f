"""Webhook subscriptions, cached in memory to find the webhooks of every committed event."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import anyio
import msgspec

from wopr.protocol.documents import Unset, encode, to_iso
from wopr.protocol.errors import Forbidden, NotFound, Refused
from wopr.protocol.resources.webhooks import (
    RegisterWebhook,
    WebhookMade,
    WebhookSecret,
    is_event_pattern,
    matches_pattern,
)
from wopr.runs.journal import Commit
from wopr.security.encryption import NONCE_BYTES, Seal
from wopr.security.ssrf import DestinationDenied, check_url
from wopr.security.tokens import WEBHOOK_SECRET_BYTES, secret_fingerprint
from wopr.store.port import Batch, RecordBuilder, Store, StoredEvent
from wopr.store.port.webhooks import NewDeliveries, Rotation, WebhookHealth, WebhookRow

PAGE = 500
GRACE_MS = 86_400_000
MAX_PER_TENANT = 1000
REDELIVERED_AT_ONCE = 1000


class ChangedWebhooks:
    """Webhooks with new events or changed subscriptions, for the dispatcher."""

    def __init__(self) -> None:
        self._webhooks: dict[tuple[str, str], None] = {}
        self._added = anyio.Event()

    def add(self, tenant: str, webhook_id: str) -> None:
        """Signal that a webhook has new events or was changed."""
        self._webhooks[tenant, webhook_id] = None
        self._added.set()

    async def take(self) -> list[tuple[str, str]]:
        """Wait for webhooks and remove them."""
        while not self._webhooks:
            self._added = anyio.Event()
            await self._added.wait()
        changed = list(self._webhooks)
        self._webhooks.clear()
        return changed


@dataclass(slots=True)
class Subscription:
    """A webhook in memory, with its decrypted secrets."""

    tenant: str
    row: WebhookRow
    secret: str
    old_secret: str | None = None

    @property
    def health(self) -> WebhookHealth:
        """The recent failures of its receiver."""
        return self.row.health

    @health.setter
    def health(self, health: WebhookHealth) -> None:
        self.row = replace(self.row, health=health)

    def wants(self, tags: Iterable[str]) -> bool:
        """Return whether it gets events of runs with these tags. Without tags it gets all runs."""
        if self.row.health.state == "failed":
            return False
        return not self.row.tags or not set(self.row.tags).isdisjoint(tags)

    def deliveries_of(self, events: Sequence[StoredEvent]) -> NewDeliveries | None:
        """Return the events that this webhook gets, or None."""
        sequences = tuple(
            event.sequence
            for event in events
            if any(matches_pattern(pattern, event.type) for pattern in self.row.events)
        )
        if not sequences:
            return None
        return NewDeliveries(webhook_id=self.row.webhook_id, sequences=sequences)


class Subscriptions:
    """All webhooks of all tenants, and the commands that change them."""

    def __init__(
        self, store: Store, seal: Seal, *, now: Callable[[], int], allow_private: bool
    ) -> None:
        self._store = store
        self._seal = seal
        self._now = now
        self._allow_private = allow_private
        self._by_tenant: dict[str, dict[str, Subscription]] = {}
        self.changes = ChangedWebhooks()

    async def load(self, *, keeps_health: bool = True) -> None:
        """Read all subscriptions, and remove those that were deleted."""
        after: str | None = None
        known = [(tenant, name) for tenant, found in self._by_tenant.items() for name in found]
        while page := await self._store.webhook_ids(after, PAGE):
            known += page
            after = page[-1][1]
        for tenant, webhook_id in dict.fromkeys(known):
            await self.refresh(tenant, webhook_id, keeps_health=keeps_health)

    def find(self, tenant: str, webhook_id: str) -> Subscription | None:
        """Return a subscription of a tenant."""
        return self._by_tenant.get(tenant, {}).get(webhook_id)

    # Commits

    def add_deliveries(self, tenant: str, batches: Sequence[Batch]) -> Sequence[Batch]:
        """Add to each batch the deliveries of its events."""
        if tenant not in self._by_tenant:
            return batches
        return [self._with_deliveries(tenant, batch) for batch in batches]

    def _with_deliveries(self, tenant: str, batch: Batch) -> Batch:
        found = (
            subscription.deliveries_of(batch.events)
            for subscription in self._by_tenant[tenant].values()
            if subscription.wants(batch.run.tags)
        )
        deliveries = tuple(each for each in found if each is not None)
        return replace(batch, deliveries=deliveries) if deliveries else batch

    def handle_commit(self, commit: Commit) -> None:
        """Wake the webhooks with deliveries in a commit."""
        for write in commit.writes:
            for each in write.deliveries:
                self.changes.add(commit.tenant, each.webhook_id)

    # Commands

    async def register(
        self, tenant: str, request: RegisterWebhook, build_record: RecordBuilder | None = None
    ) -> WebhookMade:
        """Subscribe a URL and create its secret. The idempotency record has no secret."""
        self._check(tenant, request)
        webhook_id = f"wh_{secrets.token_hex(12)}"
        secret = secrets.token_hex(WEBHOOK_SECRET_BYTES)
        row = WebhookRow(
            webhook_id=webhook_id,
            url=request.url,
            events=tuple(dict.fromkeys(request.events)),
            tags=tuple(dict.fromkeys(request.tags)),
            secret=self._encrypt(tenant, webhook_id, secret),
            fingerprint=secret_fingerprint(secret),
            created_at=self._now(),
        )
        response = WebhookMade(
            webhook_id=webhook_id,
            subscription_id=webhook_id,
            secret_fingerprint=row.fingerprint,
            url=row.url,
            event_types=list(row.events),
            created_at=to_iso(row.created_at),
        )
        await self._store.put_webhook(
            tenant, row, build_record(encode(response)) if build_record else None
        )
        self._cache_row(tenant, row)
        return msgspec.structs.replace(response, secret=secret)

    def _check(self, tenant: str, request: RegisterWebhook) -> None:
        if not isinstance(request.tenant_id, Unset) and request.tenant_id != tenant:
            raise Forbidden("tenantId is not the tenant of this API key", field="tenantId")
        for pattern in request.events:
            if not is_event_pattern(pattern):
                raise Refused(
                    f"events: {pattern!r} is not an event type: use a type such as "
                    "run.completed, a family such as node.*, or *",
                    field="events",
                )
        _require_url(request.url)
        try:
            check_url(request.url, allow_private=self._allow_private)
        except DestinationDenied as denied:
            raise Refused(
                f"url: {denied.reason}", code="webhook_url_rejected", field="url"
            ) from denied
        if len(self._by_tenant.get(tenant, ())) >= MAX_PER_TENANT:
            raise Refused(f"A tenant may have at most {MAX_PER_TENANT} webhooks.", field="url")

    async def rotate(
        self, tenant: str, webhook_id: str, grace_ms: int, build_record: RecordBuilder | None = None
    ) -> WebhookSecret:
        """Create a new secret. The old secret also signs until the grace period ends."""
        secret = secrets.token_hex(WEBHOOK_SECRET_BYTES)
        rotation = Rotation(
            secret=self._encrypt(tenant, webhook_id, secret),
            fingerprint=secret_fingerprint(secret),
            old_secret_until=self._now() + grace_ms,
        )
        response = WebhookSecret(
            webhook_id=webhook_id,
            secret_fingerprint=rotation.fingerprint,
            previous_secret_until=to_iso(rotation.old_secret_until),
        )
        record = build_record(encode(response)) if build_record else None
        if not await self._store.rotate_webhook(tenant, webhook_id, rotation, record):
            raise _webhook_not_found(webhook_id)
        await self.refresh(tenant, webhook_id)
        return msgspec.structs.replace(response, secret=secret)

    async def remove(self, tenant: str, webhook_id: str) -> None:
        """Delete a subscription and its queued events."""
        if not await self._store.delete_webhook(tenant, webhook_id):
            raise _webhook_not_found(webhook_id)
        self._forget(tenant, webhook_id)
        self.changes.add(tenant, webhook_id)

    async def redeliver(self, tenant: str, webhook_id: str) -> int:
        """Queue the oldest dead letters again, and reset the failures of the webhook."""
        await self.require(tenant, webhook_id)
        count = await self._store.redeliver(tenant, webhook_id, self._now(), REDELIVERED_AT_ONCE)
        await self.refresh(tenant, webhook_id)
        self.changes.add(tenant, webhook_id)
        if self._store.peers is not None:
            await self._store.peers.notify_delivery(tenant, webhook_id)
        return count

    async def require(self, tenant: str, webhook_id: str) -> WebhookRow:
        """Return a subscription of a tenant. Raises `NotFound` if the tenant does not have it."""
        row = await self._store.webhook(tenant, webhook_id)
        if row is None:
            raise _webhook_not_found(webhook_id)
        return row

    async def refresh(self, tenant: str, webhook_id: str, *, keeps_health: bool = False) -> None:
        """Read a subscription again after it was added, changed or deleted.

        The process that delivers counts failures in memory before they are stored. With
        `keeps_health` its counts stay, unless another process has changed the state.
        """
        row = await self._store.webhook(tenant, webhook_id)
        if row is None:
            self._forget(tenant, webhook_id)
            return
        before = self.find(tenant, webhook_id)
        self._cache_row(tenant, row)
        if keeps_health and before is not None and before.health.state == row.health.state:
            self._by_tenant[tenant][webhook_id].health = before.health

    def _forget(self, tenant: str, webhook_id: str) -> None:
        known = self._by_tenant.get(tenant, {})
        known.pop(webhook_id, None)
        if not known:
            self._by_tenant.pop(tenant, None)

    def _cache_row(self, tenant: str, row: WebhookRow) -> None:
        self._by_tenant.setdefault(tenant, {})[row.webhook_id] = Subscription(
            tenant,
            row,
            self._decrypt(tenant, row.webhook_id, row.secret),
            None
            if row.old_secret is None
            else self._decrypt(tenant, row.webhook_id, row.old_secret),
        )

    def _encrypt(self, tenant: str, webhook_id: str, secret: str) -> bytes:
        return self._seal.seal(
            secret.encode(),
            nonce=secrets.token_bytes(NONCE_BYTES),
            context=_context(tenant, webhook_id),
        )

    def _decrypt(self, tenant: str, webhook_id: str, sealed: bytes) -> str:
        return self._seal.open(sealed, context=_context(tenant, webhook_id)).decode()


def _context(tenant: str, webhook_id: str) -> bytes:
    return f"{webhook_id}:{tenant}".encode()


def _require_url(url: str) -> None:
    """Refuse text that is not an absolute URL."""
    scheme, separator, rest = url.partition("://")
    if not separator or not scheme.isascii() or not scheme.isalnum() or not rest.strip("/"):
        raise Refused("url must be an absolute https URL", field="url")


def _webhook_not_found(webhook_id: str) -> NotFound:
    return NotFound(f"there is no webhook {webhook_id[:128]!r}", code="subscription_not_found")
