"""Delivery of one event to a webhook, and the policy of retries.

Each request is signed, goes to a checked address and has a timeout.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import anyio
import httpx

from wopr.process.egress import Egress
from wopr.process.settings import Settings
from wopr.protocol.documents import encode
from wopr.security.ssrf import DestinationDenied
from wopr.security.tokens import WEBHOOK_SIGNATURE_VERSION, webhook_signature
from wopr.services.webhooks.subscriptions import Subscription
from wopr.store.port.webhooks import Delivery, WebhookHealth
from wopr.version import __version__

WEEK_MS = 7 * 86_400_000
MAX_BACKOFF_MS = 3_600_000
USER_AGENT = f"openwop-webhook-dispatcher/{__version__}"
# Only the status of a response matters. Its body is read up to this size.
MAX_RESPONSE_BYTES = 64 * 1024
READ_SECONDS = 0.2
# Receivers use headers with either prefix.
_PREFIXES = ("X-openwop-", "OpenWOP-")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicy:
    """When deliveries are retried and when they stop.

    The circuit of a webhook opens after failures in a row. Then nothing is sent for `open_ms`, and
    after that a single event is tried.
    """

    # The delay of the first retry. Each further retry doubles the delay.
    retry_ms: int = 1000
    # Attempts at one event before it becomes a dead letter.
    attempts: int = 12
    # Failures in a row that open the circuit, and for how long.
    failures_to_open: int = 4
    open_ms: int = 3_600_000
    # Failures within a week after which the subscription fails.
    failures_a_week: int = 100
    timeout_seconds: float = 5.0

    @classmethod
    def of(cls, settings: Settings) -> DeliveryPolicy:
        """Read the policy from the settings."""
        return cls(
            retry_ms=settings.webhook_retry_ms,
            attempts=settings.webhook_attempts,
            open_ms=round(settings.webhook_open_seconds * 1000),
        )

    def backoff_ms(self, attempts: int) -> int:
        """Return the delay after this number of failed attempts at one event."""
        return int(min(self.retry_ms * 2 ** min(attempts - 1, 30), MAX_BACKOFF_MS))


def after_success(health: WebhookHealth) -> WebhookHealth:
    """Return the health after a delivery: the circuit closes."""
    if health.state == "active" and not health.failures:
        return health
    return WebhookHealth(recent=health.recent)


def after_failure(health: WebhookHealth, now: int, policy: DeliveryPolicy) -> WebhookHealth:
    """Return the health after a failed delivery."""
    recent = (*(at for at in health.recent if at > now - WEEK_MS), now)
    failures = health.failures + 1
    if len(recent) >= policy.failures_a_week:
        return WebhookHealth(state="failed", failures=failures, recent=recent)
    if failures < policy.failures_to_open:
        return replace(health, failures=failures, recent=recent)
    return WebhookHealth(
        state="open", failures=failures, recent=recent, open_until=now + policy.open_ms
    )


class WebhookClient:
    """Sends signed requests to webhooks."""

    def __init__(self, egress: Egress, timeout_seconds: float) -> None:
        self._egress = egress
        self._timeout = timeout_seconds

    async def deliver(self, subscription: Subscription, delivery: Delivery, now: int) -> str | None:
        """Deliver an event. Returns None, or the reason why the delivery failed."""
        body = body_of(subscription.tenant, delivery.body)
        headers = headers_of(subscription, delivery.type, body, now)
        return await self.post(subscription.tenant, subscription.row.url, headers, body)

    async def post(self, tenant: str, url: str, headers: dict[str, str], body: bytes) -> str | None:
        """Send a body once. Returns None, or the reason why that failed.

        An empty tenant is the operator.
        """
        try:
            with anyio.fail_after(self._timeout):
                return await self._post(tenant, url, headers, body)
        except TimeoutError:
            return f"no answer within {self._timeout:g} seconds"
        except DestinationDenied as denied:
            return f"the destination is not allowed: {denied.reason}"
        except httpx.PoolTimeout as busy:
            return f"the request failed: {busy}"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"the request failed: {type(error).__name__}"

    async def _post(
        self, tenant: str, url: str, headers: dict[str, str], body: bytes
    ) -> str | None:
        http = self._egress.client(tenant)
        request = http.build_request("POST", url, headers=headers, content=body)
        response = await http.send(request, stream=True)
        try:
            if not response.is_success:
                # Redirects are not followed: events go only to the registered URL.
                return f"the receiver answered {response.status_code}"
            # Read the whole body, so that the connection can be reused.
            with anyio.move_on_after(READ_SECONDS), suppress(httpx.HTTPError):
                await response.aread()
            return None
        finally:
            await response.aclose()


def body_of(tenant: str, event: bytes) -> bytes:
    """Return the members of the event, then the workspace, then the event again as one member."""
    workspace = encode(tenant)
    return b'%b,"workspaceId":%b,"event":%b}' % (event[:-1], workspace, event)


def headers_of(
    subscription: Subscription, event_type: str, body: bytes, now: int
) -> dict[str, str]:
    """Return the signature headers, each under both names that receivers use."""
    timestamp = now // 1000
    values = {
        "Webhook-Id": subscription.row.webhook_id,
        "Event-Type": event_type,
        "Timestamp": str(timestamp),
        "Signature": webhook_signature(subscription.secret, timestamp, body),
        "Signature-Algorithm": WEBHOOK_SIGNATURE_VERSION,
    }
    until = subscription.row.old_secret_until
    if subscription.old_secret is not None and until is not None and now < until:
        # A receiver that still uses the old secret verifies `Signature`.
        values["Signature-Next"] = values["Signature"]
        values["Signature"] = webhook_signature(subscription.old_secret, timestamp, body)
    return {"Content-Type": "application/json", **named_headers(values)}


def named_headers(values: Mapping[str, str]) -> dict[str, str]:
    """Return headers with each value under both names that receivers use."""
    named = {f"{prefix}{name}": v for prefix in _PREFIXES for name, v in values.items()}
    return {"User-Agent": USER_AGENT, **named}
