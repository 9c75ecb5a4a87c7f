"""What to say when a name is not there."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def not_there(name: str, known: Iterable[str]) -> str:
    """Name the nearest that is there, or all that are."""
    names = sorted(known)
    near = get_close_matches(name, names, 1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"there is {', '.join(names)}" if names else "there is none at all"
