"""Webhooks on the wire: subscriptions and dead letters."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec

from wopr.protocol.documents import UNSET, Closed, Document, Id, Unset
from wopr.protocol.events import EVENT_TYPES, is_known_type
from wopr.protocol.runs import Tag

LONGEST_URL: Final = 2048
EVERYTHING: Final = "*"
_FAMILY: Final = re.compile(r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.\*$")

EventPattern = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class RegisterWebhook(Closed, frozen=True, kw_only=True):
    """The body of `POST /v1/webhooks`. The host creates the secret."""

    url: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_URL)]
    events: Annotated[list[EventPattern], msgspec.Meta(min_length=1, max_length=100)]
    tenant_id: Id | Unset = UNSET
    tags: Annotated[list[Tag], msgspec.Meta(max_length=100)] = []


class WebhookSecret(Document, frozen=True, kw_only=True):
    """The secret of a new subscription, or the new secret of a rotation. It is shown only once."""

    webhook_id: Id
    secret_fingerprint: str
    secret: str | Unset = UNSET
    previous_secret_until: str | Unset = UNSET


class WebhookMade(WebhookSecret, frozen=True, kw_only=True):
    """A new subscription. The last members are for a published client."""

    url: str
    subscription_id: Id
    event_types: list[str]
    created_at: str


class WebhookItem(Document, frozen=True, kw_only=True, omit_defaults=False):
    """A subscription in a list, without its secret."""

    webhook_id: Id
    url: str
    events: list[str]
    tags: list[str]
    secret_fingerprint: str
    state: Literal["active", "open", "failed"]
    consecutive_failures: int
    created_at: str
    open_until: str | Unset = UNSET
    previous_secret_until: str | Unset = UNSET


class DeadLetterItem(Document, frozen=True, kw_only=True, omit_defaults=False):
    """An event whose delivery was given up, and the reason."""

    run_id: Id
    sequence: int
    type: str
    attempts: int
    reason: str
    died_at: str


class Redelivered(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The number of dead letters that are delivered again, and whether there are more."""

    redelivered: int
    has_more: bool


def is_event_pattern(pattern: str) -> bool:
    """Return whether this is a pattern of events: a type, a family such as `node.*`, or `*`."""
    if pattern == EVERYTHING:
        return True
    if not _FAMILY.match(pattern):
        return is_known_type(pattern)
    prefix = pattern[:-1]
    return any(name.startswith(prefix) for name in EVENT_TYPES) or is_known_type(f"{prefix}any")


def matches_pattern(pattern: str, event_type: str) -> bool:
    """Return whether a pattern matches an event type."""
    if pattern in (EVERYTHING, event_type):
        return True
    return pattern.endswith(".*") and event_type.startswith(pattern[:-1])
