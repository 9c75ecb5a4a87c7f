"""Subscriptions, and the events that their receivers got."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.client import Wire
from tests.support.webhook_receiver import Received
from wopr.protocol.documents import JsonObject

DEADLINE_SECONDS = 60
# The host waits this long for a response before it repeats an event.
PATIENCE_SECONDS = 5
QUICK = {
    "WOPR_ALLOW_PRIVATE_DESTINATIONS": "1",
    "WOPR_WEBHOOK_RETRY_MS": "20",
    "WOPR_WEBHOOK_OPEN_SECONDS": "0.1",
}


@contextmanager
def subscribed(
    wire: Wire, url: str, *events: str, tags: list[str] | None = None
) -> Iterator[JsonObject]:
    """Subscribe for the length of the block."""
    body: JsonObject = {"url": url, "events": list(events or ("*",)), "tags": tags or []}
    response = wire.post("/v1/webhooks", body)
    assert response.status_code == 201, response.text
    made: JsonObject = response.json()
    try:
        yield made
    finally:
        wire.request("DELETE", f"/v1/webhooks/{made['webhookId']}")


def state_of(wire: Wire, webhook_id: str) -> JsonObject:
    items = wire.document("/v1/webhooks", params={"limit": 200})["items"]
    found: JsonObject = next(item for item in items if item["webhookId"] == webhook_id)
    return found


def signature(secret: str, request: Received) -> str:
    signed = f"{request.headers['x-openwop-timestamp']}.".encode() + request.body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def answered(requests: list[Received]) -> list[Received]:
    """Return the requests without those repeated because this process responded too late.

    The host logs its attempts: a repetition within its own timeout is kept.
    """
    first: dict[tuple[str, int], int] = {}
    found: list[Received] = []
    for request in requests:
        key = (str(request.json["runId"]), int(request.json["sequence"]))
        tried_at = int(request.headers["x-openwop-timestamp"])
        if tried_at - first.setdefault(key, tried_at) < PATIENCE_SECONDS:
            found.append(request)
    return found


def taken(requests: list[Received], run_id: str) -> list[int]:
    """Return the sequences of a run in order of arrival, without repetitions."""
    of_run = [r.json["sequence"] for r in requests if r.json["runId"] == run_id]
    return list(dict.fromkeys(of_run))
