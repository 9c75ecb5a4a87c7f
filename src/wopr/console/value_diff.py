"""Two JSON values side by side: the members that differ, and where within a text they do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from wopr.console.json_values import list_of, object_of
from wopr.console.words import pretty
from wopr.protocol.documents import UNSET, Json, Unset
from wopr.runtime.comparing import same

# So many differences of one value are shown.
MOST_CHANGES: Final = 60
# Deeper than this, values are compared whole.
_DEEPEST: Final = 12
_LONGEST: Final = 4000
# Of what two texts share, so much is shown on either side of what they do not.
_AROUND: Final = 160


@dataclass(frozen=True, slots=True)
class Text:
    """A value as text: what it shares with the other at both ends, and what it does not between."""

    before: str
    changed: str
    after: str


@dataclass(frozen=True, slots=True)
class Change:
    """One member that differs; on a side that does not have it there is None."""

    path: str
    a: Text | None
    b: Text | None


def changes(a: Json, b: Json) -> list[Change]:
    """The first members in which two values differ, in their own order."""
    return list(islice(_walk("", a, b, 0), MOST_CHANGES))


def _walk(path: str, a: Json, b: Json, depth: int) -> Iterator[Change]:
    if not isinstance(a, Unset) and not isinstance(b, Unset) and same(a, b):
        return
    if isinstance(a, dict) and isinstance(b, dict) and depth < _DEEPEST:
        left, right = object_of(a), object_of(b)
        for name in dict.fromkeys([*left, *right]):
            step = _joined(path, name)
            yield from _walk(step, left.get(name, UNSET), right.get(name, UNSET), depth + 1)
    elif isinstance(a, list) and isinstance(b, list) and depth < _DEEPEST:
        yield from _walk_list(path, list_of(a), list_of(b), depth)
    else:
        yield _change(path, a, b)


def _walk_list(path: str, a: list[object], b: list[object], depth: int) -> Iterator[Change]:
    for place in range(max(len(a), len(b))):
        left = a[place] if place < len(a) else UNSET
        right = b[place] if place < len(b) else UNSET
        yield from _walk(f"{path}[{place}]", left, right, depth + 1)


def _joined(path: str, name: str) -> str:
    if not name.isidentifier():
        return f"{path}[{pretty(name)}]"
    return f"{path}.{name}" if path else name


def _change(path: str, a: Json, b: Json) -> Change:
    if isinstance(a, Unset) or isinstance(b, Unset):
        return Change(path, _whole(a), _whole(b))
    left, right = _text(a), _text(b)
    most = min(len(left), len(right))
    start = _shared(left, right, most)
    end = _shared(left[::-1], right[::-1], most - start)
    return Change(path, _part(left, start, end), _part(right, start, end))


def _shared(left: str, right: str, most: int) -> int:
    """How many characters two texts have in common from their beginning, in whole words."""
    shared = next((place for place in range(most) if left[place] != right[place]), most)
    while shared and left[shared - 1].isalnum() and _goes_on(shared, left, right):
        shared -= 1
    return shared


def _goes_on(place: int, *texts: str) -> bool:
    """Whether a word goes on at this place in one of the texts."""
    return any(text[place : place + 1].isalnum() for text in texts)


def _text(value: Json) -> str:
    return value if isinstance(value, str) else pretty(value)


def _whole(value: Json) -> Text | None:
    return None if isinstance(value, Unset) else Text("", _cut(_text(value)), "")


def _part(text: str, start: int, end: int) -> Text:
    before, after = text[:start], text[len(text) - end :]
    if len(before) > _AROUND:
        before = "…" + before[-_AROUND:]
    if len(after) > _AROUND:
        after = after[:_AROUND] + "…"
    return Text(before, _cut(text[start : len(text) - end]), after)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
