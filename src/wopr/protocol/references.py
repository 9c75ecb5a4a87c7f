"""References that replace large values in events and snapshots.

A value above the inline limit is stored as an artifact of its run. In its place the event has an
object with the single member `$artifact`. User data cannot be mistaken for a reference: if an
object of the user has the single member `$artifact`, `$$artifact` and so on, the name of the member
is written with one more `$`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Final

from wopr.protocol.documents import Json, JsonObject, is_list, is_object

KEY: Final = "$artifact"
# Deeper values are neither escaped nor resolved, which limits the recursion.
DEEPEST: Final = 200
CONTENT_TYPE: Final = "application/json"
# Every encoded document with a reference, or with an escaped reference, contains these bytes.
REFERENCE_MARK: Final = b'$artifact":'
_WORD: Final = KEY[1:]
_MEMBERS: Final = frozenset({"artifactId", "sha256", "bytes", "contentType"})


def reference_to(body: bytes) -> JsonObject:
    """Return the reference to a value, given as JSON. Equal bytes have equal references."""
    digest = hashlib.sha256(body).hexdigest()
    return {
        "artifactId": f"value-{digest}",
        "sha256": digest,
        "bytes": len(body),
        "contentType": CONTENT_TYPE,
    }


def references_in(value: Json, depth: int = DEEPEST) -> Iterator[JsonObject]:
    """Yield the references in a stored value."""
    if depth == 0:
        return
    if is_list(value):
        for item in value:
            yield from references_in(item, depth - 1)
    elif is_object(value):
        if _is_reference(value):
            yield value[KEY]
        else:
            for member in value.values():
                yield from references_in(member, depth - 1)


def referenced_bytes(value: Json) -> int:
    """Return the total size of the values that a stored value refers to, for every reference."""
    sizes = (reference["bytes"] for reference in references_in(value))
    return sum(size for size in sizes if isinstance(size, int))


def insert_references(
    value: Json, references: Mapping[int, JsonObject], depth: int = DEEPEST
) -> Json:
    """Replace values by references, and escape user data that looks like a reference.

    The keys of `references` are the identities of the values that are stored as artifacts.
    """
    found = references.get(id(value))
    if found is not None:
        return {KEY: found}
    if depth == 0:
        return value
    if is_list(value):
        return [insert_references(item, references, depth - 1) for item in value]
    if not is_object(value):
        return value
    members = {name: insert_references(each, references, depth - 1) for name, each in value.items()}
    return {f"${name}": each for name, each in members.items()} if _is_marked(value) else members


def resolve_references(value: Json, values: Mapping[str, Json], depth: int = DEEPEST) -> Json:
    """Replace references by their values, the inverse of `insert_references`.

    A reference to an artifact that is not in `values` is not changed.
    """
    if depth == 0:
        return value
    if is_list(value):
        return [resolve_references(item, values, depth - 1) for item in value]
    if not is_object(value):
        return value
    if _is_reference(value):
        return values.get(value[KEY]["artifactId"], value)
    members = {name: resolve_references(each, values, depth - 1) for name, each in value.items()}
    if _is_marked(value) and KEY not in value:
        return {name[1:]: each for name, each in members.items()}
    return members


def _is_reference(value: JsonObject) -> bool:
    found: Json = value.get(KEY) if len(value) == 1 else None
    return is_object(found) and found.keys() == _MEMBERS and isinstance(found["artifactId"], str)


def _is_marked(value: JsonObject) -> bool:
    """Return whether an object has a single member, named `$artifact` with one or more `$`."""
    if len(value) != 1:
        return False
    [name] = value
    return name.startswith("$") and name.lstrip("$") == _WORD
