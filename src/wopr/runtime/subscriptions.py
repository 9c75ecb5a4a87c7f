"""Subscriptions: which events go to which webhook, asked at every commit and answered from memory."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from wopr.protocol.documents import Unset, encode
from wopr.protocol.errors import Forbidden, NotFound, Refused
from wopr.protocol.times import to_iso
from wopr.protocol.webhooks import (
    RegisterWebhook,
    WebhookMade,
    WebhookSecret,
    is_pattern,
    matches,
)
from wopr.security.seal import NONCE_BYTES, Seal
from wopr.security.ssrf import DestinationDenied, check_url
from wopr.security.webhook_signature import SECRET_BYTES, fingerprint
from wopr.store.port import Batch, RememberedAnswer, Store, StoredEvent
from wopr.store.port.webhooks import Health, Notice, Rotation, WebhookRow

Remember = Callable[[bytes], RememberedAnswer]
PAGE = 500
GRACE_MS = 86_400_000
MOST_PER_TENANT = 1000
REDELIVERED_AT_ONCE = 1000


@dataclass(slots=True)
class Subscription:
    """A webhook in memory, with its secrets in the clear."""

    tenant: str
    row: WebhookRow
    secret: str
    old_secret: str | None = None

    @property
    def health(self) -> Health:
        """How its receiver has been doing."""
        return self.row.health

    @health.setter
    def health(self, health: Health) -> None:
        self.row = replace(self.row, health=health)

    def wants(self, tags: Iterable[str]) -> bool:
        """Whether it hears of runs with these tags; without tags of its own, of all runs."""
        if self.row.health.state == "failed":
            return False
        return not self.row.tags or not set(self.row.tags).isdisjoint(tags)

    def notice(self, events: Sequence[StoredEvent]) -> Notice | None:
        """The events among these that it is to be told of."""
        sequences = tuple(
            event.sequence
            for event in events
            if any(matches(pattern, event.type) for pattern in self.row.events)
        )
        if not sequences:
            return None
        return Notice(webhook_id=self.row.webhook_id, sequences=sequences)


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
        # Told of every webhook that has something to be delivered.
        self.has_news: Callable[[str, str], None] = lambda tenant, webhook_id: None

    async def load(self, *, keeps_health: bool = True) -> None:
        """Read all subscriptions; those that are gone meanwhile are forgotten."""
        after: str | None = None
        known = [(tenant, name) for tenant, kept in self._by_tenant.items() for name in kept]
        while page := await self._store.webhook_ids(after, PAGE):
            known += page
            after = page[-1][1]
        for tenant, webhook_id in dict.fromkeys(known):
            await self.refresh(tenant, webhook_id, keeps_health=keeps_health)

    def find(self, tenant: str, webhook_id: str) -> Subscription | None:
        """A tenant's subscription."""
        return self._by_tenant.get(tenant, {}).get(webhook_id)

    # What is to be told

    def address(self, tenant: str, batches: Sequence[Batch]) -> Sequence[Batch]:
        """Say in each batch which webhooks are to be told of it; nothing for a tenant without."""
        if tenant not in self._by_tenant:
            return batches
        return [self._addressed(tenant, batch) for batch in batches]

    def _addressed(self, tenant: str, batch: Batch) -> Batch:
        found = (
            subscription.notice(batch.events)
            for subscription in self._by_tenant[tenant].values()
            if subscription.wants(batch.run.tags)
        )
        notices = tuple(notice for notice in found if notice is not None)
        return replace(batch, notices=notices) if notices else batch

    def committed(self, tenant: str, batches: Sequence[Batch]) -> None:
        """Hear that batches are durable, and pass on whose turn it is."""
        for batch in batches:
            for notice in batch.notices:
                self.has_news(tenant, notice.webhook_id)

    # Commands

    async def register(
        self, tenant: str, request: RegisterWebhook, remember: Remember | None = None
    ) -> WebhookMade:
        """Subscribe a URL and make its secret; the answer that is remembered does not hold it."""
        self._check(tenant, request)
        webhook_id = f"wh_{secrets.token_hex(12)}"
        secret = secrets.token_hex(SECRET_BYTES)
        row = WebhookRow(
            webhook_id=webhook_id,
            url=request.url,
            events=tuple(dict.fromkeys(request.events)),
            tags=tuple(dict.fromkeys(request.tags)),
            secret=self._sealed(tenant, webhook_id, secret),
            fingerprint=fingerprint(secret),
            created_at=self._now(),
        )
        answer = WebhookMade(
            webhook_id=webhook_id,
            subscription_id=webhook_id,
            secret_fingerprint=row.fingerprint,
            url=row.url,
            event_types=list(row.events),
            created_at=to_iso(row.created_at),
        )
        await self._store.put_webhook(tenant, row, remember(encode(answer)) if remember else None)
        self._keep(tenant, row)
        return msgspec.structs.replace(answer, secret=secret)

    def _check(self, tenant: str, request: RegisterWebhook) -> None:
        if not isinstance(request.tenant_id, Unset) and request.tenant_id != tenant:
            raise Forbidden(
                "tenantId names a tenant that this key is no member of", field="tenantId"
            )
        for pattern in request.events:
            if not is_pattern(pattern):
                raise Refused(
                    f"events: {pattern!r} names no event; use a type such as run.completed, "
                    "a family such as node.*, or *",
                    field="events",
                )
        _require_url(request.url)
        try:
            check_url(request.url, allow_private=self._allow_private)
        except DestinationDenied as denied:
            raise Refused(
                f"url: {denied.reason}", code="webhook_url_rejected", field="url"
            ) from denied
        if len(self._by_tenant.get(tenant, ())) >= MOST_PER_TENANT:
            raise Refused(f"a tenant may have {MOST_PER_TENANT} webhooks at most", field="url")

    async def rotate(
        self, tenant: str, webhook_id: str, grace_ms: int, remember: Remember | None = None
    ) -> WebhookSecret:
        """Make a new secret; the one before goes on signing until the grace is over."""
        secret = secrets.token_hex(SECRET_BYTES)
        rotation = Rotation(
            secret=self._sealed(tenant, webhook_id, secret),
            fingerprint=fingerprint(secret),
            old_secret_until=self._now() + grace_ms,
        )
        answer = WebhookSecret(
            webhook_id=webhook_id,
            secret_fingerprint=rotation.fingerprint,
            previous_secret_until=to_iso(rotation.old_secret_until),
        )
        kept = remember(encode(answer)) if remember else None
        if not await self._store.rotate_webhook(tenant, webhook_id, rotation, kept):
            raise _unknown(webhook_id)
        await self.refresh(tenant, webhook_id)
        return msgspec.structs.replace(answer, secret=secret)

    async def remove(self, tenant: str, webhook_id: str) -> None:
        """Forget a subscription, and all it had still to be told."""
        if not await self._store.delete_webhook(tenant, webhook_id):
            raise _unknown(webhook_id)
        self._forget(tenant, webhook_id)
        self.has_news(tenant, webhook_id)

    async def redeliver(self, tenant: str, webhook_id: str) -> int:
        """Try the oldest dead letters once more, and trust the receiver again."""
        await self.require(tenant, webhook_id)
        count = await self._store.redeliver(tenant, webhook_id, self._now(), REDELIVERED_AT_ONCE)
        await self.refresh(tenant, webhook_id)
        self.has_news(tenant, webhook_id)
        if self._store.peers is not None:
            await self._store.peers.owe(tenant, webhook_id)
        return count

    async def require(self, tenant: str, webhook_id: str) -> WebhookRow:
        """The tenant's subscription; unknown and foreign are the same."""
        row = await self._store.webhook(tenant, webhook_id)
        if row is None:
            raise _unknown(webhook_id)
        return row

    async def refresh(self, tenant: str, webhook_id: str, *, keeps_health: bool = False) -> None:
        """Read a subscription once more: it is new, other or gone.

        Whoever delivers counts in memory and is ahead of the store: with `keeps_health` only a
        state that another process has changed is taken over.
        """
        row = await self._store.webhook(tenant, webhook_id)
        if row is None:
            self._forget(tenant, webhook_id)
            return
        before = self.find(tenant, webhook_id)
        self._keep(tenant, row)
        if keeps_health and before is not None and before.health.state == row.health.state:
            self._by_tenant[tenant][webhook_id].health = before.health

    def _forget(self, tenant: str, webhook_id: str) -> None:
        known = self._by_tenant.get(tenant, {})
        known.pop(webhook_id, None)
        if not known:
            self._by_tenant.pop(tenant, None)

    def _keep(self, tenant: str, row: WebhookRow) -> None:
        self._by_tenant.setdefault(tenant, {})[row.webhook_id] = Subscription(
            tenant,
            row,
            self._opened(tenant, row.webhook_id, row.secret),
            None
            if row.old_secret is None
            else self._opened(tenant, row.webhook_id, row.old_secret),
        )

    def _sealed(self, tenant: str, webhook_id: str, secret: str) -> bytes:
        return self._seal.seal(
            secret.encode(),
            nonce=secrets.token_bytes(NONCE_BYTES),
            context=_context(tenant, webhook_id),
        )

    def _opened(self, tenant: str, webhook_id: str, sealed: bytes) -> str:
        return self._seal.open(sealed, context=_context(tenant, webhook_id)).decode()


def _context(tenant: str, webhook_id: str) -> bytes:
    return f"{webhook_id}:{tenant}".encode()


def _require_url(url: str) -> None:
    """Tell text that is no URL at all from one that must not be dialled."""
    scheme, separator, rest = url.partition("://")
    if not separator or not scheme.isascii() or not scheme.isalnum() or not rest.strip("/"):
        raise Refused("url must be an absolute https URL", field="url")


def _unknown(webhook_id: str) -> NotFound:
    return NotFound(f"there is no webhook {webhook_id[:128]!r}", code="subscription_not_found")
