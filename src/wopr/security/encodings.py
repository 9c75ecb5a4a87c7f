"""The spellings of a secret in text: JSON-escaped, URL-encoded, base64, escaped for HTML."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote, quote_plus

_PERCENT: Final = re.compile(r"%[0-9A-F]{2}")
# Templates and libraries write quotation marks in two ways.
_MARKUP: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_ENTITIES: Final = tuple(
    str.maketrans(_MARKUP | quotes)
    for quotes in ({'"': "&#34;", "'": "&#39;"}, {'"': "&quot;", "'": "&#x27;"})
)


def spellings(value: str) -> frozenset[str]:
    """Return the value as it is and in every encoding that redaction looks for."""
    plain = (value, *escaped(value))
    pages = (form.translate(entities) for form in plain for entities in _ENTITIES)
    return frozenset((*plain, *pages, *_url_forms(value), *_base64_forms(value)))


def escaped(value: str) -> tuple[str, str]:
    """Return the value as JSON writes it inside quotes, with and without raw non-ASCII."""
    return (
        json.dumps(value, ensure_ascii=False)[1:-1],
        json.dumps(value, ensure_ascii=True)[1:-1],
    )


def _url_forms(value: str) -> Iterator[str]:
    raw = value.encode("utf-8", "surrogatepass")
    for form in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        yield form
        yield _PERCENT.sub(lambda match: match.group().lower(), form)


def _base64_forms(value: str) -> Iterator[str]:
    """Yield the base64 of the value, also from inside the base64 of a longer text.

    Three bytes become four characters, so a value has three spellings, one for each place it
    can begin at. The characters at either end that also carry bits of a neighbour are left off.
    """
    raw = value.encode("utf-8", "surrogatepass")
    for offset, skipped in ((0, 0), (1, 2), (2, 3)):
        length = (offset + len(raw)) * 8 // 6
        encoded = base64.b64encode(bytes(offset) + raw)[skipped:length].decode("ascii")
        yield encoded
        yield encoded.replace("+", "-").replace("/", "_")
