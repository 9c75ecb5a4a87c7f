"""Lists that a script keeps up to date: it is spared the same lines once more."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Final

from wopr.console.headers import SAFE_HEADERS
from wopr.console.visit import Visit
from wopr.http.answers import Answer
from wopr.protocol.documents import encode

# How often durations of what goes on are shown anew.
MOVES_EVERY_MS: Final = 5000


def list_tag(visit: Visit, shown: object, *, is_moving: bool) -> str:
    """What tells this list from another: what it shows, and the time as long as that matters."""
    moment = visit.now // MOVES_EVERY_MS if is_moving else 0
    return f'"{hashlib.sha256(encode((shown, moment))).hexdigest()[:24]}"'


def unchanged(visit: Visit, tag: str) -> Answer | None:
    """The answer to a script that has this list already; None for everybody else."""
    if visit.exchange.header(b"x-part") is None or not visit.exchange.already_has(tag):
        return None
    return Answer(304, headers=SAFE_HEADERS | {"etag": tag})


def tagged(answer: Answer, tag: str) -> Answer:
    """A page with its tag."""
    return replace(answer, headers=answer.headers | {"etag": tag})
