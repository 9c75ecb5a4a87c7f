"""Webhooks: subscribe, list, rotate, remove, and what could not be delivered."""

from __future__ import annotations

from msgspec.structs import replace

from wopr.http.answers import Answer, ok
from wopr.http.exchange import Exchange
from wopr.http.operation import Operation, Parameter
from wopr.http.paging import PAGE_DEFAULT, PAGE_MOST, PAGING, read_cursor, write_cursor
from wopr.http.runs import LONGEST_ID
from wopr.protocol.documents import UNSET, Json
from wopr.protocol.errors import Forbidden, NotFound
from wopr.protocol.runs import Page
from wopr.protocol.times import to_iso
from wopr.protocol.webhooks import (
    DeadLetterItem,
    Redelivered,
    RegisterWebhook,
    WebhookItem,
    WebhookMade,
    WebhookSecret,
)
from wopr.runtime.subscriptions import GRACE_MS, REDELIVERED_AT_ONCE
from wopr.security.redact import Redactor
from wopr.store.port.webhooks import WebhookRow

NO_STORE = {"cache_control": "no-store"}
LONGEST_GRACE_SECONDS = 30 * 86_400


def webhook_id(exchange: Exchange) -> str:
    """The webhook that the path names; an id that none can have is simply not found."""
    value = exchange.path["webhook_id"]
    if len(value) > LONGEST_ID:
        raise NotFound("there is no such webhook", code="subscription_not_found")
    return value


async def register_webhook(exchange: Exchange) -> Answer:
    """Subscribe a URL to events; the answer is the only place where its secret is shown."""
    request = await exchange.document(RegisterWebhook)
    made = await exchange.host.subscriptions.register(exchange.tenant, request, exchange.remember)
    await _record(exchange, "webhook.create", made.webhook_id, events=list(request.events))
    shown = replace(made, url=exchange.redactor.text(made.url))
    return ok(shown, 201, **NO_STORE)


async def list_webhooks(exchange: Exchange) -> Answer:
    """List the tenant's webhooks, newest first, without their secrets."""
    limit = exchange.whole_number("limit", PAGE_DEFAULT, least=1, most=PAGE_MOST)
    after = read_cursor(exchange.query.get("cursor"))
    rows = await exchange.host.store.webhooks(exchange.tenant, after, limit + 1)
    now = exchange.host.sources.now()
    last = rows[limit - 1] if len(rows) > limit else None
    return ok(
        Page(
            items=[webhook_item(row, now, exchange.redactor) for row in rows[:limit]],
            next_cursor=UNSET if last is None else write_cursor((last.created_at, last.webhook_id)),
        )
    )


def webhook_item(row: WebhookRow, now: int, redactor: Redactor) -> WebhookItem:
    """Describe a webhook without its secret, and without credentials in its URL."""
    health = row.health
    until = row.old_secret_until
    return WebhookItem(
        webhook_id=row.webhook_id,
        url=redactor.text(row.url),
        events=list(row.events),
        tags=list(row.tags),
        secret_fingerprint=row.fingerprint,
        state=health.state,
        consecutive_failures=health.failures,
        created_at=to_iso(row.created_at),
        open_until=UNSET if health.open_until is None else to_iso(health.open_until),
        previous_secret_until=to_iso(until) if until is not None and now < until else UNSET,
    )


async def delete_webhook(exchange: Exchange) -> Answer:
    """Remove a webhook; nothing more is sent to it."""
    name = webhook_id(exchange)
    if exchange.query.get("tenantId", exchange.tenant) != exchange.tenant:
        raise Forbidden("tenantId names a tenant that this key is no member of", field="tenantId")
    await exchange.host.subscriptions.remove(exchange.tenant, name)
    await _record(exchange, "webhook.delete", name)
    return Answer(204)


async def rotate_webhook(exchange: Exchange) -> Answer:
    """Make a new secret; the one before goes on signing for a while."""
    name = webhook_id(exchange)
    seconds = exchange.whole_number("graceSeconds", GRACE_MS // 1000, most=LONGEST_GRACE_SECONDS)
    made = await exchange.host.subscriptions.rotate(
        exchange.tenant, name, seconds * 1000, exchange.remember
    )
    await _record(exchange, "webhook.rotate", name)
    return ok(made, 200, **NO_STORE)


async def list_dead_letters(exchange: Exchange) -> Answer:
    """List the events that were given up, newest first."""
    name = webhook_id(exchange)
    limit = exchange.whole_number("limit", PAGE_DEFAULT, least=1, most=PAGE_MOST)
    await exchange.host.subscriptions.require(exchange.tenant, name)
    after = read_cursor(exchange.query.get("cursor"))
    page = await exchange.host.store.dead_letters(exchange.tenant, name, after, limit)
    return ok(
        Page(
            items=[
                DeadLetterItem(
                    run_id=letter.run_id,
                    sequence=letter.sequence,
                    type=letter.type,
                    attempts=letter.attempts,
                    reason=letter.reason,
                    died_at=to_iso(letter.died_at),
                )
                for letter in page.letters
            ],
            next_cursor=UNSET if page.next_after is None else write_cursor(page.next_after),
        )
    )


async def redeliver_dead_letters(exchange: Exchange) -> Answer:
    """Put dead letters back on their way, and trust the receiver again."""
    name = webhook_id(exchange)
    count = await exchange.host.subscriptions.redeliver(exchange.tenant, name)
    await _record(exchange, "webhook.redeliver", name, count=count)
    return ok(Redelivered(redelivered=count, has_more=count == REDELIVERED_AT_ONCE), 202)


async def _record(exchange: Exchange, action: str, name: str, **facts: Json) -> None:
    caller = exchange.caller
    await exchange.host.audit.record(caller.tenant, caller.key_id, action, name, **facts)


_ERRORS = (401, 403, 404)

OPERATIONS = (
    Operation(
        name="registerWebhook",
        method="POST",
        path="/v1/webhooks",
        handler=register_webhook,
        summary="Subscribe a URL to events",
        tag="webhooks",
        scope="webhooks:manage",
        body=RegisterWebhook,
        success=201,
        answer=WebhookMade,
        errors=(400, 401, 403, 409, 413, 415),
        remembers=True,
    ),
    Operation(
        name="listWebhooks",
        method="GET",
        path="/v1/webhooks",
        handler=list_webhooks,
        summary="List webhooks, without their secrets",
        tag="webhooks",
        scope="webhooks:manage",
        answer=Page,
        errors=(400, 401, 403),
        parameters=PAGING,
        is_extension=True,
        read="sensitive",
    ),
    Operation(
        name="deleteWebhook",
        method="DELETE",
        path="/v1/webhooks/{webhook_id}",
        handler=delete_webhook,
        summary="Remove a webhook",
        tag="webhooks",
        scope="webhooks:manage",
        success=204,
        errors=_ERRORS,
        parameters=(
            Parameter(
                name="tenantId", description="The key's own tenant.", schema={"type": "string"}
            ),
        ),
    ),
    Operation(
        name="rotateWebhook",
        method="POST",
        path="/v1/webhooks/{webhook_id}:rotate",
        handler=rotate_webhook,
        summary="Make a new secret for a webhook",
        tag="webhooks",
        scope="webhooks:manage",
        answer=WebhookSecret,
        errors=(400, *_ERRORS, 409),
        parameters=(
            Parameter(
                name="graceSeconds",
                description="How long the secret before goes on signing; 0 after a leak.",
                schema={
                    "type": "integer",
                    "minimum": 0,
                    "maximum": LONGEST_GRACE_SECONDS,
                    "default": GRACE_MS // 1000,
                },
            ),
        ),
        remembers=True,
        is_extension=True,
    ),
    Operation(
        name="listDeadLetters",
        method="GET",
        path="/v1/webhooks/{webhook_id}/dead-letters",
        handler=list_dead_letters,
        summary="List the events that were given up",
        tag="webhooks",
        scope="webhooks:manage",
        answer=Page,
        errors=(400, *_ERRORS),
        parameters=PAGING,
        is_extension=True,
        read="sensitive",
    ),
    Operation(
        name="redeliverDeadLetters",
        method="POST",
        path="/v1/webhooks/{webhook_id}/dead-letters:redeliver",
        handler=redeliver_dead_letters,
        summary="Try dead letters once more",
        tag="webhooks",
        scope="webhooks:manage",
        success=202,
        answer=Redelivered,
        errors=_ERRORS,
        is_extension=True,
    ),
)
