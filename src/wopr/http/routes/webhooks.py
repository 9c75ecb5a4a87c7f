"""Routes of webhooks: subscribe, list, rotate, remove, and dead letters."""

from __future__ import annotations

from msgspec.structs import replace

from wopr.http.operation import PAGING, Operation, Parameter, page_limit, read_cursor, write_cursor
from wopr.http.request import Request
from wopr.http.response import Response, ok
from wopr.http.routes.runs import MAX_ID_LENGTH
from wopr.protocol.documents import UNSET, Json, to_iso
from wopr.protocol.errors import Forbidden, NotFound
from wopr.protocol.resources.webhooks import (
    DeadLetterItem,
    Redelivered,
    RegisterWebhook,
    WebhookItem,
    WebhookMade,
    WebhookSecret,
)
from wopr.protocol.runs import Page
from wopr.security.redact import Redactor
from wopr.services.webhooks.subscriptions import GRACE_MS, REDELIVERED_AT_ONCE
from wopr.store.port.webhooks import WebhookRow

NO_STORE = {"cache_control": "no-store"}
MAX_GRACE_SECONDS = 30 * 86_400


def webhook_id_of(request: Request) -> str:
    """Return the webhook id in the path. Raises `NotFound` if no webhook can have it."""
    value = request.path["webhook_id"]
    if len(value) > MAX_ID_LENGTH:
        raise NotFound("there is no such webhook", code="subscription_not_found")
    return value


async def register_webhook(request: Request) -> Response:
    """Subscribe a URL to events. Only this response contains the secret."""
    document = await request.document(RegisterWebhook)
    made = await request.host.subscriptions.register(request.tenant, document, request.build_record)
    await _record(request, "webhook.create", made.webhook_id, events=list(document.events))
    shown = replace(made, url=request.redactor.text(made.url))
    return ok(shown, 201, **NO_STORE)


async def list_webhooks(request: Request) -> Response:
    """List the tenant's webhooks, newest first, without their secrets."""
    limit = page_limit(request)
    after = read_cursor(request.query.get("cursor"))
    rows = await request.host.store.webhooks(request.tenant, after, limit + 1)
    now = request.host.sources.now()
    last = rows[limit - 1] if len(rows) > limit else None
    return ok(
        Page(
            items=[webhook_item(row, now, request.redactor) for row in rows[:limit]],
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


async def delete_webhook(request: Request) -> Response:
    """Remove a webhook. No more events are sent to it."""
    webhook_id = webhook_id_of(request)
    if request.query.get("tenantId", request.tenant) != request.tenant:
        raise Forbidden("tenantId is not the tenant of this key", field="tenantId")
    await request.host.subscriptions.remove(request.tenant, webhook_id)
    await _record(request, "webhook.delete", webhook_id)
    return Response(204)


async def rotate_webhook(request: Request) -> Response:
    """Create a new secret. The previous secret also signs for a limited time."""
    webhook_id = webhook_id_of(request)
    seconds = request.whole_number("graceSeconds", GRACE_MS // 1000, most=MAX_GRACE_SECONDS)
    made = await request.host.subscriptions.rotate(
        request.tenant, webhook_id, seconds * 1000, request.build_record
    )
    await _record(request, "webhook.rotate", webhook_id)
    return ok(made, 200, **NO_STORE)


async def list_dead_letters(request: Request) -> Response:
    """List the events that could not be delivered, newest first."""
    webhook_id = webhook_id_of(request)
    limit = page_limit(request)
    await request.host.subscriptions.require(request.tenant, webhook_id)
    after = read_cursor(request.query.get("cursor"))
    page = await request.host.store.dead_letters(request.tenant, webhook_id, after, limit)
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


async def redeliver_dead_letters(request: Request) -> Response:
    """Queue dead letters for delivery again, and enable the webhook again."""
    webhook_id = webhook_id_of(request)
    count = await request.host.subscriptions.redeliver(request.tenant, webhook_id)
    await _record(request, "webhook.redeliver", webhook_id, count=count)
    return ok(Redelivered(redelivered=count, has_more=count == REDELIVERED_AT_ONCE), 202)


async def _record(request: Request, action: str, name: str, **facts: Json) -> None:
    caller = request.caller
    await request.host.audit.record(caller.tenant, caller.key_id, action, name, **facts)


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
        response=WebhookMade,
        errors=(400, 401, 403, 409, 413, 415),
        stores_response=True,
    ),
    Operation(
        name="listWebhooks",
        method="GET",
        path="/v1/webhooks",
        handler=list_webhooks,
        summary="List webhooks, without their secrets",
        tag="webhooks",
        scope="webhooks:manage",
        response=Page,
        errors=(400, 401, 403),
        parameters=PAGING,
        is_extension=True,
        read_level="sensitive",
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
        summary="Create a new secret for a webhook",
        tag="webhooks",
        scope="webhooks:manage",
        response=WebhookSecret,
        errors=(400, *_ERRORS, 409),
        parameters=(
            Parameter(
                name="graceSeconds",
                description="Seconds for which the previous secret also signs; use 0 after a leak.",
                schema={
                    "type": "integer",
                    "minimum": 0,
                    "maximum": MAX_GRACE_SECONDS,
                    "default": GRACE_MS // 1000,
                },
            ),
        ),
        stores_response=True,
        is_extension=True,
    ),
    Operation(
        name="listDeadLetters",
        method="GET",
        path="/v1/webhooks/{webhook_id}/dead-letters",
        handler=list_dead_letters,
        summary="List the events that could not be delivered",
        tag="webhooks",
        scope="webhooks:manage",
        response=Page,
        errors=(400, *_ERRORS),
        parameters=PAGING,
        is_extension=True,
        read_level="sensitive",
    ),
    Operation(
        name="redeliverDeadLetters",
        method="POST",
        path="/v1/webhooks/{webhook_id}/dead-letters:redeliver",
        handler=redeliver_dead_letters,
        summary="Deliver dead letters again",
        tag="webhooks",
        scope="webhooks:manage",
        success=202,
        response=Redelivered,
        errors=_ERRORS,
        is_extension=True,
    ),
)
