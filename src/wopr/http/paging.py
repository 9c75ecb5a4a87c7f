"""Pages of a collection: how long they are, and where the next one begins."""

from __future__ import annotations

import base64
import binascii

from wopr.http.operation import Parameter
from wopr.protocol.errors import Refused

PAGE_DEFAULT, PAGE_MOST = 50, 200
PAGING = (
    Parameter(name="cursor", description="Where to go on.", schema={"type": "string"}),
    Parameter(
        name="limit",
        description="How many at most.",
        schema={"type": "integer", "minimum": 1, "maximum": PAGE_MOST, "default": PAGE_DEFAULT},
    ),
)


def write_cursor(after: tuple[int, str]) -> str:
    """A keyset position as an opaque string."""
    return base64.urlsafe_b64encode(f"{after[0]}:{after[1]}".encode()).decode().rstrip("=")


def read_cursor(raw: str | None, *, least: int = 0) -> tuple[int, str] | None:
    """A keyset position from its opaque string; its time is `least` or later."""
    if raw is None:
        return None
    try:
        text = base64.urlsafe_b64decode(raw + "=" * (-len(raw) % 4)).decode()
        instant, _, name = text.partition(":")
        after = int(instant), name
        # Only what this host would have written: no other digits, no stray characters.
        if not name or write_cursor(after) != raw or not least <= after[0] < 2**63:
            raise ValueError(text)
        return after
    except (ValueError, binascii.Error):
        raise Refused("cursor is not one that this host gave out", field="cursor") from None
