"""The expected result of each trigger rule, by the kinds of edges at a node.

The letters are the states of the edges: `s`uccess, s`k`ipped, `f`ailed, or `p`ending.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Final

from wopr.engine.triggers import Readiness

_READY: Final = {
    "all_success": "s",
    "any_success": "s sk sf sp skf skp sfp skfp",
    "any_failed": "f sf kf fp skf sfp kfp skfp",
    "all_complete": "s f sk sf kf skf",
    "none_failed": "s sk",
}
_WAIT: Final = {
    "all_success": "p sp",
    "any_success": "p kp fp kfp",
    "any_failed": "p sp kp skp",
    "all_complete": "p sp kp fp skp sfp kfp skfp",
    "none_failed": "p sp kp skp",
}
_KINDS: Final = tuple("".join(kinds) for n in range(1, 5) for kinds in combinations("skfp", n))

RULES: Final = tuple(_READY)


def _readiness(rule: str, kinds: str) -> Readiness:
    if kinds in _READY[rule].split():
        return Readiness.READY
    return Readiness.WAIT if kinds in _WAIT[rule].split() else Readiness.SKIP


_TABLE: Final[Mapping[tuple[str, frozenset[str]], Readiness]] = {
    (rule, frozenset(kinds)): _readiness(rule, kinds) for rule in RULES for kinds in _KINDS
}


def expected(rule: str, carried: Iterable[str]) -> Readiness:
    """Return the result of one rule on all edges that have it."""
    return _TABLE[rule, frozenset(carried)]
