"""Suggestions for names that are not known."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import SequenceMatcher
from heapq import nlargest
from typing import Final

# A longer list of names is not printed, and a longer name is cut.
_MAX_NAMES: Final = 40
_LONGEST_SHOWN: Final = 200
# Names up to this length are compared, with at most this many names. This takes a few milliseconds.
_LONGEST_COMPARED: Final = 100
_MAX_COMPARED: Final = 500
# The number of names with the most common letters that are compared exactly.
_MAX_COMPARED_CLOSELY: Final = 5
_LEAST_LIKENESS: Final = 0.6


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name, or None if no name is similar.

    Case, `_` and `-` are ignored. A very long name, or a name among very many, has no suggestion.
    """
    names = known if isinstance(known, Collection) else list(known)
    if len(name) > _LONGEST_COMPARED or len(names) > _MAX_COMPARED:
        return None
    by_fold = {_fold(each): each for each in sorted(names, reverse=True)}
    matcher = SequenceMatcher[str](b=_fold(name))

    def common(folded: str) -> float:
        matcher.set_seq1(folded)
        # `real_quick_ratio` is an upper bound that only needs the lengths.
        return matcher.real_quick_ratio() >= _LEAST_LIKENESS and matcher.quick_ratio()

    def likeness(folded: str) -> tuple[float, str]:
        matcher.set_seq1(folded)
        return matcher.ratio(), folded

    short = (each for each in by_fold if len(each) <= _LONGEST_COMPARED)
    closest = nlargest(_MAX_COMPARED_CLOSELY, short, key=common)
    ratio, found = max(map(likeness, closest), default=(0.0, ""))
    return by_fold[found] if ratio >= _LEAST_LIKENESS else None


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest known name, or list all of them."""
    names = known if isinstance(known, Collection) else list(known)
    near = nearest(name, names)
    if near is not None:
        return f"did you mean {near!r}?"
    if not names:
        return "none is defined"
    if len(names) > _MAX_NAMES:
        return f"none of the {len(names)} known names is similar"
    return f"expected one of {', '.join(map(shorten_name, sorted(names)))}"


def unknown_key(name: str, known: Collection[str]) -> str:
    """Return a message for an unknown key, with a suggestion."""
    if not known:
        return f"unknown key {shorten_name(name)!r}: no keys are allowed here"
    return f"unknown key {shorten_name(name)!r}: {suggest_name(name, known)}"


def shorten_name(name: str) -> str:
    """Return a name for a message. A very long name is cut."""
    return name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}…"


def _fold(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
