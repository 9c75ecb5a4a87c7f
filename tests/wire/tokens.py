"""The content of an interrupt's token."""

from __future__ import annotations

import base64
import json

from wopr.protocol.documents import JsonObject

HALF_AN_HOUR = 30 * 60_000


def contents(token: str) -> JsonObject:
    """Return the unverified claims of a token."""
    encoded = token.partition(".")[0]
    found: JsonObject = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    return found
