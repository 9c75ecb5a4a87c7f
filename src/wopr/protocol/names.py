"""Suggestions for names that are not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

# A longer list of names is not printed.
_MOST_NAMES = 40


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like this one, or None when none is close.

    Upper and lower case, `_` and `-` do not count.
    """
    by_fold = {_fold(each): each for each in sorted(known, reverse=True)}
    found = get_close_matches(_fold(name), by_fold, 1)
    return by_fold[found[0]] if found else None


def not_there(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest known name, or list all of them."""
    names = sorted(known)
    near = nearest(name, names)
    if near is not None:
        return f"did you mean {near!r}?"
    if not names:
        return "none is defined"
    if len(names) > _MOST_NAMES:
        return f"none of the {len(names)} known names is like it"
    return f"expected one of {', '.join(names)}"


def unknown_key(name: str, known: Iterable[str]) -> str:
    """Say that an object has no such key, with a suggestion."""
    names = sorted(known)
    if not names:
        return f"unknown key {name!r}: no keys are allowed here"
    return f"unknown key {name!r}: {not_there(name, names)}"


def _fold(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
