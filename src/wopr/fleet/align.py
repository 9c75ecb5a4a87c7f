"""Alignment of a push with what is held (section 8): append what is new, never rewrite.

Lines are compared by hash, over their exact bytes without the newline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from typing import Final

# So many places are tried byte by byte; a log of many equal lines has more than is worth trying.
_MOST_PLACES: Final = 16


class WouldRewrite(Exception):
    """A push that disagrees with the lines held; `lines` are those that do, counted from 0.

    `messages` say more of some of them.
    """

    def __init__(self, lines: tuple[int, ...], messages: Mapping[int, str] | None = None) -> None:
        super().__init__("the lines disagree with those already held")
        self.lines = lines
        self.messages: Mapping[int, str] = messages or {}


def line_hash(raw: bytes) -> bytes:
    """The identity of a line, given without its newline."""
    return sha256(raw).digest()


class History:
    """The hashes of one run's lines in their order, and where each first stands."""

    def __init__(self, hashes: Iterable[bytes] = ()) -> None:
        self._hashes: list[bytes] = []
        self._first: dict[bytes, int] = {}
        self.extend(hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    def extend(self, hashes: Iterable[bytes]) -> None:
        """Add lines at the end."""
        for each in hashes:
            self._first.setdefault(each, len(self._hashes))
            self._hashes.append(each)

    def overlap(self, incoming: Sequence[bytes]) -> int:
        """Say how many of the first incoming lines are held already; the rest is to be appended.

        The lines held are searched for the first place from which on the push agrees with all
        that is there. Raises `WouldRewrite` when there is none and yet a line is held.
        """
        place = self._first.get(incoming[0]) if incoming else None
        agreed = furthest = 0
        if place is not None:
            borders = _borders(incoming)
            for each in islice(self._hashes, place, None):
                agreed = _extend(agreed, each, incoming, borders)
                if agreed == len(incoming):
                    return agreed
                furthest = max(furthest, agreed)
        if not agreed:
            self._require_news(incoming, furthest)
        return agreed

    def _require_news(self, incoming: Sequence[bytes], furthest: int) -> None:
        """Raise `WouldRewrite` if any line is held; it names all that would come before such."""
        held = [index for index, each in enumerate(incoming) if each in self._first]
        if held:
            strangers = {i for i in range(held[-1]) if incoming[i] not in self._first}
            raise WouldRewrite(tuple(sorted(strangers | {furthest})))


def align(held: Iterable[bytes], incoming: Sequence[bytes]) -> int:
    """Align two sequences of hashes once; see `History.overlap`."""
    return History(held).overlap(incoming)


def align_packed(held: bytes, incoming: Sequence[bytes]) -> int:
    """Align with hashes that lie end to end, all of one length and that a multiple of eight.

    It gives what `align` gives. What is usual, a push of news or of what is held, is found without
    a look at each line held.
    """
    if not held or not incoming:
        return 0
    width, packed = len(incoming[0]), b"".join(incoming)
    for place in islice(_places(held, incoming[0]), _MOST_PLACES):
        shared = min(len(packed), len(held) - place)
        if held.startswith(packed[:shared], place):
            return shared // width
    if set(_beginnings(packed, width)).isdisjoint(_beginnings(held, width)):
        return 0
    return align((held[at : at + width] for at in range(0, len(held), width)), incoming)


def _places(held: bytes, first: bytes) -> Iterator[int]:
    """Where a push could begin, in order."""
    place = held.find(first)
    while place >= 0:
        if place % len(first) == 0:
            yield place
        place = held.find(first, place + 1)


def _beginnings(packed: bytes, width: int) -> memoryview[int]:
    """The first eight bytes of each hash: different ones are of different lines."""
    return memoryview(packed).cast("Q")[:: width // 8]


# Knuth, Morris and Pratt: a log of many equal lines must not make the search quadratic.
def _borders(incoming: Sequence[bytes]) -> list[int]:
    """For each beginning of a push, how much of its own beginning it ends with."""
    borders = [0] * len(incoming)
    for index in range(1, len(incoming)):
        borders[index] = _extend(borders[index - 1], incoming[index], incoming, borders)
    return borders


def _extend(agreed: int, line: bytes, incoming: Sequence[bytes], borders: Sequence[int]) -> int:
    """How many lines of the push agree when one more line is read; the most that can."""
    while agreed and incoming[agreed] != line:
        agreed = borders[agreed - 1]
    return agreed + (incoming[agreed] == line)
