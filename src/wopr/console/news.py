"""Lists that a script looks at again and again: it is spared what it has already."""

from __future__ import annotations

import hashlib
from typing import Final

from wopr.console.headers import SAFE_HEADERS
from wopr.console.visit import Visit
from wopr.http.answers import Answer
from wopr.protocol.documents import encode

# How often times that go on are shown anew.
MOVES_EVERY_MS: Final = 5000


def tag_of(shown: object) -> str:
    """What tells a list from another, made from all that it shows."""
    return f'"{hashlib.sha256(encode(shown)).hexdigest()[:24]}"'


def is_old_news(visit: Visit, tag: str) -> bool:
    """Whether a script that looks for news has this list."""
    return visit.exchange.header(b"x-part") is not None and visit.exchange.already_has(tag)


def not_changed(tag: str) -> Answer:
    """Tell the script so."""
    return Answer(304, headers=SAFE_HEADERS | {"etag": tag})
