"""Finds credentials written into a document that may only refer to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

from wopr.protocol.documents import Json, JsonObject
from wopr.security.shapes import holds_shape

# Members whose value is a handle: it names a credential, and may look like one.
REFERENCES: Final = frozenset({"credentialsRef", "credentialRef"})


def credentials_in(document: Json, path: str = "") -> Iterator[str]:
    """Yield the place of every credential; no place repeats one that is itself a name."""
    if isinstance(document, str):
        if holds_shape(document):
            yield path
    elif isinstance(document, dict):
        for name, member in cast("JsonObject", document).items():
            if holds_shape(name):
                yield path
            elif name not in REFERENCES:
                yield from _in_member(name, member, f"{path}.{name}" if path else name)
    elif isinstance(document, list):
        for index, item in enumerate(cast("list[object]", document)):
            yield from credentials_in(item, f"{path}.{index}" if path else str(index))


def _in_member(name: str, member: Json, place: str) -> Iterator[str]:
    if not isinstance(member, str):
        yield from credentials_in(member, place)
    # The name may say that the value is a secret, as in `x-api-key: abc123`.
    elif holds_shape(f"{name}: {member}"):
        yield place
