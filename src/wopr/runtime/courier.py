"""The courier: one attempt to deliver one event, signed, to a checked address, within five seconds."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import anyio
import httpx

from wopr import __version__
from wopr.protocol.documents import encode
from wopr.runtime.egress import Egress
from wopr.runtime.subscriptions import Subscription
from wopr.security.ssrf import DestinationDenied
from wopr.security.webhook_signature import ALGORITHM, signature
from wopr.store.port.webhooks import Delivery

USER_AGENT = f"openwop-webhook-dispatcher/{__version__}"
# What a receiver answers is of no interest beyond its status.
MAX_RESPONSE_BYTES = 64 * 1024
READ_SECONDS = 0.2
_PREFIXES = ("X-openwop-", "OpenWOP-")


class Courier:
    """Sends deliveries."""

    def __init__(self, egress: Egress, timeout_seconds: float) -> None:
        self._egress = egress
        self._timeout = timeout_seconds

    async def deliver(self, subscription: Subscription, delivery: Delivery, now: int) -> str | None:
        """Deliver an event; None when the receiver took it, else why it did not."""
        body = body_of(subscription.tenant, delivery.body)
        headers = headers_of(subscription, delivery.type, body, now)
        return await self.post(subscription.tenant, subscription.row.url, headers, body)

    async def post(self, tenant: str, url: str, headers: dict[str, str], body: bytes) -> str | None:
        """Send a body once; None when the receiver took it, else why it did not.

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
                # A redirect is one of these: the URL that was registered is the one that is told.
                return f"the receiver answered {response.status_code}"
            # Read to the end, so that the connection can be used again; it is not waited for long.
            with anyio.move_on_after(READ_SECONDS), suppress(httpx.HTTPError):
                await response.aread()
            return None
        finally:
            await response.aclose()


def body_of(tenant: str, event: bytes) -> bytes:
    """The event's own members, then the workspace, then the event once more as one member."""
    workspace = encode(tenant)
    return b'%b,"workspaceId":%b,"event":%b}' % (event[:-1], workspace, event)


def headers_of(
    subscription: Subscription, event_type: str, body: bytes, now: int
) -> dict[str, str]:
    """Every value under both names that receivers look for."""
    timestamp = now // 1000
    values = {
        "Webhook-Id": subscription.row.webhook_id,
        "Event-Type": event_type,
        "Timestamp": str(timestamp),
        "Signature": signature(subscription.secret, timestamp, body),
        "Signature-Algorithm": ALGORITHM,
    }
    until = subscription.row.old_secret_until
    if subscription.old_secret is not None and until is not None and now < until:
        # A receiver that has not heard of the rotation yet goes on as before.
        values["Signature-Next"] = values["Signature"]
        values["Signature"] = signature(subscription.old_secret, timestamp, body)
    return {"Content-Type": "application/json", **named_headers(values)}


def named_headers(values: Mapping[str, str]) -> dict[str, str]:
    """Headers with each of these values under both names that receivers look for."""
    named = {f"{prefix}{name}": v for prefix in _PREFIXES for name, v in values.items()}
    return {"User-Agent": USER_AGENT, **named}
